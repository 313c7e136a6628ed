"""What the daemon's ageing policies are told and asked: with a fake policy, and with the real ones."""

import errno
from dataclasses import dataclass

import pytest

from kvd.policy.ageing import Below, Hint, Least, Place, Seed, Victim
from kvd.policy.gittins import Gittins
from kvd.policy.policies import PLAIN, POLICIES
from kvd.tier.census import Census
from kvd.tier.live import Live
from kvd.tier.worth import LEARNING_MAX, Worth
from kvdriver import Tier

BELOW = Below(room_units=2**64 - 1)
HOME = 100


class FakePolicy:
    """Remembers what it was told; its victims are those whose numbers are least."""

    def __init__(self, full=False):
        self.told = []
        self.at = {}
        self.full = full
        self.worth = None

    def _enter(self, keys, place):
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        self.at.update(dict.fromkeys(keys, place))

    def access(self, access):
        self.told.append(("access", tuple(access.keys), access.parent))
        self._enter(access.keys, Place.DDR)

    def use(self, now_s, keys, units):
        self.told.append(("use", tuple(keys), tuple(units)))
        self._enter(keys, Place.DDR)

    def seed(self, now_s, seeds):
        self.told += [("seed", seed.key, seed.place) for seed in seeds]
        for seed in seeds:
            self._enter([seed.key], Place(seed.place))

    def hint(self, key, hint, now_s):
        self.told.append(("hint", key, hint))

    def hold(self, key):
        if key not in self.at:
            raise KeyError(key)
        self.told.append(("hold", key))

    def unhold(self, key):
        self.told.append(("unhold", key))

    def place(self, key, place):
        if key not in self.at:
            raise KeyError(key)
        self.told.append(("place", key, place))
        self.at[key] = place

    def forget(self, key):
        self.told.append(("forget", key))
        self.at.pop(key, None)

    def tick(self, now_s, steps_max):
        return False

    def victims(self, place, need_units, below=None):
        chosen = sorted(key for key, at in self.at.items() if at is place)[:need_units]
        for key in chosen:
            del self.at[key]
        return [Victim(key, 1, Place.NVME if below else Place.GONE) for key in chosen]

    def least(self, place):
        keys = [key for key, at in self.at.items() if at is place]
        return Least(self.worth, min(keys)) if keys else None

    def prefetch(self, key):
        return []


@dataclass
class World:
    worth: Worth
    census: Census
    policies: list

    def add(self, ino, *, tier=Tier.DDR, sealed=True, blocks=1, pinned=False):
        live = Live(
            ino=ino,
            session=ino,
            tier=tier,
            size=blocks << 12,
            sealed=sealed,
            pinned=pinned,
            damaged=False,
            hits=0,
            copy=None,
            mapped_blocks=blocks,
            last_use_s=0.0,
            census=self.census,
        )
        self.census.add(live)
        return live

    def told(self):
        """Return what the only policy was told since the last time."""
        [policy] = self.policies
        told, policy.told = policy.told, []
        return told


def world(make=FakePolicy, above=lambda _ino: None):
    policies = []

    def remember():
        policies.append(make())
        return policies[-1]

    worth = Worth(lambda ino: ino // HOME, above, remember, POLICIES[PLAIN])
    census = Census({})
    census.worth = worth
    return World(worth, census, policies)


async def test_an_object_is_known_from_its_seal_on_and_held_while_it_may_not_go():
    made = world(above=lambda ino: ino - 1)
    live = made.add(7, sealed=False)
    live.writers = 1
    assert made.policies == []
    live.writers = 0
    live.sealed = True
    assert made.told() == [("access", (7,), 6)]
    live.readers = 1
    live.readers = 2
    assert made.told() == [("hold", 7)]
    live.pinned = True
    live.readers = 0
    assert made.told() == []
    live.pinned = False
    assert made.told() == [("unhold", 7)]
    live.sealed = False
    assert made.told() == [("hold", 7)]
    live.sealed = True
    assert made.told() == [("access", (7,), 6), ("unhold", 7)]
    live.tier = Tier.NVME
    live.tier = Tier.NONE
    assert made.told() == [("place", 7, Place.NVME), ("forget", 7)]
    live.readers = 1
    live.tier = Tier.DDR
    assert made.told() == []


async def test_what_leaves_memory_stays_held_only_if_it_is_pinned():
    made = world()
    free, pinned = made.add(1), made.add(2, pinned=True)
    for live in (free, pinned):
        live.held = True
        made.census.forget(live)
    assert ("unhold", 1) in made.told()
    assert made.worth._kept == {2}


async def test_what_a_start_finds_is_told_once_and_not_where_it_is_in_memory_already():
    made = world()
    made.add(1, tier=Tier.NVME)
    rows = [(0, Seed(ino, 1, Place.NVME, float(ino))) for ino in (1, 2, 3)]
    made.worth.found(rows)
    made.worth.found(rows)
    assert made.told() == [("seed", ino, Place.NVME) for ino in (1, 2, 3)]


async def test_uses_are_one_call_a_namespace_and_what_is_read_from_nvme_stays_there():
    made = world()
    lives = [made.add(1, blocks=3), made.add(2, tier=Tier.NVME), made.add(HOME)]
    for policy in made.policies:
        policy.told.clear()
    made.worth.used([*lives, made.add(HOME + 1, sealed=False)])
    assert [policy.told for policy in made.policies] == [
        [("use", (1, 2), (3, 1)), ("place", 2, Place.NVME)],
        [("use", (HOME,), (1,))],
    ]


async def test_a_policy_that_is_full_harms_nobody():
    made = world(lambda: FakePolicy(full=True))
    live = made.add(1)
    live.readers = 1
    made.worth.used([live])
    live.readers = 0
    live.tier = Tier.NVME
    live.tier = Tier.NONE
    made.worth.hint(1, Hint.KEEP)
    assert made.worth.victims(Place.DDR, 1) == []


async def test_victims_are_of_the_namespaces_that_are_asked_for():
    made = world()
    for ino in (1, 2, HOME, HOME + 1):
        made.add(ino)
    assert [victim.key for victim in made.worth.victims(Place.DDR, 1, BELOW, {1})] == [HOME]
    assert [victim.key for victim in made.worth.victims(Place.DDR, 9, BELOW, {1, 77})] == [HOME + 1]
    assert made.worth.victims(Place.DDR, 9, BELOW, {77}) == []
    assert [victim.key for victim in made.worth.victims(Place.DDR, 9, BELOW)] == [1, 2]


async def test_of_several_namespaces_the_one_worth_least_gives_first():
    made = world()
    for ino in (1, 2, HOME, HOME + 1):
        made.add(ino)
    made.policies[0].worth, made.policies[1].worth = 0.5, 0.1
    assert [victim.key for victim in made.worth.victims(Place.DDR, 3, BELOW)] == [HOME, HOME + 1, 1]
    made.add(HOME + 5)
    made.policies[1].worth = None  # it knows none: then who was used longest ago
    assert [victim.key for victim in made.worth.victims(Place.DDR, 2, BELOW)] == [2, HOME + 5]


async def test_a_namespace_too_many_has_a_plain_order():
    made = world()
    for number in range(LEARNING_MAX + 3):
        made.add(number * HOME + 1)
    assert len(made.policies) == LEARNING_MAX
    assert len(made.worth.victims(Place.DDR, 1000, BELOW)) == LEARNING_MAX + 3


@pytest.mark.parametrize("name", POLICIES)
async def test_real_policies_name_each_object_once_and_take_back_what_can_not_go(name):
    made = world(POLICIES[name])
    lives = {ino: made.add(ino) for ino in [*range(1, 60), *range(HOME, HOME + 60)]}
    lives[5].readers = lives[HOME + 5].readers = 1
    made.worth.used([lives[ino] for ino in (1, 2, HOME)])
    seen = made.worth.victims(Place.DDR, 60, BELOW)
    assert len(seen) == len({victim.key for victim in seen}) == 60
    assert not {victim.key for victim in seen} & {5, HOME + 5}
    assert {victim.to for victim in seen} == {Place.NVME}
    for victim in seen:
        made.worth.stays(victim.key, Place.DDR, victim.units)
    again = made.worth.victims(Place.DDR, 1000, BELOW)
    assert {victim.key for victim in again} == set(lives) - {5, HOME + 5}
    gone = made.worth.victims(Place.NVME, 1000)
    assert {victim.key for victim in gone} == set(lives) - {5, HOME + 5}
    for victim in gone:
        made.worth.forget(victim.key)
    for policy in made.policies:
        if isinstance(policy, Gittins):
            assert policy.check() == 0
    assert made.worth.victims(Place.NVME, 1) == []


@pytest.mark.parametrize("name", POLICIES)
async def test_a_victim_that_was_forgotten_and_stays_is_known_again(name):
    made = world(POLICIES[name])
    made.worth.found([(0, Seed(1, 1, Place.NVME, 5.0))])
    [victim] = made.worth.victims(Place.NVME, 1)
    assert (victim.key, victim.to) == (1, Place.GONE)
    made.worth.stays(1, Place.NVME, 1)
    assert [victim.key for victim in made.worth.victims(Place.NVME, 1)] == [1]
