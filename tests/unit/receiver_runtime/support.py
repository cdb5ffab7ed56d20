"""Share with the data plane's tests a clock to move by hand, files that fail on demand, and a driver log in memory."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from receiver_runtime.block_path.registration.block_log import BlockLog
from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog
from receiver_runtime.block_store.frames.files import Files
from receiver_runtime.block_store.frames.frame import (
    DeadLetterReason,
    EncodedFrame,
    FrameFields,
    FrameKind,
    SourceRule,
    encode_frame,
)
from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.watching.clock import Clock
from tests.support import polling
from tests.support.receivers.frame_fields import block_fields
from tracker_store.blocks.blocks import AddOutcome, AddResult, BlockHandle, Claim, ControlResponse, NewBlock
from tracker_store.connection.errors import OutcomeUnknownError
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import PurePath

    from receiver_runtime.block_store.frames.encryption import FrameEncryptor
    from receiver_runtime.block_store.stores.interface import BlockStore
    from tracker_store.blocks.blocks import ChannelMove, Position
    from tracker_store.blocks.channels import ChannelKey
    from tracker_store.blocks.dead_letters import StoredDeadLetter
    from tracker_store.blocks.segments import CodecSum
    from tracker_store.blocks.source_positions import Peer

DEADLINE_SECONDS = 60.0


def eventually(predicate: Callable[[], object], what: str = "it") -> None:
    """Poll until `predicate` holds; fail the test after a deadline that a correct program never reaches."""
    polling.eventually(predicate, what, seconds=DEADLINE_SECONDS, step=0.002)


def reaches(figure: Callable[[], int], least: int) -> Callable[[], bool]:
    """Return a predicate that says, each time it is called, whether `figure` is at least `least`."""
    return lambda: figure() >= least


class ManualClock(Clock):
    """A clock on which time passes when a test says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 1000.0
        self._waiting: dict[int, tuple[threading.Condition, int]] = {}

    def monotonic(self) -> float:
        with self._lock:
            return self._now

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        if seconds is not None and seconds <= 0:
            return
        with self._lock:
            _, waiters = self._waiting.get(id(condition), (condition, 0))
            self._waiting[id(condition)] = (condition, waiters + 1)
        # The short real timeout covers a clock that moves between the look at it and this wait.
        condition.wait(0.02)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds
            waiting = [condition for condition, _ in self._waiting.values()]
        for condition in waiting:
            with condition:
                condition.notify_all()


class PaidClock(ManualClock):
    """A clock that moves only while one thread waits, by exactly the time waited for, however busy the machine is.

    The thread is the one that calls `pays`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._payer: int | None = None

    def pays(self) -> None:
        self._payer = threading.get_ident()

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        if threading.get_ident() != self._payer or seconds is None:
            super().wait_on(condition, seconds)
        elif seconds > 0:
            with self._lock:
                # At least a microsecond: a smaller rest of a rounding would not move the clock.
                self._now += max(seconds, 1e-6)
            # Let other threads run, as a wait does.
            condition.wait(0.001)


def advance_until(clock: ManualClock, predicate: Callable[[], object], *, step: float = 0.05) -> float:
    """Let time pass in small steps until `predicate` holds; return the seconds that passed on the clock."""
    start = clock.monotonic()

    def step_on() -> bool:
        if predicate():
            return True
        clock.advance(step)
        return False

    eventually(step_on)
    return clock.monotonic() - start


class FaultyFiles(Files):
    """The operating system, but writes, syncs and creates fail, or writes are short, when a test says so."""

    def __init__(self) -> None:
        self.write_faults: list[str] = []
        self.sync_faults = 0
        self.create_faults = 0
        self.synced_directories: list[str] = []
        self.syncs = 0

    def create(self, path: PurePath, *, dir_fd: int | None = None) -> int:
        if self.create_faults:
            self.create_faults -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path, dir_fd=dir_fd)

    def write(self, fd: int, buffers: Sequence[Any]) -> int:
        fault = self.write_faults.pop(0) if self.write_faults else ""
        if fault == "error":
            raise OSError(errno.EIO, "Input/output error")
        if fault == "short":
            whole = b"".join(bytes(buffer) for buffer in buffers)
            return super().write(fd, [whole[: len(whole) // 2]])
        return super().write(fd, buffers)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.sync_faults:
            self.sync_faults -= 1
            raise OSError(errno.EIO, "Input/output error")
        super().sync(fd)

    def sync_directory(self, path: PurePath, *, dir_fd: int | None = None) -> None:
        root = Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        self.synced_directories.append(str(root / path))
        super().sync_directory(path, dir_fd=dir_fd)


class MemoryDriverLog(ReceiverDriverLog):
    """One epoch's rows of segments and dead letters in memory; a test may add positions and keys."""

    def __init__(
        self,
        claim: Claim | None = None,
        *,
        positions: ReceiverDriverLog | None = None,
        log: MemoryBlockLog | None = None,
    ) -> None:
        self.claim = claim or Claim(7, 9, 0)
        self._positions = positions
        self._log = log
        self.paths: dict[int, str] = {}
        self.lengths: dict[int, int] = {}
        self.codecs: dict[int, Sequence[CodecSum]] = {}
        self.rules: dict[int, str] = {}
        self.dead_letters: list[StoredDeadLetter] = []
        self.dead_letter_calls = 0
        self.fail_seals = False

    def open_segment(self, path: str, source_rule: str) -> int:
        assert path not in self.paths.values()
        segment_id = len(self.paths) + 1
        self.paths[segment_id] = path
        self.rules[segment_id] = source_rule
        return segment_id

    def seal_segment(self, segment_id: int, length: int, sequence: int, codecs: Sequence[CodecSum]) -> None:
        del sequence
        if self.fail_seals:
            raise ConnectionError("away")
        self.lengths[segment_id] = length
        self.codecs[segment_id] = codecs

    def add_dead_letters(self, letters: Sequence[StoredDeadLetter]) -> None:
        self.dead_letter_calls += 1
        self.dead_letters += letters

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        assert self._positions is not None
        return self._positions.open_partition(source, partition, start_offset)

    def all_of(self, source: str) -> Mapping[str, Position]:
        assert self._positions is not None
        return self._positions.all_of(source)

    def peers(self) -> Sequence[Peer]:
        assert self._positions is not None
        return self._positions.peers()

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        assert self._log is not None
        return self._log.known_keys(keys, wait=wait)

    def channel_positions(self, channels: Sequence[ChannelKey], *, wait: bool = True) -> list[int]:
        assert self._log is not None
        return self._log.channel_positions(channels, wait=wait)

    def move_channels(self, moves: Sequence[ChannelMove]) -> bool:
        assert self._log is not None
        return self._log.move_channels(moves)


def make_log(
    store: BlockStore,
    rows: ReceiverDriverLog | None = None,
    *,
    source_rule: SourceRule = SourceRule.NOT_SENT_AGAIN,
    clock: Clock | None = None,
    **settings: object,
) -> WriteAheadLog:
    """Return a write-ahead log of which nothing is registered yet; settings may be smaller than users' may."""
    return WriteAheadLog(
        store,
        MemoryDriverLog() if rows is None else rows,
        source_rule=source_rule,
        registered_through=RegisteredThrough(),
        settings=ReceiverSettings.model_construct(**settings),  # type: ignore[arg-type]
        clock=clock,
    )


class MemoryBlockLog(BlockLog):
    """The chain of blocks in memory, as `add_block` keeps it: all or nothing per receiver, outcomes in order.

    A test sets these attributes: `lose_answers` (commit, but don't answer), `away` (neither commit nor answer),
    `say_again`, `fence` (receiver ids that another process has claimed), `refuse_call` (raise for a call with these
    receivers), `offset_conflicts` (how many groups with links to refuse), `tells_newest` (a heartbeat's answer has the
    newest sequence, as the real one's has).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.chains: dict[int, list[NewBlock]] = {}
        self.calls: list[list[NewBlock]] = []
        self.heartbeats = 0
        self.lose_answers = 0
        self.away = False
        self.say_again = 0
        self.fence: set[int] = set()
        self.offset_conflicts = 0
        self.refuse_call: Callable[[Sequence[NewBlock]], Exception | None] = lambda _: None
        self.heartbeat_error: Exception | None = None
        self.tells_newest = False
        self.desired: dict[int, DesiredState] = {}
        self.rates: dict[int, float] = {}
        self.assignments: dict[int, int] = {}
        self.server: str | None = None

    def response(self, receiver_id: int) -> ControlResponse:
        return ControlResponse(
            receiver_id,
            self.rates.get(receiver_id),
            self.desired.get(receiver_id, DesiredState.RUNNING),
            self.assignments.get(receiver_id, 1),
            server=self.server,
        )

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        raise NotImplementedError

    def channel_positions(self, channels: Sequence[ChannelKey], *, wait: bool = True) -> list[int]:
        raise NotImplementedError

    def move_channels(self, moves: Sequence[ChannelMove]) -> bool:
        raise NotImplementedError

    def chain(self, receiver_id: int) -> list[NewBlock]:
        with self._lock:
            return list(self.chains.get(receiver_id, []))

    def add_blocks(self, blocks: Sequence[NewBlock]) -> list[AddResult]:
        with self._lock:
            # Read `away` before the call becomes visible: a test that sees the call may make the log available again.
            away = self.away
            self.calls.append(list(blocks))
            if away:
                raise OutcomeUnknownError("the server is away")
            if (error := self.refuse_call(blocks)) is not None:
                raise error
            groups: dict[int, list[NewBlock]] = {}
            for block in blocks:
                groups.setdefault(block.receiver_id, []).append(block)
            results = [self._add(receiver_id, group) for receiver_id, group in sorted(groups.items())]
            if self.lose_answers:
                self.lose_answers -= 1
                raise OutcomeUnknownError("the answer was lost")
            return results

    def _add(self, receiver_id: int, group: list[NewBlock]) -> AddResult:
        chain = self.chains.setdefault(receiver_id, [])
        newest = chain[-1].sequence if chain else 0
        detail = None
        if all(block in chain for block in group):
            outcome = AddOutcome.ALREADY_ADDED
        elif receiver_id in self.fence:
            outcome, detail = AddOutcome.FENCED, "epoch 2 holds it"
        elif group[0].sequence <= newest and chain:
            outcome, detail = AddOutcome.CONFLICT, "taken"
        elif self.offset_conflicts and any(block.links for block in group):
            self.offset_conflicts -= 1
            outcome, detail = AddOutcome.OFFSET_CONFLICT, "the log is at 7"
        elif chain and group[0].sequence != newest + 1:
            outcome, detail = AddOutcome.GAP, "missing"
        elif self.say_again:
            self.say_again -= 1
            outcome = AddOutcome.AGAIN
        else:
            chain.extend(group)
            outcome = AddOutcome.ADDED
        return AddResult(receiver_id, outcome, detail, self.response(receiver_id))

    def heartbeat(self, receiver_ids: Sequence[int]) -> list[ControlResponse]:
        with self._lock:
            if self.heartbeat_error is not None:
                raise self.heartbeat_error
            if self.away:
                raise OutcomeUnknownError("the server is away")
            responses = [self.response(receiver_id) for receiver_id in receiver_ids]
            if self.tells_newest:
                responses = [
                    replace(
                        item,
                        newest_sequence=max((b.sequence for b in self.chains.get(item.receiver_id, [])), default=0),
                    )
                    for item in responses
                ]
            # Count last: a test that sees the count may change the response.
            self.heartbeats += 1
            return responses


def block(sequence: int, *, receiver_id: int = 1, epoch: int = 1, records: int = 1) -> NewBlock:
    """Return a stored block that waits to be registered."""
    return NewBlock(receiver_id, epoch, sequence, records, 100, BlockHandle(1, sequence * 100, 100, sequence))


def frame(
    payload: bytes = b"payload",
    *,
    sequence: int = 1,
    receiver_id: int = 7,
    epoch: int = 9,
    encryptor: FrameEncryptor | None = None,
    mark: int = 1,
) -> EncodedFrame:
    """Encode a block's frame; the payload need not be Arrow if nothing decodes it."""
    return encode_frame(
        payload, block_fields(receiver_id=receiver_id, epoch=epoch, sequence=sequence, mark=mark), encryptor=encryptor
    )


def dead_letter_frame(data: bytes, *, part: int = 0, mark: int = 1) -> EncodedFrame:
    """Encode a dead letter's frame."""
    return encode_frame(
        data,
        FrameFields(
            kind=FrameKind.DEAD_LETTER,
            source_rule=SourceRule.NOT_SENT_AGAIN,
            receiver_id=7,
            epoch=9,
            sequence=3,
            registered_through=2,
            records=1,
            reason=DeadLetterReason.RECORD_TOO_LARGE,
            part=part,
            mark=mark,
        ),
    )


def whole(encoded: EncodedFrame) -> bytes:
    """Return the frame's bytes as the file has them."""
    return b"".join((encoded.header, encoded.payload.to_pybytes()))
