"""Define the driver log's refusals by name. An error's docstring is its default message, and says how to fix it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from tracker_store.close_names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# As many names as a person reads, for one that was mistyped.
_NAMED = 20


def sentence(detail: str) -> str:
    """Return `detail` as a sentence: a server's own message may end with a full stop, or with a question."""
    return detail if detail.endswith((".", "?", "!")) else f"{detail}."


class DriverLogError(Exception):
    """Forebay's driver log refused a statement."""

    def __init__(self, detail: str | None = None, advice: str | None = None) -> None:
        """Take `detail`, which names the thing and the value; `advice` (the class's docstring) says how to fix it."""
        advice = advice or " ".join((type(self).__doc__ or "").split())
        super().__init__(f"{sentence(detail)} {advice}" if detail else advice)
        self.detail = detail


class ReceiverFencedError(DriverLogError):
    """Another process has claimed this receiver: stop; what this one still holds was not acknowledged."""


class OffsetConflictError(DriverLogError):
    """Drop what was read, and read on from the log's source position, which is not where this receiver believes."""


class EmptyBlockError(DriverLogError):
    """Leave the call out when there is nothing to store: a block holds at least one record."""


class DuplicateKeysError(DriverLogError):
    """Records with these keys are in the log: write the block without them, and acknowledge them to the sender."""


class ChannelConflictError(DriverLogError):
    """Read the channels' positions again, and leave out what they have: another receiver has moved one of them."""


class SequenceGapError(DriverLogError):
    """Claim again and salvage: the block's predecessor is not in the log (was it restored from a backup?)."""


class NotAssignedError(DriverLogError):
    """This process may not run the receiver: exit, and let the agent start one for the present assignment."""


class LostCommitsError(SequenceGapError):
    """Claim again and salvage: the driver log lost its last commits (was a standby promoted without them?)."""

    def __init__(self, problem: str, receiver_ids: Collection[int]) -> None:
        """Take the `receiver_ids` whose commits were lost."""
        super().__init__(problem)
        self.receiver_ids = frozenset(receiver_ids)


class ClaimLostError(DriverLogError):
    """Another claim came first: read the newest epoch and claim again if the assignment is still yours."""


class OutcomeUnknownError(DriverLogError):
    """Send the identical blocks again, nothing else: the answer was lost, so the blocks may or may not be in."""


class DriverLogUnavailableError(DriverLogError):
    """Try again; check FOREBAY_DATABASE_URL and the server: the driver log can't be reached or can't work now."""


class NoPostgresUrlError(DriverLogError):
    """Write postgresql://USER@HOST:PORT/DATABASE; so in FOREBAY_DATABASE_DIRECT_URL too, where that is set."""


class OtherReleaseError(DriverLogUnavailableError):
    """It is of another release: install that one here, or run `forebay db upgrade` if this one is newer.

    `forebay db current` compares. Until then this process waits, and tries again.
    """


class BatchHeldError(DriverLogError):
    """Nothing to do: the batch is not free for this attempt, and the run that holds it goes on."""


class AttemptSupersededError(DriverLogError):
    """Results of this attempt are not used: a newer attempt holds the batch."""


class BlocksNotRetainedError(DriverLogError):
    """Nothing was changed: give the pipeline a longer `retention`, and the next batches can be replayed for longer."""


class StateMovedError(DriverLogError):
    """Run the batch again: the version of the output's state that it read or wrote is not the one that counts now."""


class StatefulReplayError(DriverLogError):
    """Nothing was changed: `--forward` runs it and every later batch of the output again."""


class SchemaConflictError(DriverLogError):
    """Give the column another name, or declare another stream: a column keeps its type while the stream lives."""


class UnknownNameError(DriverLogError):
    """Nothing in the driver log has this name: base of the errors for each kind of thing."""

    @classmethod
    def of(cls, kind: str, name: str, there: Sequence[str], advice: str | None = None) -> Self:
        """Return the error for a name that is not among `there`; `advice`: what to do if none of them is meant."""
        more = f" and {len(there) - _NAMED:,} more" if len(there) > _NAMED else ""
        known = f"{', '.join(there[:_NAMED])}{more}" or f"no {kind}"
        meant = did_you_mean(name, there).replace("did", "Did", 1)
        return cls(f"{kind} {name!r} is not in the driver log, which has {known}", meant or advice)


class NotAppliedError(UnknownNameError):
    """Run `forebay apply`: the driver log does not know this declaration."""


class SharedPlaceError(DriverLogError):
    """Each would replace the other's batches there: give every output a path, or a table, of its own."""


class StrandingChangeError(DriverLogError):
    """Let nothing be left that no pipeline reads: `forebay receivers stop STREAM`, let the batches finish, apply."""


#: Errors that may go away if the caller waits and tries again.
TRANSIENT = (DriverLogUnavailableError, OutcomeUnknownError)

#: How a block is refused whose sequence number is taken.
block_conflict = partial(
    DriverLogError,
    advice="Please report this bug: the sequence number is taken by a different block of this very epoch.",
)

#: How to fix a checkpoint that its reader is no longer at.
READER_POSITION = (
    "Give the query a new checkpoint location, to begin where its reader is: it can't go on from its checkpoint."
)
