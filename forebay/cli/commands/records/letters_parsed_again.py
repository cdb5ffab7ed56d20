"""Have dead letters of typed streams parsed again by their receivers: ask for it, restart them, and wait for the rows.

A receiver does it when it starts, so what is asked for is done at its next start whatever becomes of this command. It
asks only for rows with a record that fits.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from forebay.cli.commands.records.stored_letters import SHOWN_BYTES, as_text
from forebay.cli.terminal.failures import CommandError
from tracker_store.blocks.dead_letters import read_dead_letter_row, want_replay
from tracker_store.host.terminal_text import escaped
from tracker_store.receivers.receivers import ReceiverStoppedError, placements, restart_receivers
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import sqlalchemy as sa

    from forebay.cli.commands.records.stored_letters import LetterReader
    from forebay.cli.terminal.console import Console
    from tracker_store.blocks.dead_letters import DeadLetterRow

_START_SECONDS = 60.0  # how long a receiver may take to drain, to be placed and to start
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class LettersToParse:
    """Hold a row, and of its records that are in no block: their bytes, and why each does not fit (None: it does)."""

    row: DeadLetterRow
    records: dict[int, bytes]
    whys: dict[int, str | None]
    #: The records as people are shown them.
    shown: dict[int, bytes]

    @classmethod
    def of(cls, row: DeadLetterRow, records: Sequence[bytes], reader: LetterReader) -> Self:
        """Return the row's records as the stream's reader sees them. Raises CommandError if none fits."""
        waiting = {number: records[number - 1] for number in row.waiting_records}
        found = dict(zip(waiting, reader.whys(list(waiting.values())), strict=True))
        if waiting and None not in found.values():
            number, why = next(iter(found.items()))
            message = (
                f"Dead letter {row.id}: none of {len(waiting):,} record(s) fits {row.stream}; {number}: "
                f"{escaped(str(why))}: correct and apply the declaration, or write them with --to FILE and correct them"
            )
            raise CommandError(message)
        return cls(row, waiting, found, {number: reader.shown(one) for number, one in waiting.items()})

    @property
    def fitting(self) -> int:
        """Return how many of the records fit."""
        return sum(why is None for why in self.whys.values())


class RefusedRows:
    """Hold the rows that can't be replayed, and why. One of them keeps no other from being replayed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.whys: dict[int, str] = {}

    @contextmanager
    def row(self, dead_letter_id: int) -> Iterator[None]:
        """Print why this row can't be replayed, and go on behind the block."""
        try:
            yield
        except (CommandError, ReceiverStoppedError) as error:
            self.whys[dead_letter_id] = str(error)
            self._console.print(str(error), style="bold red", markup=False)

    def listed(self) -> list[dict[str, object]]:
        """Return them for JSON."""
        return [{"id": number, "why": why} for number, why in self.whys.items()]


def parse_again(
    connection: sa.Connection,
    console: Console,
    rows: Sequence[LettersToParse],
    refused: RefusedRows,
    *,
    again: bool,
    dry_run: bool,
) -> list[dict[str, object]]:
    """Have rows parsed again, and return what was done with each; the others are refused."""
    if dry_run:
        for one in rows:
            console.print(
                f"Dead letter {one.row.id}: {one.fitting:,} of {len(one.records):,} record(s) would go to "
                f"{one.row.stream}:",
                markup=False,
            )
            for number, record in one.shown.items():
                why = one.whys[number]
                said = "fits" if why is None else escaped(why)
                console.print(f"  {number}: {as_text(record, most=SHOWN_BYTES)}: {said}", markup=False)
        return [
            _done(one, [number for number, why in one.whys.items() if why is not None], one.fitting) for one in rows
        ]
    stopped = {one.receiver_id for one in placements(connection) if one.desired_state is DesiredState.STOPPED}
    wanted = []
    for one in rows:
        with refused.row(one.row.id):
            if one.row.receiver_id in stopped:
                # A row that waits for it could not be saved or sent.
                raise ReceiverStoppedError(f"receiver {one.row.stream}/{one.row.ordinal}")
            if not want_replay(connection, one.row.id, again=again):
                message = f"Dead letter {one.row.id} was replayed by another command, or was cleaned up"
                raise CommandError(message)
            wanted.append(one)
    if wanted:
        restart_receivers(
            connection,
            receiver_ids={one.row.receiver_id for one in wanted},
            why="restarted to parse dead letters again",
            also_waiting=False,
        )
    done = []
    for one in wanted:
        with refused.row(one.row.id):
            done.append(_awaited(connection, console, one))
    return done


def _awaited(connection: sa.Connection, console: Console, letters: LettersToParse) -> dict[str, object]:
    """Return what the receiver has done with a row, when it has. Raises CommandError."""
    row = letters.row
    deadline = time.monotonic() + _START_SECONDS
    while (now := read_dead_letter_row(connection, row.id)) is not None and now.replay_wanted:
        if time.monotonic() >= deadline:
            message = (
                f"Dead letter {row.id} waits for its receiver {row.stream}/{row.ordinal}, which parses it again when "
                "it starts: see `forebay receivers` and `forebay events`"
            )
            raise CommandError(message)
        time.sleep(_POLL_SECONDS)
    if now is None:
        message = f"Dead letter {row.id} was cleaned up"
        raise CommandError(message)
    stored = len(letters.records) - len(now.waiting_records)
    if now.left_records is None or (letters.fitting and not stored):
        message = f"Dead letter {row.id} could not be parsed again: `forebay events` says why"
        raise CommandError(message)
    rest = f"; {len(now.left_records):,} still do not fit, and stay" if now.left_records else ""
    console.print(f"Dead letter {row.id}: {stored:,} record(s) of {row.stream} are in a block{rest}.", markup=False)
    return _done(letters, now.left_records, stored)


def _done(letters: LettersToParse, left: Sequence[int], stored: int) -> dict[str, object]:
    row = letters.row
    return {
        "id": row.id,
        "stream": row.stream,
        "ordinal": row.ordinal,
        "reason": row.reason,
        "records": stored,
        "bytes": sum(map(len, letters.records.values())),
        "to": row.stream,
        "left": [{"letter": number, "why": letters.whys.get(number)} for number in left],
    }
