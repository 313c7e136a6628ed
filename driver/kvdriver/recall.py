"""What of a submission was executed by a card that failed in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdriver.abi import Status
from kvdriver.commands import Translate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdriver.commands import Command
    from kvdriver.device import Completion
    from kvdriver.faults import Interrupted
    from kvdriver.inprocess import InProcessDevice


def recall(
    local: InProcessDevice, interrupted: Interrupted | None, commands: Sequence[Command]
) -> tuple[list[Completion], list[Command]]:
    """Return the completions of what was executed, as the journal of the tables has them, and the other commands.

    Parameters
    ----------
    local
        The engine of this process, which has the tables.
    interrupted
        How far the submission had come; None: nowhere.
    commands
        All of the submission.
    """
    if interrupted is None:
        return [], list(commands)
    done = list(interrupted.completions)
    batch = interrupted.batch
    if batch is not None:
        executed = local.sequence() - interrupted.sequence
        if not 0 <= executed <= len(batch.commands):
            raise RuntimeError(f"the tables count {executed} commands of a batch of {len(batch.commands)}")
        for number in range(executed):
            batch.put(number, local.journal(interrupted.sequence + 1 + number))
        done += batch.completions(executed)
    for number, (command, completion) in enumerate(zip(commands, done, strict=False)):
        if completion.status is Status.BUFFER_SMALL and type(command) is Translate:
            done[number] = local.translate_again(command, completion)
    return done, list(commands[len(done) :])
