"""The driver log as the data plane calls it, apart from the registrar: each call is made until it is answered.

Owns the waiting: a driver log that is away delays the caller, with bounded backoff, and is no error of the caller's.
What it must never do is wait on after the process was told to give up (``give_up``), or try again what the driver log
refuses for good.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from receiver_runtime.backoff import Backoff
from receiver_runtime.clock import Clock, SystemClock
from receiver_runtime.progress import Progress
from tracker_store.blocks import known_keys, open_partition
from tracker_store.dead_letters import add_dead_letters
from tracker_store.engine import connect
from tracker_store.errors import TRANSIENT
from tracker_store.segments import open_segment, seal_segment
from tracker_store.source_positions import forget_partitions, peers_of, source_positions
from tracker_store.until_answered import until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa

    from tracker_store.blocks import Claim, Position
    from tracker_store.dead_letters import StoredDeadLetter
    from tracker_store.source_positions import Peer

_log = structlog.get_logger(__name__)

T = TypeVar("T")

FIRST_DELAY = 0.1
LONGEST_DELAY = 2.0

#: A connection that was cut is healed in less; what lasts longer is told to operators.
TELL_AFTER = 1.0


class GivenUpError(Exception):
    """The process is ending at once, so this call to the driver log was not made again. Nothing to do."""


class OutageListener(Protocol):
    """Who is told that something waits for the driver log. Both return at once."""

    def on_driver_log_away(self, what: str, error: Exception) -> None:
        """``what`` ("register blocks") has waited for ``TELL_AFTER`` seconds, and goes on waiting."""
        ...

    def on_driver_log_back(self, what: str, seconds: float) -> None:
        """What was told to wait has been answered, after so many seconds."""
        ...


class DriverLog:
    """Calls on the driver log that are made until they are answered. Safe from any thread.

    Only statements that may be repeated belong here: each of them changes nothing when it was already done.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None = None,
        progress: Progress | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """`progress`: told of each call that failed. `on_answer`: called for each one that was answered."""
        self._engine = engine
        self._progress = progress or Progress()
        self._on_answer = on_answer
        self._clock = clock or SystemClock()
        self._wakened = threading.Condition()
        self._gave_up = False

    def give_up(self) -> None:
        """End every wait, now and later, by GivenUpError."""
        with self._wakened:
            self._gave_up = True
            self._wakened.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait between two tries of something else. Raises GivenUpError as soon as the process is ending at once."""
        self._wait(seconds)
        with self._wakened:
            if self._gave_up:
                raise GivenUpError(GivenUpError.__doc__)

    def once(self, statement: Callable[[sa.Connection], T]) -> T:
        """Make a call once. Raises what it raises, DriverLogUnavailableError where no connection can be had."""
        with connect(self._engine) as connection:
            return statement(connection)

    def until_answered(
        self, what: str, statement: Callable[[sa.Connection], T], *, listener: OutageListener | None = None
    ) -> T:
        """Make a call, again and again while the driver log is away; returns the answer.

        Args:
            what: for people, as "open a segment".
            listener: told when the answer takes long, and then when it has come.

        Raises:
            GivenUpError: the process is ending at once.
            Exception: what the driver log refuses for good.
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
        """Returns early when the process is told to give up."""
        deadline = self._clock.monotonic() + seconds
        with self._wakened:
            while not self._gave_up and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(self._wakened, left)


class DeadLetterRows(Protocol):
    """The rows of dead letters in the driver log."""

    def add_dead_letters(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Insert the rows of stored dead letters by one statement, in order; returns when they are there."""
        ...


class SourcePositions(Protocol):
    """The positions of a stream's source partitions in the driver log."""

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        """Where to read a partition from; before its first read that is ``start_offset``, put down as its origin."""
        ...

    def all_of(self, source: str) -> Mapping[str, Position]:
        """Where each partition of a source stands that the stream has read."""
        ...

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        """Nobody will read these again: take their positions away, once their blocks are gone."""
        ...

    def peers(self) -> Sequence[Peer]:
        """Who reads the stream now, this receiver among them. Asked once: raises where the driver log is away."""
        ...

    @property
    def receiver_id(self) -> int:
        """Whose these are."""
        ...


class KnownKeys(Protocol):
    """The idempotency keys of a stream's records in the driver log."""

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Which of them the stream has received within its window; without ``wait`` none, where that can't be asked."""
        ...


class ReceiverDriverLog:
    """The rows that one epoch of one receiver writes besides its blocks."""

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
        """From now on, tell this listener of calls that wait."""
        self._listener = listener

    def open_segment(self, path: str, source_rule: str) -> int:
        """The segment's row, before its file; returns its id."""
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

    def seal_segment(self, segment_id: int, length: int, sequence: int) -> None:
        """Record the segment's final length; tried once: an unsealed segment is only asked for again.

        A driver log that lost its newest block, `sequence`, leaves it open for salvage.
        """
        owner = (self._claim.receiver_id, self._claim.epoch)
        self._driver_log.once(
            lambda connection: seal_segment(
                connection, segment_id=segment_id, length=length, through=sequence, owner=owner
            )
        )

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        """Where to read a partition from."""
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
        """Of the receiver."""
        return self._claim.receiver_id

    def all_of(self, source: str) -> Mapping[str, Position]:
        """Where each partition of a source stands."""
        return self._driver_log.until_answered(
            "read the positions of a source",
            lambda connection: source_positions(connection, receiver_id=self._claim.receiver_id, source=source),
            listener=self._listener,
        )

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        """Take positions away."""
        self._driver_log.until_answered(
            "forget positions of a source",
            lambda connection: forget_partitions(
                connection, receiver_id=self._claim.receiver_id, source=source, partitions=partitions
            ),
            listener=self._listener,
        )

    def peers(self) -> Sequence[Peer]:
        """Who reads the stream now."""
        return self._driver_log.once(lambda connection: peers_of(connection, receiver_id=self._claim.receiver_id))

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Which of them the stream has received; without ``wait`` none, where that can't be asked just now."""

        def statement(connection: sa.Connection) -> set[str]:
            return known_keys(connection, receiver_id=self._claim.receiver_id, keys=keys)

        if wait:
            return self._driver_log.until_answered("look up keys", statement, listener=self._listener)
        try:
            return self._driver_log.once(statement)
        except TRANSIENT:
            return set()

    def add_dead_letters(self, letters: Sequence[StoredDeadLetter]) -> None:
        """The rows of stored dead letters."""
        self._driver_log.until_answered(
            "record dead letters",
            lambda connection: add_dead_letters(
                connection, letters, receiver_id=self._claim.receiver_id, epoch=self._claim.epoch
            ),
            listener=self._listener,
        )
