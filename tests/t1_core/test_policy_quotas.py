"""Whose blocks must go when a tier is short: what is promised to namespaces holds whatever they have and ask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.errors import OverCommittedError
from kvd.policy.quotas import NO_LIMIT, Share, check, due, may_take, spare

SPACES = st.integers(0, 9)


@st.composite
def tiers(draw):
    """A tier: its capacity, shares whose guarantees and use fit into it, somebody who asks, and for how much."""
    capacity = draw(st.integers(0, 500))
    left_guaranteed = left_used = capacity
    shares = {}
    for space in draw(st.lists(SPACES, unique=True, max_size=7)):
        guaranteed = draw(st.integers(0, left_guaranteed))
        used = draw(st.integers(0, left_used))
        limit = draw(st.one_of(st.just(NO_LIMIT), st.integers(max(1, guaranteed), 600)))
        left_guaranteed -= guaranteed
        left_used -= used
        shares[space] = Share(guaranteed=guaranteed, limit=limit, priority=draw(st.integers(0, 3)), used=used)
    return shares, capacity, draw(SPACES), draw(st.integers(0, 600))


def after(shares, found):
    return {space: share.used - found.blocks.get(space, 0) for space, share in shares.items()}


@given(tiers())
def test_nobody_but_the_asker_comes_below_its_guarantee(tier):
    shares, capacity, asker, need = tier
    found = due(shares, capacity=capacity, need=need, asker=asker)
    for space, left in after(shares, found).items():
        share = shares[space]
        assert 0 <= left <= share.used
        assert space == asker or left >= min(share.used, share.guaranteed)
    assert all(found.blocks.values())
    assert found.blocks.keys() <= spare(shares, asker).keys()
    assert all(blocks <= spare(shares, asker)[space] for space, blocks in found.blocks.items())


@given(tiers())
def test_the_need_is_met_as_far_as_the_others_guarantees_and_the_limit_allow(tier):
    shares, capacity, asker, need = tier
    found = due(shares, capacity=capacity, need=need, asker=asker)
    mine = shares.get(asker, Share())
    kept = sum(min(share.used, share.guaranteed) for space, share in shares.items() if space != asker)
    possible = capacity - kept if mine.limit == NO_LIMIT else min(capacity - kept, mine.limit)
    assert found.short == max(0, need - possible)
    left = after(shares, found)
    if not found.short:
        assert sum(left.values()) + need <= capacity
        assert mine.limit == NO_LIMIT or left.get(asker, 0) + need <= mine.limit


@given(tiers())
def test_nothing_more_goes_than_has_to(tier):
    shares, capacity, asker, need = tier
    found = due(shares, capacity=capacity, need=need, asker=asker)
    free = capacity - sum(share.used for share in shares.values())
    mine = shares.get(asker, Share())
    beyond = 0 if mine.limit == NO_LIMIT else max(0, mine.used + need - mine.limit)
    assert sum(found.blocks.values()) <= max(0, need - free, min(mine.used, beyond))


@given(tiers())
def test_the_lowest_priority_gives_all_that_it_has_borrowed_before_a_higher_one_gives(tier):
    shares, capacity, asker, need = tier
    found = due(shares, capacity=capacity, need=need, asker=asker)
    left = after(shares, found)
    for giver in found.blocks:
        for other, share in shares.items():
            if asker not in (giver, other) and share.priority < shares[giver].priority:
                assert left[other] <= share.guaranteed


@given(tiers())
def test_of_one_priority_who_has_borrowed_most_gives_first(tier):
    shares, capacity, asker, need = tier
    found = due(shares, capacity=capacity, need=need, asker=asker)
    left = after(shares, found)
    for giver in found.blocks:
        for other, share in shares.items():
            if asker not in (giver, other) and share.priority == shares[giver].priority:
                # Down to one level; the blocks of the last step are not split.
                assert left[other] - share.guaranteed <= left[giver] - shares[giver].guaranteed + 1


@given(tiers(), st.randoms())
def test_the_same_is_asked_for_in_whatever_order_they_come(tier, random):
    shares, capacity, asker, need = tier
    items = list(shares.items())
    random.shuffle(items)
    assert due(dict(items), capacity=capacity, need=need, asker=asker) == due(
        shares, capacity=capacity, need=need, asker=asker
    )


@given(tiers())
def test_what_may_be_taken_is_met_without_anything_of_ones_own(tier):
    shares, capacity, asker, _ = tier
    blocks = may_take(shares, capacity=capacity, asker=asker)
    assert due(shares, capacity=capacity, need=blocks, asker=asker).short == 0
    mine = shares.get(asker, Share())
    kept = sum(min(share.used, share.guaranteed) for space, share in shares.items() if space != asker)
    assert mine.used + blocks + kept <= max(capacity, mine.used + kept)
    assert mine.limit == NO_LIMIT or not blocks or mine.used + blocks <= mine.limit


@given(tiers())
def test_who_comes_back_to_its_guarantee_gets_it_from_borrowers_alone(tier):
    shares, capacity, asker, _ = tier
    mine = shares.get(asker, Share())
    need = max(0, mine.guaranteed - mine.used)
    found = due(shares, capacity=capacity, need=need, asker=asker)
    assert found.short == 0
    assert not need or asker not in found.blocks


@given(tiers())
def test_without_an_asker_only_borrowers_give(tier):
    shares, capacity, _, need = tier
    found = due(shares, capacity=capacity, need=need)
    for space, blocks in found.blocks.items():
        assert blocks <= shares[space].borrowed
    kept = sum(min(share.used, share.guaranteed) for share in shares.values())
    assert found.short == max(0, need - (capacity - kept))


def share(used, guaranteed=0, **more):
    return Share(used=used, guaranteed=guaranteed, **more)


@pytest.mark.parametrize(
    ("shares", "asker", "need", "blocks", "short"),
    [
        ({1: share(40, 50), 2: share(60)}, 1, 10, {2: 10}, 0),  # a flood has borrowed what is another's
        ({1: share(50, 50), 2: share(50)}, 2, 10, {2: 10}, 0),  # a flood pays from itself
        ({1: share(50, 50), 2: share(50)}, 2, 60, {2: 50}, 10),
        ({1: share(20), 2: share(80)}, 1, 10, {2: 10}, 0),  # towards fair shares
        ({1: share(50), 2: share(50)}, 1, 10, {1: 10}, 0),  # and no further
        ({1: share(50), 2: share(30), 3: share(20)}, 3, 30, {1: 15, 3: 15}, 0),
        ({1: share(50), 2: share(30), 3: share(20)}, 3, 45, {1: 23, 2: 2, 3: 20}, 0),
        ({1: share(50, priority=1), 2: share(50)}, 1, 10, {2: 10}, 0),  # priority before fairness
        ({1: share(50), 2: share(50, priority=1)}, 1, 10, {1: 10}, 0),
        ({1: share(10), 2: share(90, priority=1)}, 1, 30, {1: 10, 2: 20}, 0),  # but it is no right to all
        ({1: share(30, limit=30), 2: share(20)}, 1, 10, {1: 10}, 0),  # at its limit, with room in the tier
        ({1: share(30, limit=30), 2: share(20)}, 1, 40, {1: 30}, 10),
        ({1: share(0, 50), 2: share(0)}, 2, 100, {}, 0),  # what nobody uses is there to be borrowed
    ],
)  # fmt: skip
def test_who_gives(shares, asker, need, blocks, short):
    found = due(shares, capacity=100, need=need, asker=asker)
    assert (found.blocks, found.short) == (blocks, short)


def test_a_tier_that_shrank_below_the_guarantees_is_paid_for_by_who_asks():
    found = due({1: share(60, 60), 2: share(40, 40)}, capacity=80, need=5, asker=1)
    assert (found.blocks, found.short) == ({1: 25}, 0)


def test_more_than_there_is_can_not_be_guaranteed():
    check(share(0, 60), 40, capacity=100, tier="ddr")
    with pytest.raises(OverCommittedError, match=r"ddr: 244KiB can't be guaranteed: the tier has 400KiB, and 160KiB"):
        check(share(0, 61), 40, capacity=100, tier="ddr")
    with pytest.raises(OverCommittedError, match="ask for at most 0KiB"):
        check(share(0, 1), 200, capacity=100, tier="nvme")
    check(share(0, 0), 200, capacity=100, tier="nvme")  # who has none asks for none
    with pytest.raises(OverCommittedError, match="above the limit"):
        check(share(0, 10, limit=9), 0, capacity=100, tier="ddr")


def test_sizes_in_messages_are_exact():
    with pytest.raises(OverCommittedError, match=r"3GiB can't .* has 1025MiB, and 2TiB"):
        check(share(0, 3 << 18), 1 << 29, capacity=1025 << 8, tier="ddr")
