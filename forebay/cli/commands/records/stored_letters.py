"""Read the records of a row of dead letters from the block store, for the commands that show, save or replay them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.failures import CommandError
from orchestration.batches.attached_store import open_attached_store
from orchestration.declarations.settings import Settings
from receiver_runtime.block_path.text_check import RowsWaitError
from receiver_runtime.block_store.frames.columns import arrow_schema, union
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.block_store.frames.reading import letters_of
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.declared import KEY
from receiver_runtime.sources.records.registry import RecordsError, parse_records
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from tracker_store.blocks.dead_letters import find_dead_letter, read_dead_letter_row
from tracker_store.blocks.stream_schemas import schemas_of_stream
from tracker_store.host.terminal_text import escaped
from tracker_store.receivers.receivers import NoSuchReceiverError, get_receiver

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from forebay.cli.terminal.console import Console
    from receiver_runtime.block_store.frames.columns import Columns
    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.source import Source
    from tracker_store.blocks.dead_letters import DeadLetterRow

APPLICATION = "forebay dead-letters"
#: Reasons with which a typed stream puts a whole record aside.
_PARSED = frozenset({DeadLetterReason.DOES_NOT_FIT.label, DeadLetterReason.UNPARSABLE.label})
# Records that are read together: a reader that asks another system about records asks about few of them at a time.
_READ_TOGETHER = 50
SHOWN_BYTES = 2_000  # bytes of a letter that are shown; `--all` of `show` shows all


def read_letters(console: Console, dead_letter_id: int) -> tuple[DeadLetterRow, list[bytes]]:
    """Return a row and its records from the block store; print why that can't be done, and exit with 1."""
    with driver_log(console, application_name=APPLICATION) as connection:
        return find_letters(connection, dead_letter_id)


def find_letters(connection: sa.Connection, dead_letter_id: int) -> tuple[DeadLetterRow, list[bytes]]:
    """Return a row and its records from the block store. Raises CommandError."""
    settings = Settings()
    row = read_dead_letter_row(connection, dead_letter_id)
    place = find_dead_letter(connection, dead_letter_id)
    if row is None or place is None:
        message = f"There is no dead letter {dead_letter_id}: it was cleaned up, or never there."
        raise CommandError(message)
    path, handle = place
    try:
        store = open_attached_store(connection, settings.block_store_roots)
        frame = store.read_frame(path, handle.offset, handle.length, handle.crc32c)
        return row, letters_of(frame, path, handle.offset, BlockKeys(settings.block_key_references))
    except (BlockStoreError, OSError) as error:
        raise CommandError(str(error)) from error


@dataclass(frozen=True, slots=True)
class LetterReader:
    """Judge a row's letters: by the parser of its source, and by the reader of its stream, if that is typed."""

    reason: str
    source: Source
    records: RecordReader | None

    def whys(self, letters: Sequence[bytes]) -> list[str | None]:
        """Return for each letter why it does not fit; None: nothing here refuses it."""
        try:
            refused = self.source.refusals(self.reason, letters)
        except SourceError as error:
            return [f"it can't be read here: {error}"] * len(letters)
        found = [None] * len(letters) if self.records is None else whys(self.records, letters)
        return [refused.get(place, why) for place, why in enumerate(found)]

    def shown(self, letter: bytes) -> bytes:
        """Return what people are shown of a letter: the record, with its key if that is parsed too."""
        return self.records.shown(letter) if isinstance(self.records, _RowReader) else letter


def letter_reader(connection: sa.Connection, row: DeadLetterRow) -> LetterReader | None:
    """Return what judges a row's letters; None where nothing does."""
    if row.reason not in _PARSED:
        return None
    try:
        source = parse_source(get_receiver(connection, row.receiver_id).source)
    except (NoSuchReceiverError, SourceError):
        return None
    return LetterReader(row.reason, source, _stream_reader(connection, row))


def _stream_reader(connection: sa.Connection, row: DeadLetterRow) -> RecordReader | None:
    """Return what parses a row's records, as its stream is declared now; None where nothing parses them.

    A record of another stream than a typed one was put aside by its source, and one with another reason is no whole
    record, or not the record alone.
    """
    try:
        receiver = get_receiver(connection, row.receiver_id)
        records = None if receiver.records is None else parse_records(receiver.records)
        source = None if records is None or records.key is None else parse_source(receiver.source)
    except (NoSuchReceiverError, RecordsError, SourceError):
        return None
    if records is None:
        return None
    if any(part.columns_grow for part in records.parts):
        stored = union(*(one.columns for one in schemas_of_stream(connection, receiver.stream_id)))
    else:
        stored = ()
    if source is not None:
        return _RowReader(records, source, stored)
    reader = records.load_reader()(records)
    assert isinstance(reader, RecordReader)
    if records.columns_grow:
        # Nothing is registered here: it only says what would fit.
        reader.grow(lambda: {name.lower(): kind for name, kind in stored}, lambda _: None)
    return reader


class _RowReader(RecordReader):
    """Read dead letters that are whole rows of their source, because the keys of its records are parsed too."""

    def __init__(self, records: Records, source: Source, stored: Columns) -> None:
        super().__init__(records)
        self._rows = TypedRows(records, arrow_schema(source.columns), source.record_column)
        self._rows.grow(lambda: stored, lambda _: None)
        self._record = source.record_column

    def read(self, values: pa.BinaryArray) -> Parsed:
        """Return which letters do not fit, and the others as rows of a block."""
        checked = self._rows.check(self._rows.rows_of(values.to_pylist()))
        rows = () if checked.invalid is None else np.flatnonzero(checked.invalid).tolist()
        faults = [Fault(row, letter.reason, letter.why) for row, letter in zip(rows, checked.letters, strict=True)]
        return Parsed(checked.batch, faults)

    def shown(self, letter: bytes) -> bytes:
        """Return the key and the record of a letter."""
        [row] = self._rows.rows_of([letter]).select([KEY, self._record]).to_pylist()
        named = ((name, row[column]) for name, column in (("key", KEY), ("record", self._record)))
        return b", ".join(name.encode() + b" " + (b"null" if value is None else bytes(value)) for name, value in named)


def whys(reader: RecordReader, records: Sequence[bytes]) -> list[str | None]:
    """Return for each record why it does not fit; None: it fits by now."""
    found: list[str | None] = []
    for first in range(0, len(records), _READ_TOGETHER):
        some = records[first : first + _READ_TOGETHER]
        try:
            parsed = reader.read(pa.array(some, pa.binary()))
        except RowsWaitError as error:
            return [*found, *[f"it can't be read now: {error}"] * (len(records) - first)]
        why = {fault.row: fault.why for fault in parsed.faults}
        found += [why.get(row) for row in range(len(some))]
    return found


def as_text(data: bytes, *, most: int | None) -> str:
    """Return at most `most` bytes on one line, with escapes for bytes that are no text, and for control characters."""
    left = 0 if most is None else max(0, len(data) - most)
    text = escaped(data[: len(data) - left].decode(errors="backslashreplace").replace("\n", "\\n"))
    return text + (f" … and {left:,} bytes (--all shows them)" if left else "")
