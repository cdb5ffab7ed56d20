"""Show the load model's figures: a table in the terminal, one object of JSON, and the tables and pictures of a page.

Owns `docs/explanation/scale/figures.json`, which keeps the figures of before and after a change, and what lies between
the two marks in `docs/explanation/scale.md`; the rest of that page is written by people. It measures nothing.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rich.table import Table

from benchmarks.curves import Line, svg
from benchmarks.scale_model import OPERATIONS, Cost, Measured, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.scale_model import Operation

BEGIN = "<!-- figures: written by `python -m benchmarks.scale --write docs/explanation` -->"
END = "<!-- end of the figures -->"
COLUMNS = ("before", "after")
_NONE = "-"
_PAGE = "scale.md"
_FOLDER = "scale"
_FIGURES = "figures.json"
# The curves that the second picture shows: what reads the history, or could.
_OF_HISTORY = ("tick", "clean_up", "status", "metrics", "contiguity", "batch_stats", "driver_log_between")
_OF_RECEIVERS = (*_OF_HISTORY, "heartbeat", "allocation_wide")


@dataclass(frozen=True, slots=True)
class Figures:
    """One whole measurement: with more and more receivers, and with a longer and longer history."""

    machine: Mapping[str, str | int]
    receivers: tuple[Measured, ...]
    history: tuple[Measured, ...]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `stored` has written."""

        def series(name: str) -> tuple[Measured, ...]:
            return tuple(
                Measured(Shape(**one["shape"]), {key: Cost(**cost) for key, cost in one["costs"].items()})
                for one in stored[name]
            )

        return cls(stored["machine"], series("receivers"), series("history"))

    def stored(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {
            "machine": dict(self.machine),
            **{
                name: [
                    {
                        "shape": dataclasses.asdict(one.shape),
                        "costs": {key: dataclasses.asdict(cost) for key, cost in one.costs.items()},
                    }
                    for one in measured
                ]
                for name, measured in (("receivers", self.receivers), ("history", self.history))
            },
        }

    @property
    def largest(self) -> Measured:
        """Return the installation with the most receivers."""
        return max(self.receivers, key=lambda one: one.shape.receivers)


def number(value: float | None) -> str:
    """Return a figure with three digits, or a dash."""
    if value is None:
        return _NONE
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004  three figures are enough


def share(value: float) -> str:
    """Return a part of a core in percent."""
    return f"{number(100 * value)} %"


def verdict(met: bool | None) -> str:
    """Say whether an aim is met; nothing without an aim."""
    return {True: "met", False: "not met", None: ""}[met]


def terminal_table(measured: Measured) -> Table:
    """Return the table of one installation: what one run costs, and what a minute costs the whole installation."""
    table = Table(title=str(measured.shape), title_justify="left")
    for heading in ("CPU of one run", "aim", ""):
        table.add_column(heading)
    for heading in ("server ms", "client ms", "runs", "a minute", "server", "clients"):
        table.add_column(heading, justify="right")
    for operation in OPERATIONS:
        cost, load = measured.costs.get(operation.key), measured.load(operation)
        if cost is None or load is None:
            continue
        aim = "" if operation.aim is None else operation.aim.words
        table.add_row(
            operation.name,
            aim,
            verdict(measured.met(operation)),
            number(cost.server_ms),
            number(cost.client_ms),
            str(cost.repeats),
            number(operation.per_minute(measured.shape)),
            share(load.server_share),
            share(load.client_share),
        )
    total = measured.total()
    table.add_section()
    table.add_row("all together, of one core", *[""] * 6, share(total.server_share), share(total.client_share))
    return table


def as_json(figures: Figures) -> str:
    """Return everything in one line."""
    loads = {
        name: [
            {
                "total_server_share": one.total().server_share,
                "total_client_share": one.total().client_share,
                "met": {operation.key: one.met(operation) for operation in OPERATIONS if operation.aim is not None},
            }
            for one in measured
        ]
        for name, measured in (("receivers", figures.receivers), ("history", figures.history))
    }
    return json.dumps({"benchmark": "scale", **figures.stored(), "loads": loads})


def write(folder: Path, column: str, figures: Figures) -> None:
    """Keep these figures in one column of the page in `folder`, and make its tables and pictures again."""
    path = folder / _FOLDER / _FIGURES
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept[column] = figures.stored()
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    render(folder)


def render(folder: Path) -> None:
    """Make the tables and pictures of the page in `folder` again from the figures that are kept there."""
    kept = json.loads((folder / _FOLDER / _FIGURES).read_text(encoding="utf-8"))
    figures = {column: Figures.of(kept[column]) for column in COLUMNS if column in kept}
    for column, measured in figures.items():
        for name, picture in pictures(column, measured).items():
            (folder / _FOLDER / name).write_text(picture, encoding="utf-8")
    page = folder / _PAGE
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{markdown(figures)}\n{END}{after}", encoding="utf-8")


def pictures(column: str, figures: Figures) -> dict[str, str]:
    """Return the pictures of one column by the names of their files; none of a series with less than two points."""
    drawn = {}
    if len(figures.receivers) > 1:
        drawn[f"receivers-{column}.svg"] = svg(
            f"CPU of one run, {column}",
            _lines(_OF_RECEIVERS, [(one.shape.receivers, one) for one in figures.receivers]),
            x="receivers",
            y="ms, server + client",
        )
    if len(figures.history) > 1:
        drawn[f"history-{column}.svg"] = svg(
            f"CPU of one run, {figures.history[0].shape.receivers} receivers, {column}",
            _lines(_OF_HISTORY, [(one.shape.batches * one.shape.pipelines, one) for one in figures.history]),
            x="batches in the history",
            y="ms, server + client",
        )
    return drawn


def _lines(keys: Sequence[str], measured: Sequence[tuple[float, Measured]]) -> list[Line]:
    lines = []
    for operation in OPERATIONS:
        points = [
            (at, cost.server_ms + cost.client_ms)
            for at, one in sorted(measured, key=lambda pair: pair[0])
            if (cost := one.costs.get(operation.key)) is not None
        ]
        if operation.key in keys and points:
            lines.append(Line(operation.name, points))
    return lines


def markdown(figures: Mapping[str, Figures]) -> str:
    """Return the page's tables and links to its pictures, for the columns that there are."""
    newest = figures[next(column for column in reversed(COLUMNS) if column in figures)]
    machines = " ".join(
        f"*{column.capitalize()}*: {', '.join(f'{name} {value}' for name, value in one.machine.items())}."
        for column, one in figures.items()
    )
    parts = [f"{newest.largest.shape}. {machines}", *_comparison(figures), ""]
    sizes: dict[str, dict[str, list[tuple[str, Measured]]]] = {
        "receivers": {
            column: [(f"{each.shape.receivers:,} receivers", each) for each in one.receivers]
            for column, one in figures.items()
        },
        "history": {
            column: [(f"{each.shape.batches * each.shape.pipelines:,} batches", each) for each in one.history]
            for column, one in figures.items()
        },
    }
    for (series, columns), heading in zip(sizes.items(), ("more receivers", "a longer history"), strict=True):
        if not any(columns.values()):
            continue
        parts += [f"### With {heading}", ""]
        for column, measurements in columns.items():
            if len(measurements) > 1:
                parts += [f"![CPU of one run, {column}]({_FOLDER}/{series}-{column}.svg)", ""]
        for column, measurements in columns.items():
            parts += _growth(column, measurements)
    return "\n".join(parts)


def _comparison(figures: Mapping[str, Figures]) -> list[str]:
    """Return the table of the largest installation: each column's figures beside the aim."""
    headings = ["one run, ms of CPU"]
    for column in COLUMNS:
        headings += [f"{column}: server", "client"]
    headings += ["aim", "", "times a minute", "server", "clients"]
    rows = [
        "",
        f"| {' | '.join(headings)} |",
        "|---|" + "---:|" * 4 + "---|---|" + "---:|" * 3,
    ]
    newest = figures[next(column for column in reversed(COLUMNS) if column in figures)].largest
    for operation in OPERATIONS:
        cells = [operation.name]
        for column in COLUMNS:
            cost = figures[column].largest.costs.get(operation.key) if column in figures else None
            cells += [
                number(None if cost is None else cost.server_ms),
                number(None if cost is None else cost.client_ms),
            ]
        rows.append(f"| {' | '.join([*cells, *_judged(operation, newest)])} |")
    total = newest.total()
    shares = [share(total.server_share), share(total.client_share)]
    if any(operation.key not in newest.costs for operation in OPERATIONS):
        shares = [_NONE, _NONE]  # a sum of a part would say too little
    rows.append(f"| {' | '.join(['all together', *['', ''] * len(COLUMNS), '', '', '', *shares])} |")
    return rows


def _judged(operation: Operation, measured: Measured) -> list[str]:
    load = measured.load(operation)
    shares = [_NONE, _NONE] if load is None else [share(load.server_share), share(load.client_share)]
    met = verdict(measured.met(operation))
    return [
        "" if operation.aim is None else f"{operation.aim.words} ({operation.aim.part})",
        f"**{met}**" if met == "not met" else met,
        number(operation.per_minute(measured.shape)),
        *shares,
    ]


def _growth(column: str, sizes: Sequence[tuple[str, Measured]]) -> list[str]:
    """Return the table of one series: server + client of each operation at each size, and how the last one grew."""
    if not sizes:
        return []
    rows = [
        f"| {column}: server + client, ms | {' | '.join(size for size, _ in sizes)} |",
        "|---|" + "---:|" * len(sizes),
    ]
    for operation in OPERATIONS:
        costs = [one.costs.get(operation.key) for _, one in sizes]
        if any(cost is not None for cost in costs):
            cells = [number(None if cost is None else cost.server_ms + cost.client_ms) for cost in costs]
            rows.append(f"| {operation.name} | {' | '.join(cells)} |")
    return [*rows, ""]
