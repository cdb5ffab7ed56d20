"""Check what rows cost that no block can have, and that waiting for rows or for a disk ends, and leaves no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_path.block_handler import DeadLetter, EncodedBlock
from receiver_runtime.block_path.text_check import CheckedRows, RowsWaitError, TextCheck
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from tests.unit.receiver_runtime.rig import HandReceiver, batch, rig
from tracker_store.blocks.blocks import OffsetLink

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SECONDS = 30.0
MANY = 10_000


class Waiting(TextCheck):
    """Can't read rows at the first attempt."""

    waits = 1

    def check(self, batch: pa.RecordBatch) -> CheckedRows:
        if self.waits:
            self.waits -= 1
            raise RowsWaitError("the registry does not answer")
        return super().check(batch)


def typed() -> TypedRows:
    return TypedRows(Json("pieces BIGINT"), arrow_schema(SocketText.columns), SocketText.record_column)


def test_letters_of_a_block_count_with_what_they_take_in_memory() -> None:
    letters = [DeadLetter(DeadLetterReason.INVALID_TEXT, b"12345")] * 3
    assert EncodedBlock((), 0, letters=letters).nbytes > 3 * (366 + 5)


def test_a_block_of_bad_rows_is_not_held_ahead(tmp_path: Path) -> None:
    with rig(tmp_path, HandReceiver()) as made:
        pusher = made.supervisor.block_path.pusher
        bad = pa.record_batch([pa.array([b"\xff"] * (MANY + 1), pa.binary()).view(pa.string())], names=["value"])
        assert pusher.encode([bad]) is None
        encoded = pusher.encode([bad.slice(1)])
        assert encoded is not None
        assert len(encoded.letters) == MANY


def test_one_reason_of_many_letters_is_held_once() -> None:
    check = typed()
    checked = check.check(check.rows_of([b'{"pieces": "%d"}' % number for number in range(9)]))
    assert len(checked.letters) == 9
    assert len({id(letter.why) for letter in checked.letters}) == 1


def test_no_hindrance_is_left_when_rows_that_waited_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver, row_check=Waiting(receiver.record_schema)) as made:
        path = made.supervisor.block_path
        path.receiver_starts()
        hindered: list[bool] = []

        def pause(_: float) -> bool:
            hindered.append(bool(made.supervisor.status._hindrances))
            return True

        monkeypatch.setattr(path.writer, "pause", pause)
        stored = path.push_linked(batch("a"), [OffsetLink("topic", "0", 0, 0, 1)])
        assert stored is not None
        stored.result(SECONDS)
        assert hindered == [True]
        assert not made.supervisor.status._hindrances
        assert made.values() == ["a"]
