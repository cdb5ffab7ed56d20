"""Define the driver log's refusals by name. An error's docstring is its default message, and says how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class DriverLogError(Exception):
    """The driver log refused a statement."""

    def __init__(self, detail: str | None = None) -> None:
        """Take `detail`, which names the thing and the value; the class's docstring says how to fix it."""
        advice = " ".join((type(self).__doc__ or "").split())
        super().__init__(f"{detail}. {advice}" if detail else advice)
        self.detail = detail


class ReceiverFencedError(DriverLogError):
    """Another process has claimed this receiver: stop; what this one still holds was not acknowledged."""


class BlockConflictError(DriverLogError):
    """The sequence number is taken by a different block of this very epoch: this is a bug, please report it."""


class OffsetConflictError(DriverLogError):
    """The source position is not where this receiver believes: drop what was read, and read on from the log's."""


class EmptyBlockError(DriverLogError):
    """A block holds at least one record: leave the call out when there is nothing to store."""


class DuplicateKeysError(DriverLogError):
    """Records with these keys are in the log: write the block without them, and acknowledge them to the sender."""


class SequenceGapError(DriverLogError):
    """The block's predecessor is not in the log (was it restored from a backup?): claim again and salvage."""


class NotAssignedError(DriverLogError):
    """This process may not claim the receiver: exit, and let the agent start one for the present assignment."""


class LostCommitsError(SequenceGapError):
    """The driver log lost its last commits (was a standby promoted without them?): claim again and salvage."""

    def __init__(self, problem: str, receiver_ids: Collection[int]) -> None:
        """Take the `receiver_ids` whose commits were lost."""
        super().__init__(problem)
        self.receiver_ids = frozenset(receiver_ids)


class ClaimLostError(DriverLogError):
    """Another claim came first: read the newest epoch and claim again if the assignment is still yours."""


class ClaimBusyError(DriverLogError):
    """The claim was outrun by additions a thousand times: try again in a moment."""


class OutcomeUnknownError(DriverLogError):
    """The answer was lost, so the blocks may or may not be in: send the identical blocks again, nothing else."""


class DriverLogUnavailableError(DriverLogError):
    """The driver log can't be reached or can't work now: try again; check FOREBAY_DATABASE_URL and the server."""


class OtherReleaseError(DriverLogUnavailableError):
    """It is of another release: install that one here, or run `forebay db upgrade` if this one is newer.

    `forebay db current` compares. Until then this process waits, and tries again.
    """


class NoDriverLogError(DriverLogError):
    """Run `forebay db upgrade`, which creates the driver log's tables there; `forebay up MODULE` does so too."""


class ServerChangedError(DriverLogError):
    """The driver log is on another server or timeline now: claim again and salvage what that one may lack."""


class BatchHeldError(DriverLogError):
    """The batch is not free for this attempt: nothing to do, the run that holds it goes on."""


class AttemptSupersededError(DriverLogError):
    """A newer attempt holds the batch: this one's results are not used."""


class OutputNotCommittedError(DriverLogError):
    """A batch can't complete before each of its outputs is committed: run all outputs of the pipeline."""


class BlocksNotRetainedError(DriverLogError):
    """Nothing was changed: give the pipeline a longer `retention`, and the next batches can be replayed for longer."""


class NotDiscardableError(DriverLogError):
    """Only a batch that is QUARANTINED or BLOCKED, and does not run, can be discarded: `forebay batches` shows them."""


class AllocationError(DriverLogError):
    """The batch can't be allocated at this time: ask for a boundary after the last one that has passed."""


class SchemaConflictError(DriverLogError):
    """A column keeps its type while the stream lives: give the column another name, or declare another stream."""


class UnknownNameError(DriverLogError):
    """The driver log has nothing of this name: base of the errors for each kind of thing."""


class NotAppliedError(UnknownNameError):
    """The driver log does not know this declaration: run `forebay apply`."""


class ReaderRemovedError(DriverLogError):
    """A named reader that was removed holds nothing back: start the query again, and it goes on if nothing is lost."""


class ReaderPositionError(DriverLogError):
    """The query can't go on from its checkpoint: give it a new checkpoint location, to begin where its reader is."""


class ReaderStreamError(DriverLogError):
    """A named reader belongs to one stream: give the query another reader's name, or remove it: `forebay readers`."""


class SharedPlaceError(DriverLogError):
    """Each would replace the other's batches there: give every output a path, or a table, of its own."""


class StrandingChangeError(DriverLogError):
    """This change would leave blocks that nothing reads: stop the source, let the batches finish, apply again."""


#: Errors that may go away if the caller waits and tries again.
TRANSIENT = (DriverLogUnavailableError, OutcomeUnknownError)
