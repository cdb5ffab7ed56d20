"""Print rows as a table, or, where the terminal is too narrow for it, as one paragraph a row: no name is ever broken.

Owns the two layouts. What the rows say is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tracker_store.host.terminal_text import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.cli.terminal.console import Console

_WIDEST = 100_000  # columns: more than any table needs, so that a measurement is not cut to the terminal's width


def print_table(
    console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", none: str = "none"
) -> None:
    """Print the rows under their headings; `none` if there are none. A cell may have several lines."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows or [[none, *[""] * (len(headings) - 1)]]:
        # As rich's text: a cell is data, in which :a: and [b] mean nothing.
        table.add_row(*(Text(escaped(cell)) for cell in row))
    wanted = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
    if wanted <= console.width or not rows:
        console.print(table)
        return
    if title:
        console.print(title, style="italic", markup=False, soft_wrap=True)
    for row in rows:
        # The first cell names the row.
        console.print(row[0], style="bold", markup=False, soft_wrap=True)
        said = [
            f"{heading}\N{NO-BREAK SPACE}{_on_one_line(cell)}"
            for heading, cell in zip(headings[1:], row[1:], strict=True)
            if cell not in ("", "-")
        ]
        _print_wrapped(console, said)


def _on_one_line(cell: str) -> str:
    return ", ".join(cell.splitlines())


def _print_wrapped(console: Console, parts: Sequence[str]) -> None:
    """Print parts with commas between them, as many on a line as fit; a part that is longer has a line of its own."""
    line = ""
    for number, part in enumerate(parts, start=1):
        longer = f"{line}, {part}" if line else f"  {part}"
        # Each part but the last needs room for the comma after it.
        if line and len(longer) + (number < len(parts)) > console.width:
            console.print(f"{line},", markup=False, soft_wrap=True)
            longer = f"  {part}"
        line = longer
    if line:
        console.print(line, markup=False, soft_wrap=True)
