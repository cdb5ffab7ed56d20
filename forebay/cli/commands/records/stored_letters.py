"""Read the records of a row of dead letters from the block store, for the commands that show, save or replay them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from forebay.cli.instance.database import driver_log
from orchestration.batches.attached_store import open_attached_store
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.reading import letters_of
from tracker_store.blocks.dead_letters import find_dead_letter, read_dead_letter_row
from tracker_store.host.terminal_text import escaped

if TYPE_CHECKING:
    from forebay.cli.terminal.console import Console
    from tracker_store.blocks.dead_letters import DeadLetterRow

APPLICATION = "forebay dead-letters"
SHOWN_BYTES = 2_000  # bytes of a letter that are shown; `--all` of `show` shows all


def read_letters(console: Console, dead_letter_id: int) -> tuple[DeadLetterRow, list[bytes]]:
    """Return a row and its records from the block store; print why that can't be done, and exit with 1."""
    settings = Settings()
    with driver_log(console, application_name=APPLICATION) as connection:
        row = read_dead_letter_row(connection, dead_letter_id)
        place = find_dead_letter(connection, dead_letter_id)
        if row is None or place is None:
            console.print(f"There is no dead letter {dead_letter_id}: it was cleaned up, or never there.")
            raise typer.Exit(1)
        path, handle = place
        try:
            store = open_attached_store(connection, settings.block_store_roots)
            frame = store.read_frame(path, handle.offset, handle.length, handle.crc32c)
            return row, letters_of(frame, path, handle.offset, BlockKeys(settings.block_key_references))
        except (BlockStoreError, OSError) as error:
            console.print(str(error), style="bold red", markup=False)
            raise typer.Exit(1) from error


def as_text(data: bytes, *, most: int | None) -> str:
    """Return at most `most` bytes on one line, with escapes for bytes that are no text, and for control characters."""
    left = 0 if most is None else max(0, len(data) - most)
    text = escaped(data[: len(data) - left].decode(errors="backslashreplace").replace("\n", "\\n"))
    return text + (f" … and {left:,} bytes (--all shows them)" if left else "")
