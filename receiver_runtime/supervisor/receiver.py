"""Define ``Receiver``, which reads one source (R01 to R05). Its supervisor does everything else.

A receiver reads and hands records on. It makes no blocks, knows no driver log, and decides nothing about restarts
except to ask for one. Users write subclasses in packages of their own (``docs/how-to/custom-receiver.md``).

Two ways to hand records on:

- *Reliable*: ``store`` of many records returns when they are in a registered block; acknowledge the source then.
- *Unreliable*: ``store`` of one record, and ``store_buffered`` of many, return when the records are in the buffer of
  the block generator, which a graceful stop drains and a crash loses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from receiver_runtime.block_path.records import many_of, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.sources.source import SourceRule
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor
    from tracker_store.receivers.source_lag import Unread


NOT_ATTACHED = "No ReceiverSupervisor has been attached to the receiver yet. Use the receiver's methods after on_start."


class Receiver(ABC):
    """Read one source.

    A subclass declares ``schema`` or ``columns``, and implements ``on_start`` and ``on_stop``. A later version of it
    may add and leave out columns, but a column's name keeps its type for as long as the stream exists.
    """

    #: The records' columns as (name, Arrow type by name) …
    columns: ClassVar[Sequence[tuple[str, str]]] = ()
    #: … or as an Arrow schema, which then counts.
    schema: ClassVar[pa.Schema | None] = None
    #: The column of text or bytes that holds the record as it came, which ``Stream(records=…)`` parses. Forebay's own
    #: receivers leave it to their declarations.
    record_column: ClassVar[str] = ""
    #: Whether the sender sends again what was not acknowledged. A receiver that acknowledges after ``store`` returns
    #: says SENT_AGAIN: after a crash the sender must send again what was stored and not registered. A receiver whose
    #: answer depends on its source sets it in ``__init__``.
    source_rule: SourceRule | None = None
    #: False if it reads the same on every host: then Forebay may move it to spread receivers over hosts. A receiver of
    #: a user's own that does not say counts as bound, because it may read a local file or open a port of its host.
    is_bound_to_host: bool | None = None

    #: Whether it keeps its address while an operator pauses it, to tell its senders to wait. Then ``on_pause`` is
    #: called in place of ``on_stop``, also if it was not started, and ``on_stop`` where it ends while it is paused.
    keeps_address: ClassVar[bool] = False

    # A class attribute, so that a subclass's __init__ need not call this class's.
    _supervisor: AttachedSupervisor | None = None

    @property
    def record_schema(self) -> pa.Schema:
        """Return ``schema``, or ``columns`` as a schema. Raises ColumnsError for columns that no block can have."""
        return schema_of(self.columns) if self.schema is None else self.schema

    @abstractmethod
    def on_start(self) -> None:
        """Begin to receive. Must not block: start a thread. Called again after each restart.

        If it takes longer than ``receiver_start_timeout``, ``on_stop`` may run first. So take the lock that ``on_stop``
        takes, and begin only if ``is_stopped`` is false.
        """

    @abstractmethod
    def on_stop(self) -> None:
        """Stop receiving and release everything that ``on_start`` took; called once for each ``on_start``.

        On return every record that was read has been handed on, and none comes after.
        """

    def on_pause(self) -> None:
        """Stop receiving, and keep what senders see; ``on_start`` or ``on_stop`` follows. See ``keeps_address``.

        On return every record that was read has been handed on, and none comes after, as with ``on_stop``.
        """
        self.on_stop()

    @property
    def preferred_location(self) -> str | None:
        """Return the host to run on, if it matters. Placement follows it while an agent there has room.

        It is asked when the stream is applied, of a receiver that is made for that and never started, and again at each
        start; ``forebay.receivers`` shows it. If the host has no room, or no agent, until later, the receiver is moved
        there then.
        """
        return None

    def store(self, data: object) -> None:
        """Hand on one record, or many.

        Many (a ``RecordBatch``, ``Table``, ``list`` or iterator): one block; returns when it is registered, and raises
        if it can't be. One (anything else; a tuple or mapping if the schema has several columns): asynchronous, returns
        when it is in the buffer.

        Bytes are records that were serialised elsewhere: an Arrow IPC stream of the receiver's schema, which becomes
        one block of many records. If the receiver has a single column, of binary or text, ``bytes`` are one record of
        it instead, and only a ``pa.Buffer`` is a stream.

        Raises:
            RecordTypeError: a record does not fit the schema, or bytes are no Arrow IPC stream.
            EmptyBlockError: many records, and there are none: a block has at least one.
            GeneratorStateError: one record, and the receiver is stopping.
            DriverLogError: many records, and the driver log refused the block (for example of a fenced receiver).
        """
        path = self.supervisor.block_path
        many = many_of(data, self.record_schema)
        if many is None:
            path.push_single(data)
        else:
            path.push_and_report_block(many)

    def store_buffered(self, records: pa.RecordBatch | Sequence[object]) -> None:
        """Hand on many records as ``store`` does one: asynchronous, rate-limited, waiting while the buffer is full.

        They all go into one block (B03) if they fit into one (``max_block_bytes``) and no rate limit is set. Otherwise
        they are handed on in pieces: pieces that fit, or even pieces under a rate limit.
        """
        self.supervisor.block_path.push_buffered(records)

    def store_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Put aside records that can't be stored; return when they are durable and recorded.

        Letters with a ``peer`` that are over its budget are counted, and not kept.
        """
        self.supervisor.block_path.store_dead_letters(letters)

    def report_connected(self, where: str) -> None:
        """Report that the receiver is connected to its source: shown as its reason."""
        self.supervisor.report_connected(where)

    def report_listening(self, where: str) -> None:
        """Report that senders can connect to this address: shown as the receiver's reason."""
        self.supervisor.report_listening(where)

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """Report an error; receiving goes on."""
        self.supervisor.report_error(message, error)

    def report_degraded(self, what: str, reason: str | None) -> None:
        """Show operators that something of the source is not received, until it is (None); receiving goes on.

        ``forebay status``, the check of the stream's receivers in Dagster and the metrics show it, with the reason.

        Args:
            what: the kind of thing, by which it ends.
        """
        self.supervisor.report_degraded(what, reason)

    def report_note(self, what: str, text: str | None) -> None:
        """Show operators a text behind the receiver's reason, until it is taken away (None)."""
        self.supervisor.report_note(what, text)

    def report_unread(
        self, find: Callable[[], Mapping[tuple[str, str], Unread]], fetched: Callable[[], int] | None = None
    ) -> None:
        """Show operators how much the source has that the receiver has not read; call this between two reads.

        ``forebay status``, ``forebay.source_progress``, the status page, the metrics and Dagster show it.

        Args:
            find: returns what is unread in each place (source, partition) that the receiver reads, also where nothing
                is. It is called once a second at most, and less often if it takes long.
            fetched: returns how many records the source's client has fetched that are not handed on, if it says so.
        """
        self.supervisor.source_lag.look(find, fetched)

    def restart(self, message: str, error: BaseException | None = None, delay: float | None = None) -> None:
        """Ask for ``on_stop``, a pause and ``on_start``; return at once.

        Args:
            message: why, in the same words for the same reason (repeats are counted).
            delay: in seconds; None for the configured one, which grows with each failure in a row.
        """
        self.supervisor.restart_receiver(message, error, delay)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Ask to end for good; return at once. With an error the receiver is FAILED."""
        self.supervisor.stop(message, error)

    def is_started(self) -> bool:
        """Return whether it has been started and not stopped (R04)."""
        return self.supervisor.is_started()

    def is_stopped(self) -> bool:
        """Return whether it has been stopped (R04)."""
        return self.supervisor.is_stopped()

    @property
    def stream_id(self) -> int:
        """Return the id of the stream that it receives; -1 before it is attached."""
        return -1 if self._supervisor is None else self._supervisor.stream_id

    @property
    def supervisor(self) -> AttachedSupervisor:
        """Return the supervisor. Raises RuntimeError before there is one."""
        if self._supervisor is None:
            raise RuntimeError(NOT_ATTACHED)
        return self._supervisor

    def attach_supervisor(self, supervisor: AttachedSupervisor) -> None:
        """Attach the supervisor, which calls this once. Raises RuntimeError if there is one already."""
        if self._supervisor is not None:
            raise RuntimeError(
                "Make a new receiver for each supervisor: a ReceiverSupervisor has been attached to this one already."
            )
        self._supervisor = supervisor
