"""What every ageing policy keeps to, run on all of them against a naive model; and what the default one learns."""

import random

import pytest

from kvd.policy.ageing import Access, Below, Hint, Place
from kvd.policy.gittins import Gittins
from kvd.policy.policies import DEFAULT, POLICIES

ROUNDS = 600
CAPACITY = 60
NVME_CAPACITY = 40
CHAINS_HONOURED = (DEFAULT,)
"""The ones that let tails go before heads whatever comes; the classics know no chains."""


def chain_of(rng):
    tree, fork = rng.randrange(12), rng.randrange(2)
    return [tree * 1000 + at + (500 * fork if at > 6 else 0) for at in range(1 + rng.randrange(14))]


class Model:
    """What is where, told by what the policy says."""

    def __init__(self, policy):
        self.policy = policy
        self.at = {}
        self.parent = {}
        self.held = set()
        self.told = []

    def access(self, keys, now_s, hint=Hint.NONE):
        self.policy.access(Access(now_s=now_s, keys=keys, output_tokens=now_s % 900, hint=hint))
        for parent, key in zip([None, *keys], keys, strict=False):
            self.parent[key] = parent
            self.at[key] = Place.DDR

    def in_place(self, place):
        return {key for key, at in self.at.items() if at is place}

    def pinned(self):
        """Return what is held; what it hangs on is in DDR as long as it is."""
        return {key for key in self.held if key in self.at}

    def fit(self, *, chains):
        for place, capacity in ((Place.DDR, CAPACITY), (Place.NVME, NVME_CAPACITY)):
            over = len(self.in_place(place)) - capacity
            if over <= 0:
                continue
            below = Below(room_units=NVME_CAPACITY - len(self.in_place(Place.NVME))) if place is Place.DDR else None
            victims = self.policy.victims(place, over, below)
            assert sum(victim.units for victim in victims) == min(over, len(victims))
            for victim in victims:
                assert self.at[victim.key] is place
                assert victim.key not in self.pinned()
                if chains:
                    below_it = [key for key, parent in self.parent.items() if parent == victim.key]
                    assert all(self.at.get(key, Place.GONE) is not place for key in below_it), (
                        "a head went before its tail"
                    )
                if victim.to == Place.GONE:
                    del self.at[victim.key]
                else:
                    self.at[victim.key] = Place(victim.to)
                self.told.append(victim)


def play(name, seed):
    rng = random.Random(seed)
    model = Model(POLICIES[name]())
    now_s = 0
    for _ in range(ROUNDS):
        now_s += rng.randrange(30)
        while model.policy.tick(now_s, 100):
            pass
        match rng.randrange(8):
            case 0 if model.in_place(Place.DDR) and len(model.held) < 5:
                key = rng.choice(sorted(model.in_place(Place.DDR)))
                if key not in model.held:
                    model.policy.hold(key)
                    model.held.add(key)
            case 1 if model.held:
                key = rng.choice(sorted(model.held))
                model.policy.unhold(key)
                model.held.remove(key)
            case 2:
                model.policy.hint(rng.randrange(12000), Hint(rng.randrange(4)), now_s)
            case 3 if model.in_place(Place.NVME):
                found = model.policy.prefetch(max(model.in_place(Place.NVME)))
                assert set(found) <= model.in_place(Place.NVME)
            case _:
                model.access(chain_of(rng), now_s, Hint(rng.randrange(4)))
        model.fit(chains=name in CHAINS_HONOURED and not model.held)
    return model


@pytest.mark.parametrize("name", POLICIES)
def test_any_order_of_calls_keeps_what_is_held_and_within_the_tiers(name):
    model = play(name, 1)
    assert len(model.told) > ROUNDS // 2
    assert len(model.in_place(Place.DDR)) <= CAPACITY + len(model.held) * 14
    assert len(model.in_place(Place.NVME)) <= NVME_CAPACITY


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_calls_have_the_same_victims(name):
    assert play(name, 2).told == play(name, 2).told
    assert play(name, 2).told != play(name, 3).told


@pytest.mark.parametrize("name", POLICIES)
def test_what_can_not_go_comes_back(name):
    policy = POLICIES[name]()
    policy.access(Access(now_s=0, keys=[1, 2]))
    (victim,) = policy.victims(Place.DDR, 1, Below(room_units=10))
    assert victim.to == Place.NVME
    policy.place(victim.key, Place.DDR)
    assert {each.key for each in policy.victims(Place.DDR, 2)} == {1, 2}


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_deleted_is_no_victim(name):
    policy = POLICIES[name]()
    policy.access(Access(now_s=0, keys=[1, 2]))
    policy.forget(2)
    policy.forget(77)
    assert [victim.key for victim in policy.victims(Place.DDR, 5)] == [1]


@pytest.mark.parametrize("name", POLICIES)
def test_a_lease_on_nothing_is_refused(name):
    with pytest.raises(KeyError):
        POLICIES[name]().hold(5)


def test_memory_is_bounded():
    policy = Gittins(objects_max=64)
    for key in range(5000):
        policy.access(Access(now_s=key, keys=[key]))
        policy.victims(Place.DDR, 1 if key >= 32 else 0)
    assert sum(policy.statistics()["objects"]) <= 64
    assert policy.check() == 0
    with pytest.raises(OSError, match="No space"):
        policy.access(Access(now_s=9000, keys=list(range(10_000, 10_100))))


def test_requests_that_make_no_sense_are_refused():
    policy = Gittins(objects_max=64)
    with pytest.raises(ValueError, match="objects"):
        Gittins(objects_max=1)
    with pytest.raises(ValueError, match="makes no sense"):
        policy.access(Access(now_s=0, keys=[]))
    with pytest.raises(ValueError, match="units of 1"):
        policy.access(Access(now_s=0, keys=[1, 2], units=[1]))
    with pytest.raises(ValueError, match="makes no sense"):
        policy.access(Access(now_s=float("nan"), keys=[1]))


def conversations(policy, *, long_answers_go_on, start=0, count=1500):
    """Half of all chains go on, 60 s later; the length of the answer tells which."""
    later = []
    for number in range(start, start + count):
        now_s = number * 2.0
        while later and later[0][0] <= now_s:
            _, keys, output = later.pop(0)
            policy.access(Access(now_s=now_s, keys=[*keys, keys[-1] + 50], output_tokens=output))
        keys = [number * 100 + at for at in range(4)]
        long = number % 2 == 0
        policy.access(Access(now_s=now_s, keys=keys, output_tokens=1000 if long else 10))
        if long is long_answers_go_on:
            later.append((now_s + 60, keys, 10 if long else 1000))
        over = policy.statistics()["objects"][Place.DDR] - 200
        if over > 0:
            policy.victims(Place.DDR, over)


@pytest.mark.parametrize("long_answers_go_on", [True, False])
def test_it_learns_which_chains_go_on(long_answers_go_on):
    policy = Gittins(objects_max=100_000)
    conversations(policy, long_answers_go_on=long_answers_go_on)
    assert worth_of(policy, 1000, 900_000) > worth_of(policy, 10, 900_100) or not long_answers_go_on
    assert worth_of(policy, 10, 900_200) > worth_of(policy, 1000, 900_300) or long_answers_go_on


def test_it_learns_anew_when_the_load_changes():
    policy = Gittins(objects_max=100_000, half_life_requests=500)
    conversations(policy, long_answers_go_on=True)
    conversations(policy, long_answers_go_on=False, start=1500, count=4000)
    assert worth_of(policy, 10, 900_000) > worth_of(policy, 1000, 900_100)


def worth_of(policy, output, key):
    policy.access(Access(now_s=1e5, keys=[key + at for at in range(4)], output_tokens=output))
    return policy.index(key)


def test_what_is_dear_to_make_is_worth_more():
    policy = Gittins(objects_max=100)
    policy.access(Access(now_s=0, keys=[1], density=1.0))
    policy.access(Access(now_s=0, keys=[2], density=4.0))
    assert policy.index(2) == pytest.approx(4 * policy.index(1))
    policy.access(Access(now_s=0, keys=[3], density=8.0))
    assert policy.victims(Place.NVME, 1) == []


def test_what_is_resumed_is_prefetched_and_what_is_worth_little_is_not_written():
    policy = Gittins(objects_max=100)
    policy.access(Access(now_s=0, keys=[1, 2, 3]))
    policy.access(Access(now_s=0, keys=[11]))
    victims = policy.victims(Place.DDR, 4, Below(room_units=10))
    assert {victim.to for victim in victims} == {Place.NVME}
    policy.hint(3, Hint.RESUME, 5.0)
    assert policy.prefetch(3) == [1, 2, 3]
    policy.access(Access(now_s=6, keys=[21]))
    assert policy.victims(Place.DDR, 1, Below(room_units=10, reuse_min=1.0))[0].to == Place.GONE
