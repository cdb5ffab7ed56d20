"""Call the driver log for the data plane, apart from the registrar: each call is repeated until it is answered.

Owns the waiting: an unavailable driver log delays the caller, with bounded backoff, and is no error for the caller. It
must never wait on after the process was told to give up (``give_up``), and never retry what the driver log refuses for
good.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.blocks import known_keys, open_partition
from tracker_store.blocks.dead_letters import add_dead_letters
from tracker_store.blocks.segments import open_segment, seal_segment
from tracker_store.blocks.source_positions import forget_partitions, peers_of, source_positions
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import TRANSIENT
from tracker_store.connection.until_answered import until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa

    from tracker_store.blocks.blocks import Claim, Position
    from tracker_store.blocks.dead_letters import StoredDeadLetter
    from tracker_store.blocks.segments import CodecSum
    from tracker_store.blocks.source_positions import Peer

_log = structlog.get_logger(__name__)

T = TypeVar("T")

FIRST_DELAY = 0.1
LONGEST_DELAY = 2.0

#: Seconds. A cut connection is restored sooner; a longer outage is reported to operators.
TELL_AFTER = 1.0


class GivenUpError(Exception):
    """Nothing to do: the process is ending at once, so this call to the driver log was not made again."""


class OutageListener(Protocol):
    """Hear that something waits for the driver log. Both methods return at once."""

    def on_driver_log_away(self, what: str, error: Exception) -> None:
        """Note that ``what`` ("register blocks") has waited for ``TELL_AFTER`` seconds, and goes on waiting."""
        ...

    def on_driver_log_back(self, what: str, seconds: float) -> None:
        """Note that ``what`` was answered after these seconds."""
        ...


class DriverLog:
    """Make calls on the driver log until they are answered. Safe from any thread.

    Use it only for idempotent statements: each must change nothing if it was done already.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None = None,
        progress: Progress | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare. Failed calls are counted in `progress`; `on_answer` is called for each call that was answered."""
        self._engine = engine
        self._progress = progress or Progress()
        self._on_answer = on_answer
        self._clock = clock or Clock()
        self._wakened = threading.Condition()
        self._gave_up = False

    def give_up(self) -> None:
        """End every wait, now and later, with GivenUpError."""
        with self._wakened:
            self._gave_up = True
            self._wakened.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait between two attempts at something else. Raises GivenUpError as soon as the process is ending at once."""
        self._wait(seconds)
        with self._wakened:
            if self._gave_up:
                raise GivenUpError(GivenUpError.__doc__)

    def once(self, statement: Callable[[sa.Connection], T]) -> T:
        """Make a call once. Raises what it raises, and DriverLogUnavailableError if there is no connection."""
        with connect(self._engine) as connection:
            return statement(connection)

    def until_answered(
        self, what: str, statement: Callable[[sa.Connection], T], *, listener: OutageListener | None = None
    ) -> T:
        """Make a call, and repeat it while the driver log is unavailable; return the answer.

        Args:
            what: names the call in messages, for example "open a segment".
            listener: called when the answer takes long, and again when it has come.

        Raises:
            GivenUpError: the process is ending at once.
            Exception: the driver log refused the call for good.
        """
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        began = self._clock.monotonic()
        told = False

        def ask() -> T:
            with self._wakened:
                if self._gave_up:
                    raise GivenUpError(f"{what}: {GivenUpError.__doc__}")
            return self.once(statement)

        def on_failure(error: Exception, _: float) -> None:
            nonlocal told
            self._progress.failed(f"the driver log does not {what}: {error}")
            if backoff.failures == 1:
                _log.warning("the driver log is away, trying again", call=what, error=str(error))
            if listener is not None and not told and self._clock.monotonic() - began >= TELL_AFTER:
                told = True
                listener.on_driver_log_away(what, error)

        answer = until_answered(ask, delay=backoff.next_delay, on_failure=on_failure, pause=self._wait)
        self._on_answer()
        if backoff.failures:
            _log.info("the driver log is back", call=what, attempts=backoff.failures + 1)
        if listener is not None and told:
            listener.on_driver_log_back(what, self._clock.monotonic() - began)
        return answer

    def _wait(self, seconds: float) -> None:
        """Wait; return early when the process is told to give up."""
        deadline = self._clock.monotonic() + seconds
        with self._wakened:
            while not self._gave_up and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(self._wakened, left)


class DeadLetterRows(Protocol):
    """Keep the rows of dead letters in the driver log."""

    def add_dead_letters(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Insert the rows of stored dead letters by one statement, in order; return when they are there."""
        ...


class SourcePositions(Protocol):
    """Keep the positions of a stream's source partitions in the driver log."""

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        """Return where to read a partition from: if it was never read, ``start_offset``, recorded as its origin."""
        ...

    def all_of(self, source: str) -> Mapping[str, Position]:
        """Return the position of each partition of a source that the stream has read."""
        ...

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        """Remove the positions of partitions that will not be read again, once their blocks are gone."""
        ...

    def peers(self) -> Sequence[Peer]:
        """Return the receivers that read the stream now, including this one.

        Asks once; raises if the driver log is unavailable.
        """
        ...

    @property
    def receiver_id(self) -> int:
        """Return the id of the receiver that these positions belong to."""
        ...


class KnownKeys(Protocol):
    """Keep the idempotency keys of a stream's records in the driver log."""

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Return the keys that the stream has received within its window.

        Without ``wait``, return none of them while the driver log is unavailable.
        """
        ...


class ReceiverDriverLog:
    """Write the rows of one epoch of one receiver, except those of its blocks."""

    def __init__(
        self,
        driver_log: DriverLog,
        *,
        claim: Claim,
        store: str | None = None,
        durability: str = "durable",
    ) -> None:
        self._driver_log = driver_log
        self._claim = claim
        self._store = store
        self._durability = durability
        self._listener: OutageListener | None = None

    def tell(self, listener: OutageListener) -> None:
        """Set the listener for waiting calls from now on."""
        self._listener = listener

    def open_segment(self, path: str, source_rule: str) -> int:
        """Insert the segment's row, before its file is made; return its id."""
        return self._driver_log.until_answered(
            "open a segment",
            lambda connection: open_segment(
                connection,
                receiver_id=self._claim.receiver_id,
                epoch=self._claim.epoch,
                path=path,
                source_rule=source_rule,
                store=self._store,
                durability=self._durability,
            ),
            listener=self._listener,
        )

    def seal_segment(self, segment_id: int, length: int, sequence: int, codecs: Sequence[CodecSum]) -> None:
        """Record the segment's final length, and its blocks by codec. Tried once, because the caller tries again.

        If the driver log has lost the segment's newest block, `sequence`, the segment stays open for salvage.
        """
        owner = (self._claim.receiver_id, self._claim.epoch)
        self._driver_log.once(
            lambda connection: seal_segment(
                connection, segment_id=segment_id, length=length, through=sequence, owner=owner, codecs=codecs
            )
        )

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        """Return where to read a partition from."""
        return self._driver_log.until_answered(
            "open a partition",
            lambda connection: open_partition(
                connection,
                receiver_id=self._claim.receiver_id,
                source=source,
                partition=partition,
                start_offset=start_offset,
            ),
            listener=self._listener,
        )

    @property
    def receiver_id(self) -> int:
        """Return the receiver's id."""
        return self._claim.receiver_id

    def all_of(self, source: str) -> Mapping[str, Position]:
        """Return the position of each partition of a source."""
        return self._driver_log.until_answered(
            "read the positions of a source",
            lambda connection: source_positions(connection, receiver_id=self._claim.receiver_id, source=source),
            listener=self._listener,
        )

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        """Remove positions."""
        self._driver_log.until_answered(
            "forget positions of a source",
            lambda connection: forget_partitions(
                connection, receiver_id=self._claim.receiver_id, source=source, partitions=partitions
            ),
            listener=self._listener,
        )

    def peers(self) -> Sequence[Peer]:
        """Return the receivers that read the stream now."""
        return self._driver_log.once(lambda connection: peers_of(connection, receiver_id=self._claim.receiver_id))

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Return those that the stream has received; without ``wait``, none if the driver log can't be asked now."""

        def statement(connection: sa.Connection) -> set[str]:
            return known_keys(connection, receiver_id=self._claim.receiver_id, keys=keys)

        if wait:
            return self._driver_log.until_answered("look up keys", statement, listener=self._listener)
        try:
            return self._driver_log.once(statement)
        except TRANSIENT:
            return set()

    def add_dead_letters(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Insert the rows of stored dead letters."""
        self._driver_log.until_answered(
            "record dead letters",
            lambda connection: add_dead_letters(
                connection, letters, receiver_id=self._claim.receiver_id, epoch=self._claim.epoch
            ),
            listener=self._listener,
        )
