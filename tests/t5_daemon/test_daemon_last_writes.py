"""What clients closed in the moment before a stop is kept: the kernel drops releases that are queued at the unmount."""

import os

from private_kvd import PrivateKvd

ROUNDS = 6
FILES = 30


def test_files_closed_right_before_sigterm_are_there_after_the_next_start():
    with PrivateKvd() as kvd:
        content = {}
        for round_number in range(ROUNDS):
            kvd.start()
            for index in range(FILES):
                path = kvd.mount / f"{round_number}-{index}"
                content[path] = os.urandom(30_000)
                path.write_bytes(content[path])
            assert kvd.stop() == 0
        kvd.start()
        assert {path: path.read_bytes() for path in kvd.mount.iterdir()} == content


def test_an_object_that_is_open_at_the_stop_and_closed_in_time_is_sealed():
    with PrivateKvd() as kvd:
        kvd.start()
        with (kvd.mount / "a").open("wb") as file:
            file.write(b"x" * 100_000)
            file.flush()
            kvd.ask_to_stop()
            kvd.wait_unmounted()
        assert kvd.stop() == 0
        kvd.start()
        assert (kvd.mount / "a").read_bytes() == b"x" * 100_000
