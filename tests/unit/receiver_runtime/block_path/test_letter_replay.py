"""Check that a replay of dead letters keeps no receiver from starting, and that no row keeps another from being parsed.

What a real process stores is in `tests/integration/cli/commands/records/test_typed_letters.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.dead_letters.letter_replay import LetterReplay
from receiver_runtime.block_path.text_check import RowsWaitError, TextCheck
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockKeyError, InvalidFrameError
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tests.unit.receiver_runtime.receivers.test_keyed_hand_over import KeyedBlockLog
from tests.unit.receiver_runtime.rig import HandReceiver, Rig, rig
from tracker_store.blocks.dead_letters import WantedLetters
from tracker_store.connection.errors import DuplicateKeysError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Refusals = Callable[[str, Sequence[bytes]], Mapping[int, str]]


class Parser(TextCheck):
    """A typed stream's: of a record that has its name, it raises the failure."""

    def __init__(self) -> None:
        super().__init__(HandReceiver().record_schema)
        self.failures: dict[bytes, Exception] = {}
        self.calls = 0

    def rows_of(self, records: Sequence[bytes]) -> pa.RecordBatch:
        self.calls += 1
        for record in records:
            if record in self.failures:
                raise self.failures[record]
        return pa.record_batch([[record.decode() for record in records]], names=["value"])


class Replay:
    """The rows of a receiver that has not started, each of one record, and what a replay does with them."""

    def __init__(self, made: Rig, parser: Parser, refusals: Refusals = lambda *_: {}) -> None:
        self.made = made
        self.refusals = refusals
        self.parser = parser
        self.store: Any = made.store
        self.wanted: list[WantedLetters] = []
        #: What was left of each row that was ended.
        self.ended: dict[int, Sequence[int] | None] = {}
        self.errors: list[str] = []

    def add(self, *records: bytes) -> None:
        for record in records:
            self.made.supervisor.block_path.store_dead_letters([DeadLetter(DeadLetterReason.DOES_NOT_FIT, record)])
            at = self.made.rows.dead_letters[-1].handle
            self.wanted.append(WantedLetters(len(self.wanted) + 1, self.made.rows.paths[at.segment_id], at, None))

    def run(self, *, starts_ending: int = 1000) -> None:
        """Replay all; the receiver is to end from look `starts_ending` on."""
        looks = iter(range(1, 1001))

        def end(dead_letter_id: int, left: Sequence[int] | None, *, to: str) -> None:
            assert to == "lines"
            self.ended[dead_letter_id] = left

        context: Any = SimpleNamespace(
            driver_log=SimpleNamespace(wanted_letters=lambda: self.wanted, end_letter_replay=end),
            reporter=SimpleNamespace(error=lambda said, error: self.errors.append(f"{said}: {error}")),
            rows=self.parser,
            stream_name="lines",
        )
        path = self.made.supervisor.block_path
        LetterReplay(self.store, BlockKeys(), self.refusals).run(context, path, lambda: next(looks) >= starts_ending)

    def values(self) -> list[str]:
        return self.made.values()


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    parser = Parser()
    with rig(tmp_path, HandReceiver(), start=False, log=KeyedBlockLog(), row_check=parser) as made:
        yield Replay(made, parser)


def test_on_a_full_disk_it_does_not_wait_and_the_rows_stay_wanted(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    monkeypatch.setattr(replay.made.supervisor.block_path.writer, "pause", pause)
    replay.add(b"a", b"b")
    replay.made.files.create_faults = 1000
    replay.run()
    assert (replay.ended, pauses) == ({}, [])
    assert "the next start tries it" in replay.errors[-1]


def test_a_row_that_can_not_be_parsed_is_reported_and_the_next_ones_are_stored(replay: Replay) -> None:
    replay.add(b"odd", b"b")
    replay.parser.failures[b"odd"] = ValueError("no parser expects this")
    replay.run()
    assert (replay.ended, replay.values()) == ({1: [1], 2: []}, ["b"])
    [said] = replay.errors
    assert "dead letter 1" in said
    assert "no parser expects this" in said


@pytest.mark.parametrize("failure", [RowsWaitError("the registry is away"), DuplicateKeysError("a"), OSError("odd")])
def test_only_what_is_wrong_with_one_row_ends_it(replay: Replay, failure: Exception) -> None:
    replay.add(b"a", b"b")
    replay.parser.failures[b"a"] = failure
    replay.run()
    assert replay.ended == ({1: [1], 2: []} if isinstance(failure, OSError) else {})
    assert len(replay.errors) == 1


@pytest.mark.parametrize("failure", [BlockKeyError("k", "its key is not here"), InvalidFrameError("torn")])
def test_a_row_whose_key_is_missing_stays_wanted_and_a_torn_one_is_ended(replay: Replay, failure: Exception) -> None:
    replay.add(b"a", b"b")
    bad, read = replay.wanted[0].handle.offset, replay.made.store.read_frame

    def read_frame(path: str, offset: int, length: int, crc32c: int) -> object:
        if offset == bad:
            raise failure
        return read(path, offset, length, crc32c)

    replay.store = SimpleNamespace(read_frame=read_frame)
    replay.run()
    assert replay.ended == ({2: []} if isinstance(failure, BlockKeyError) else {1: None, 2: []})
    assert replay.values() == ["b"]
    assert len(replay.errors) == 1


def test_where_the_receiver_is_to_end_no_row_is_begun(replay: Replay) -> None:
    replay.add(b"a")
    replay.run(starts_ending=1)
    assert (replay.ended, replay.parser.calls) == ({}, 0)


def test_what_the_parser_of_the_source_refuses_stays_and_its_neighbour_is_stored(tmp_path: Path) -> None:
    asked: list[str] = []

    def refusals(reason: str, letters: Sequence[bytes]) -> dict[int, str]:
        asked.append(reason)
        return {place: "no message" for place, letter in enumerate(letters) if letter == b"bad"}

    parser = Parser()
    with rig(tmp_path, HandReceiver(), start=False, log=KeyedBlockLog(), row_check=parser) as made:
        replay = Replay(made, parser, refusals)
        replay.add(b"bad", b"good")
        replay.run()
        assert (replay.ended, replay.values()) == ({1: [1], 2: []}, ["good"])
    assert asked == ["does_not_fit"] * 2
