"""Print the output of every benchmark: one table, and with ``--json`` one object on the last line.

The figures are in docs/reference/benchmarks.md.

A figure's `ratio` is always such that higher is better and 1 is equal to its peer; its `aim` is such a ratio too.
A missed aim is no failure: a benchmark exits with 0 whatever its figures are.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

# Columns: wide enough for every row to fit on one line, also if the output goes to a file.
_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement beside its peer, which is another system, a limit, or itself at another size."""

    name: str
    ours: float
    peer: float | None
    peer_name: str
    ratio: float | None
    aim: float | None
    unit: str


def rate_figure(
    name: str, ours: Sequence[float], peer: Sequence[float], *, peer_name: str, unit: str, aim: float | None = None
) -> Figure:
    """Return a figure of rates that were measured in turn with the peer's: its ratio is the rounds' median ratio."""
    ratio = statistics.median(mine / other for mine, other in zip(ours, peer, strict=True))
    return Figure(name, statistics.median(ours), statistics.median(peer), peer_name, ratio, aim, unit)


def time_figure(
    name: str, ours: float, peer: float | None, *, peer_name: str, unit: str, aim: float | None = None
) -> Figure:
    """Return a figure of which less is better, such as a time or a size."""
    return Figure(name, ours, peer, peer_name, None if peer is None else peer / ours, aim, unit)


@dataclass
class Report:
    """Hold the figures of one benchmark, and print them as they come in."""

    benchmark: str
    machine: dict[str, str | int]
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    console: Console = field(default_factory=lambda: Console(width=_WIDTH, highlight=False))

    def section(self, title: str) -> None:
        """Say what is measured next."""
        self.console.print(f"[bold]{title}[/bold]")

    def add(self, *figures: Figure) -> None:
        """Add figures, and print each at once: an interrupted run has then shown something."""
        for figure in figures:
            self.figures.append(figure)
            ratio = "" if figure.ratio is None else f", ratio {figure.ratio:.2f}"
            aim = "" if figure.aim is None else f" (aim {figure.aim:.2f})"
            self.console.print(f"  {figure.name}: {_number(figure.ours)} {figure.unit}{ratio}{aim}")

    def note(self, text: str) -> None:
        """Add a note that is needed to read the figures."""
        self.notes.append(text)
        self.console.print(f"  {text}")

    def print(self, *, as_json: bool) -> None:
        """Print the table, and on request the JSON object as the last line."""
        table = Table("figure", title=f"{self.benchmark}: {self._machine_line()}", title_justify="left")
        for column in ("ours", "peer"):
            table.add_column(column, justify="right")
        table.add_column("unit")
        table.add_column("peer is")
        for column in ("ratio", "aim"):
            table.add_column(column, justify="right")
        table.add_column("")
        for figure in self.figures:
            table.add_row(
                figure.name,
                _number(figure.ours),
                _number(figure.peer),
                figure.unit,
                figure.peer_name,
                "" if figure.ratio is None else f"{figure.ratio:.2f}",
                "" if figure.aim is None else f"{figure.aim:.2f}",
                _verdict(figure),
            )
        self.console.print(table)
        for note in self.notes:
            self.console.print(f"* {note}")
        if as_json:
            print(json.dumps(self._json()))  # noqa: T201  the last line, whole, whatever the console's width

    def _machine_line(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.machine.items())

    def _json(self) -> dict[str, object]:
        return {
            "benchmark": self.benchmark,
            "figures": [dataclasses.asdict(figure) for figure in self.figures],
            "machine": self.machine,
        }


def machine(**more: str | int) -> dict[str, str | int]:
    """Return a description of the machine that the figures were measured on."""
    return {
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **more,
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004  three figures are enough


def _verdict(figure: Figure) -> str:
    if figure.aim is None or figure.ratio is None:
        return ""
    return "reached" if figure.ratio >= figure.aim else "missed"
