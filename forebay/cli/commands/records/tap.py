"""`forebay tap STREAM`: print the newest records of a stream as they are registered, as JSON lines.

It reads the blocks that receivers have registered, and keeps none: a receiver and clean-up never notice it. It holds
one block at a time, and where it can't keep up it leaves blocks out and says how many.
"""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.commands.records.record_lines import record_line
from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log_engine
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.outage import TerminalOutage
from orchestration.batches.attached_store import open_attached_store
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockStoreError
from tracker_store.batches.pipelines import list_streams, unknown_stream
from tracker_store.blocks.newest_blocks import blocks_after, newest_sequences
from tracker_store.blocks.stored_blocks import find_stored_block
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import TRANSIENT
from tracker_store.host.terminal_text import escaped
from tracker_store.receivers.receivers import receivers_named

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import sqlalchemy as sa

    from receiver_runtime.block_store.stores.interface import BlockStore
    from tracker_store.blocks.newest_blocks import NewestBlock

APPLICATION = "forebay tap"
_POLL_SECONDS = 0.5
_QUIET_FACTOR = 20  # it waits at least this many times as long as the driver log took to answer
_BLOCKS_AT_ONCE = 500
_OF_EACH = 100
_MOST_BEHIND = 1_000  # blocks of one receiver
_MOST_RECORDS = 10_000


def tap(
    stream: Annotated[
        str,
        typer.Argument(
            metavar="STREAM", help="The stream, as `forebay receivers` shows it.", autocompletion=names.streams
        ),
    ],
    receiver: Annotated[int | None, typer.Option(min=1, help="Only of this receiver, by its number.")] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only lines that this regular expression matches.")
    ] = None,
    count: Annotated[
        int,
        typer.Option("--limit", "-n", min=0, max=_MOST_RECORDS, help="Begin with the newest N records that are there."),
    ] = 10,
    follow: Annotated[bool, typer.Option(help="Go on with new records, until Ctrl-C.")] = True,  # noqa: FBT002
    place: Annotated[  # noqa: FBT002
        bool, typer.Option("--place", help="Print each record's receiver, block and time with it.")
    ] = False,
) -> None:
    """Print the newest records of a stream, live, as JSON lines.

    Binary values are printed as text, or as {"base64": …} if they are none; control characters are shown as escapes.
    Records appear when their block is registered. Nothing is changed or kept for it, so a block that is cleaned up
    before it is read is left out, and so are blocks where the stream is faster than the terminal: a note on standard
    error says how many.

    For example:

        forebay tap orders
        forebay tap orders --receiver 2 --grep '"status": "failed"'
        forebay tap orders -n 1000 --no-follow | jq .value
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    try:
        wanted = None if grep is None else re.compile(grep)
    except re.error as error:
        raise typer.BadParameter(f"{grep!r} is no regular expression: {error}", param_hint="--grep") from error
    settings = Settings()
    with driver_log_engine(console, application_name=APPLICATION) as engine:
        try:
            with connect(engine) as connection:
                stream_id = _stream_id(connection, stream, receiver)
                keys = BlockKeys(settings.block_key_references)
                store = open_attached_store(connection, settings.block_store_roots, keys=keys)
            tapped = _Tap(engine, store, stream, stream_id, receiver, console)
            _print(tapped.newest(count), wanted, count, with_place=place)
            if follow:
                for blocks in tapped.following():
                    _print(blocks, wanted, None, with_place=place)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _stream_id(connection: sa.Connection, stream: str, receiver: int | None) -> int:
    """Return a stream's id. Raises NoSuchReceiverError, and NotAppliedError for a stream of that name."""
    if not any(row.name == stream for row in list_streams(connection)):
        raise unknown_stream(connection, stream)
    return receivers_named(connection, stream if receiver is None else f"{stream}/{receiver}")[0].stream_id


class _Tap:
    """Read a stream's blocks once each, in each receiver's order. For one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        store: BlockStore,
        stream: str,
        stream_id: int,
        ordinal: int | None,
        console: Console,
    ) -> None:
        self._engine = engine
        self._store = store
        self._stream = stream
        self._stream_id = stream_id
        self._ordinal = ordinal
        self._console = console
        # The newest block of each receiver that was read or left out.
        self._positions: dict[int, int] = {}

    def newest(self, records: int) -> Iterator[tuple[NewestBlock, dict[str, Any]]]:
        """Yield the records of the newest blocks that have at least this many; set where to go on."""
        with connect(self._engine) as connection:
            self._positions = newest_sequences(connection, self._stream_id, self._ordinal)
            before = {receiver: max(0, sequence - _OF_EACH) for receiver, sequence in self._positions.items()}
            blocks = blocks_after(connection, before, each=_OF_EACH, limit=_BLOCKS_AT_ONCE, newest=True)
            # What came between the two statements is shown once, by `following`.
            blocks = [block for block in blocks if block.sequence <= self._positions[block.receiver_id]]
            left = sum(block.records for block in blocks)
            while blocks and left - blocks[0].records >= records:
                left -= blocks.pop(0).records
            yield from self._records(connection, blocks)

    def following(self) -> Generator[Iterator[tuple[NewestBlock, dict[str, Any]]]]:
        """Yield the records of new blocks for ever, a group at a time. Raises what a long outage raises."""
        outage = TerminalOutage(self._console)
        while True:
            began = time.monotonic()
            try:
                with connect(self._engine) as connection:
                    blocks = self._new_blocks(connection)
                    took = time.monotonic() - began
                    for block in blocks:
                        # Before it is printed: a block whose printing fails half-way is not printed again.
                        self._positions[block.receiver_id] = block.sequence
                        yield self._records(connection, [block])
            except TRANSIENT as error:
                outage.wait(error)
                continue
            outage.over()
            if len(blocks) < _BLOCKS_AT_ONCE:
                time.sleep(max(_POLL_SECONDS, _QUIET_FACTOR * took))

    def _new_blocks(self, connection: sa.Connection) -> Sequence[NewestBlock]:
        """Return blocks that were not read, oldest first, after leaving out what is too far behind."""
        newest = newest_sequences(connection, self._stream_id, self._ordinal)
        # A receiver that is new since the last look begins at its first block.
        self._positions = {receiver: self._positions.get(receiver, 0) for receiver in newest}
        for receiver, sequence in newest.items():
            behind = sequence - self._positions[receiver]
            if behind > _MOST_BEHIND:
                self._positions[receiver] = sequence - _OF_EACH
                self._console.print(
                    f"{behind - _OF_EACH:,} blocks of one receiver of {self._stream} are left out: it is faster than "
                    "what reads this. --receiver and --grep print less.",
                    style="yellow",
                    markup=False,
                )
        return blocks_after(connection, self._positions, each=_OF_EACH, limit=_BLOCKS_AT_ONCE)

    def _records(
        self, connection: sa.Connection, blocks: Sequence[NewestBlock]
    ) -> Iterator[tuple[NewestBlock, dict[str, Any]]]:
        for block in blocks:
            if block.path is None or block.handle is None:
                continue
            handle = block.handle
            try:
                for batch in self._store.read_batches(block.path, handle.offset, handle.length, handle.crc32c):
                    yield from ((block, record) for record in batch.to_pylist())
            except (BlockStoreError, OSError) as error:
                if not self._is_cleaned_up(connection, block):
                    self._console.print(str(error), style="bold red", markup=False)

    def _is_cleaned_up(self, connection: sa.Connection, block: NewestBlock) -> bool:
        """Return whether the block has no row any more; False if the driver log can't say."""
        try:
            found = find_stored_block(connection, stream=self._stream, ordinal=block.ordinal, sequence=block.sequence)
        except TRANSIENT:
            return False
        return found is None


def _print(
    records: Iterator[tuple[NewestBlock, dict[str, Any]]],
    wanted: re.Pattern[str] | None,
    count: int | None,
    *,
    with_place: bool,
) -> None:
    """Print the records that match; of more than `count`, the last ones."""
    lines = (_line(block, record, with_place=with_place) for block, record in records)
    matching = (line for line in lines if wanted is None or wanted.search(line))
    for line in matching if count is None else deque(matching, maxlen=count):
        # JSON escapes only a part of the control characters; an escape is JSON again.
        typer.echo(escaped(line))


def _line(block: NewestBlock, record: dict[str, Any], *, with_place: bool) -> str:
    shown: dict[str, Any] = record
    if with_place:
        shown = {
            "receiver": block.ordinal,
            "sequence": block.sequence,
            "added_at": block.added_at.isoformat(),
            "record": record,
        }
    return record_line(shown)
