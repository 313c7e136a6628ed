"""The pure policies."""

from kvd.policy.demotion import excess_blocks
from kvd.policy.readahead import AHEAD_FIRST, AHEAD_MAX, REMEMBERED_FOLDERS, REMEMBERED_STEPS, Readahead
from kvd.policy.reservation import REMEMBERED_KEYS, REMEMBERED_SIZES, UsualSize


def test_watermarks():
    marks = {"budget": 100, "high": 0.9, "low": 0.7}
    assert excess_blocks(held=90, draining=False, **marks) == 0
    assert excess_blocks(held=91, draining=False, **marks) == 21
    assert excess_blocks(held=80, draining=True, **marks) == 10, "once begun, it goes on to the low watermark"
    assert excess_blocks(held=70, draining=True, **marks) == 0


def test_the_usual_size_is_the_largest_of_the_latest():
    usual = UsualSize(first_blocks=7)
    assert usual.guess(1) == 7
    usual.learn(1, 100)
    usual.learn(1, 3)
    assert usual.guess(1) == 100
    for _ in range(REMEMBERED_SIZES):
        usual.learn(1, 5)
    assert usual.guess(1) == 5
    assert usual.guess(2) == 7


def test_what_is_remembered_is_bounded():
    usual = UsualSize(first_blocks=7)
    for key in range(REMEMBERED_KEYS + 1):
        usual.learn(key, 1)
    assert usual.guess(0) == 7
    assert usual.guess(REMEMBERED_KEYS) == 1


def test_reading_in_order_opens_the_window_and_a_jump_closes_it():
    ahead = Readahead[int]()
    steps = [ahead.step(1, cookie, cookie - 1) for cookie in range(1, 7)]
    assert steps == [AHEAD_FIRST, 8, AHEAD_MAX, AHEAD_MAX, AHEAD_MAX, AHEAD_MAX], (
        "the first name has 0 before it: in order"
    )
    assert ahead.step(1, 6, 5) == AHEAD_MAX, "the same again changes nothing"
    assert ahead.step(1, 90, 89) == 0, "where the client jumped to nothing is known"
    assert ahead.step(1, 91, 90) == AHEAD_MAX, "one jump changes nothing"
    for cookie in range(1000, 1000 + 10 * REMEMBERED_STEPS, 10):
        assert ahead.step(1, cookie, cookie - 1) == 0
    assert ahead.step(1, 1 + cookie, cookie) == AHEAD_FIRST, "jumps have closed it"
    assert ahead.step(2, 50, 49) == 0, "folders are apart"


def test_threads_that_read_side_by_side_are_in_order():
    ahead = Readahead[int]()
    for first in range(1, 41, 4):
        steps = [ahead.step(1, cookie, cookie - 1) for cookie in (first + 1, first, first + 3, first + 2)]
        assert steps[1] > 0
        assert steps[3] > 0
    assert max(steps) == AHEAD_MAX


def test_folders_that_are_remembered_are_bounded():
    ahead = Readahead[int]()
    for folder in range(REMEMBERED_FOLDERS + 1):
        ahead.step(folder, 1, 0)
    assert ahead.step(0, 2, 1) == 0
    assert ahead.step(REMEMBERED_FOLDERS, 2, 1) == 2 * AHEAD_FIRST


def test_names_have_an_order_too():
    ahead = Readahead[bytes]()
    assert ahead.step(1, b"b", b"a") == 0
    assert ahead.step(1, b"c", b"b") == AHEAD_FIRST
    assert ahead.step(2, b"a", b"") == AHEAD_FIRST, "the first name has none before it"


def test_a_guess_is_sure_once_it_was_right_and_doubtful_once_it_was_wrong():
    usual = UsualSize(first_blocks=8)
    assert (usual.sure(1), usual.doubtful(1)) == (False, False)
    usual.learn(1, 10)  # 8 were guessed, which is near enough
    assert (usual.sure(1), usual.doubtful(1)) == (False, False)
    usual.learn(1, 4)
    assert usual.sure(1)
    usual.wrong(1, 11)
    assert usual.sure(1)
    usual.wrong(1, 13)  # more than a quarter beyond the 10
    assert (usual.sure(1), usual.doubtful(1)) == (False, True)
    usual.learn(1, 40)
    assert usual.doubtful(1)
    for _ in range(2):
        usual.learn(1, 40)
    assert usual.sure(1)
    assert usual.guess(1) == 40
