"""Place the picture of what flows where: columns for a wide window, and one column with lanes for a phone.

Pure, in pixels. It keeps crossings low by the mean position of neighbours, and cuts names that are too long for their
box; a title has the whole.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from orchestration.status_page.flow import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestration.status_page.flow import Arrow, Box, Flow

HEIGHT = 44  # of a box: two lines of text
_GAP = 10  # between boxes below each other
_MARGIN = 8
_WIDTHS = (170, 210, 210, 200)  # of the columns: with the gaps, what a window of 1280 has
_COLUMN_GAP = 148  # room for an arrow's label
_PORT_GAP = 14  # between arrows that end at one side of a box: a line of a label
_FLAT = 88  # how long an arrow is level at the end where its label is
_SWEEPS = 8  # rounds in which both layers are sorted by each other: the order changes no more after a few
_MOST_LABELS = 3  # labelled arrows at one side of a box: more would cover each other
_PHONE_WIDTH = 362  # of a window of 390
_LANE = 9
_INDENT = 18
_LINE = 15
_NAME_PIXELS = 8.2  # of a character of a name, in the mean; a label's has less
_LABEL_PIXELS = 5.9
_WIDE_CHARACTER = 1.8


class Point(NamedTuple):
    """Count pixels from the upper left corner."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Label:
    """Put a line of text at a place; `anchor` as in SVG."""

    at: Point
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """Put a box at its place; its two lines of text are cut to its width."""

    number: int
    box: Box
    at: Point
    width: float
    name: str
    second: str


@dataclass(frozen=True, slots=True)
class PlacedArrow:
    """Draw an arrow as the path of an SVG, which begins at its source's border and ends at its target's."""

    arrow: Arrow
    start: Point
    end: Point
    path: str
    label: Label | None


@dataclass(frozen=True, slots=True)
class Drawing:
    """Hold a picture with all at its place."""

    kind: str
    width: float
    height: float
    boxes: list[PlacedBox]
    arrows: list[PlacedArrow]


def cut(text: str, pixels: float, *, per_character: float = _NAME_PIXELS) -> str:
    """Return text that fits into a width, with … at its end if it was cut."""
    used = 0.0
    for number, character in enumerate(text):
        used += per_character * (_WIDE_CHARACTER if unicodedata.east_asian_width(character) in "WF" else 1)
        if used > pixels:
            return text[: max(1, number - 1)] + "…"
    return text


def layers(flow: Flow) -> list[list[int]]:
    """Return the boxes' numbers by layer, from the top down, so that few arrows cross."""
    found = [[number for number, box in enumerate(flow.boxes) if box.layer is layer] for layer in Layer]
    edges = [(arrow.source, arrow.target) for arrow in flow.arrows if flow.boxes[arrow.source].layer is Layer.STREAM]
    streams, pipelines = found[Layer.STREAM], found[Layer.PIPELINE]
    best = (crossings(edges, streams, pipelines), streams, pipelines)
    reverse = [(target, source) for source, target in edges]
    for _ in range(_SWEEPS):
        pipelines = _by_neighbours(pipelines, streams, reverse)
        streams = _by_neighbours(streams, pipelines, edges)
        best = min(best, (crossings(edges, streams, pipelines), streams, pipelines), key=lambda one: one[0])
    _, found[Layer.STREAM], found[Layer.PIPELINE] = best
    # Each stream has one source, and each output one pipeline: these arrows never cross.
    feeds = [(arrow.source, arrow.target) for arrow in flow.arrows]
    found[Layer.SOURCE] = _by_neighbours(found[Layer.SOURCE], found[Layer.STREAM], feeds)
    found[Layer.OUTPUT] = _by_neighbours(
        found[Layer.OUTPUT], found[Layer.PIPELINE], [(target, source) for source, target in feeds]
    )
    return found


def crossings(edges: Iterable[tuple[int, int]], upper: Sequence[int], lower: Sequence[int]) -> int:
    """Count the pairs of edges between two layers that cross."""
    first = {number: place for place, number in enumerate(upper)}
    second = {number: place for place, number in enumerate(lower)}
    seen: list[int] = []
    found = 0
    for _, place in sorted((first[source], second[target]) for source, target in edges):
        found += len(seen) - bisect_right(seen, place)
        insort(seen, place)
    return found


def _by_neighbours(numbers: Sequence[int], others: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[int]:
    """Sort boxes by the mean place of those that they are linked to; those without a link come last."""
    place = {number: at for at, number in enumerate(others)}
    of = defaultdict[int, list[int]](list)
    for number, other in edges:
        if other in place:
            of[number].append(place[other])
    return sorted(numbers, key=lambda number: sum(of[number]) / len(of[number]) if of[number] else len(others))


def _placed(flow: Flow, number: int, at: Point, width: float) -> PlacedBox:
    box = flow.boxes[number]
    room = width - 20
    second = cut(box.second, room, per_character=_LABEL_PIXELS)
    return PlacedBox(number, box, at, width, cut(box.name, room), second)


def wide(flow: Flow) -> Drawing:
    """Place each layer in a column, beside what it is linked to."""
    order = layers(flow)
    step = HEIGHT + _GAP
    targets = defaultdict[int, list[int]](list)
    for arrow in flow.arrows:
        targets[arrow.source].append(arrow.target)
    top: dict[int, float] = {}
    y = float(_MARGIN)
    for pipeline in order[Layer.PIPELINE]:
        outputs = [number for number in order[Layer.OUTPUT] if number in targets[pipeline]]
        for number in outputs:
            top[number] = y + step * outputs.index(number)
        top[pipeline] = y + step * max(0, len(outputs) - 1) / 2
        y += step * max(1, len(outputs))
    wanted = [_mean([top[other] for other in targets[number]], y) for number in order[Layer.STREAM]]
    top |= dict(zip(order[Layer.STREAM], _apart(wanted, step), strict=True))
    top |= {number: top[targets[number][0]] for number in order[Layer.SOURCE]}
    left = [_MARGIN + sum(_WIDTHS[:layer]) + _COLUMN_GAP * layer for layer in range(len(_WIDTHS))]
    boxes = [
        _placed(flow, number, Point(left[layer], top[number]), _WIDTHS[layer])
        for layer, numbers in enumerate(order)
        for number in numbers
    ]
    height = max((box.at.y for box in boxes), default=0) + HEIGHT + _MARGIN
    return Drawing("wide", left[-1] + _WIDTHS[-1] + _MARGIN, height, boxes, _curves(flow, boxes))


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _apart(wanted: Sequence[float], step: float) -> list[float]:
    """Return places near the wanted ones, in the same order, `step` apart at least."""
    down: list[float] = []
    for at in wanted:
        down.append(max(at, down[-1] + step) if down else at)
    up: list[float] = []
    for at in reversed(wanted):
        up.append(min(at, up[-1] - step) if up else at)
    places = [(one + other) / 2 for one, other in zip(down, reversed(up), strict=True)]
    short = max(0.0, _MARGIN - min(places, default=_MARGIN))
    return [at + short for at in places]


def _curves(flow: Flow, boxes: Sequence[PlacedBox]) -> list[PlacedArrow]:
    at = {box.number: box for box in boxes}
    outgoing, incoming = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for number, arrow in enumerate(flow.arrows):
        outgoing[arrow.source].append(number)
        incoming[arrow.target].append(number)
    starts: dict[int, Point] = {}
    ends: dict[int, Point] = {}
    for number, arrows in outgoing.items():
        arrows.sort(key=lambda one: at[flow.arrows[one].target].at.y)
        starts |= _ports(at[number], arrows, at[number].width)
    for number, arrows in incoming.items():
        arrows.sort(key=lambda one: at[flow.arrows[one].source].at.y)
        ends |= _ports(at[number], arrows, 0)
    found = []
    for number, arrow in enumerate(flow.arrows):
        start, end = starts[number], ends[number]
        # At the end that fewer arrows share, so that no label covers another.
        shared, sharing = len(incoming[arrow.target]), len(outgoing[arrow.source])
        at_end = shared <= sharing
        left, right = (start.x, end.x - _FLAT) if at_end else (start.x + _FLAT, end.x)
        middle = (left + right) / 2
        curve = f"{middle:g} {start.y:g} {middle:g} {end.y:g} {right:g} {end.y:g}"
        label = Label(Point(end.x - 10, end.y - 4), arrow.label, "end")
        if not at_end:
            label = Label(Point(start.x + 6, start.y - 4), arrow.label)
        path = f"M{start.x:g} {start.y:g}H{left:g}C{curve}H{end.x:g}"
        found.append(PlacedArrow(arrow, start, end, path, label if min(shared, sharing) <= _MOST_LABELS else None))
    return found


def _ports(box: PlacedBox, arrows: Sequence[int], right: float) -> dict[int, Point]:
    """Return where arrows meet a side of a box, from the top down."""
    gap = min(_PORT_GAP, (HEIGHT - 8) / max(1, len(arrows) - 1))
    first = box.at.y + HEIGHT / 2 - gap * (len(arrows) - 1) / 2
    return {arrow: Point(box.at.x + right, round(first + gap * place, 1)) for place, arrow in enumerate(arrows)}


def narrow(flow: Flow) -> Drawing:
    """Place all in one column: a pipeline below the last of its streams, and a lane at the left for each stream.

    What a source feeds, and what a pipeline writes, is indented below it.
    """
    order = layers(flow)
    incoming: dict[int, list[Arrow]] = defaultdict(list)
    outgoing: dict[int, list[Arrow]] = defaultdict(list)
    for arrow in flow.arrows:
        incoming[arrow.target].append(arrow)
        outgoing[arrow.source].append(arrow)
    rows = _rows(order, incoming, outgoing)
    lanes = _lanes([number for number in order[Layer.STREAM] if outgoing[number]], rows, outgoing)
    gutter = _MARGIN + _LANE * (1 + max(lanes.values(), default=-1)) + 4
    boxes: dict[int, PlacedBox] = {}
    arrows: list[PlacedArrow] = []
    y = float(_MARGIN)
    for number in rows:
        layer = flow.boxes[number].layer
        indent = gutter + (_INDENT if layer in (Layer.STREAM, Layer.OUTPUT) else 0)
        labels = [arrow for arrow in incoming[number] if arrow.label][:_MOST_LABELS]
        y += _LINE * len(labels)
        box = boxes[number] = _placed(flow, number, Point(indent, y), _PHONE_WIDTH - indent - 2)
        ports = _ports(box, range(len(incoming[number])), 0)
        for place, arrow in enumerate(incoming[number]):
            source, end = boxes[arrow.source], ports[place]
            if layer is Layer.PIPELINE:
                # Lower than where the source's own arrow comes in.
                start = Point(source.at.x, source.at.y + HEIGHT - 10)
                x = gutter - 8 - _LANE * lanes[arrow.source]
                path = f"M{start.x:g} {start.y:g}H{x:g}V{end.y:g}H{end.x:g}"
            else:
                start = Point(source.at.x + _INDENT / 2, source.at.y + HEIGHT)
                path = f"M{start.x:g} {start.y:g}V{end.y:g}H{end.x:g}"
            label = None
            if arrow in labels:
                text = f"{flow.boxes[arrow.source].name} · {arrow.label}" if layer is Layer.PIPELINE else arrow.label
                text = cut(text, box.width, per_character=_LABEL_PIXELS)
                label = Label(Point(box.at.x + 4, y - _LINE * (len(labels) - labels.index(arrow)) + 10), text)
            arrows.append(PlacedArrow(arrow, start, end, path, label))
        y += HEIGHT + _GAP
    return Drawing("narrow", _PHONE_WIDTH, y - _GAP + _MARGIN, list(boxes.values()), arrows)


def _rows(
    order: Sequence[Sequence[int]], incoming: dict[int, list[Arrow]], outgoing: dict[int, list[Arrow]]
) -> list[int]:
    """Return the boxes from the top down: each pipeline with its outputs as soon as all its streams are there."""
    rows: list[int] = []
    waiting = list(order[Layer.PIPELINE])

    def place_pipelines() -> None:
        for pipeline in [one for one in waiting if all(arrow.source in rows for arrow in incoming[one])]:
            waiting.remove(pipeline)
            rows.extend([pipeline, *(arrow.target for arrow in outgoing[pipeline])])

    for source in order[Layer.SOURCE]:
        rows.extend([source, *(arrow.target for arrow in outgoing[source])])
        place_pipelines()
    place_pipelines()
    return rows


def _lanes(streams: Iterable[int], rows: Sequence[int], outgoing: dict[int, list[Arrow]]) -> dict[int, int]:
    """Give each stream the first lane that is free from its row to that of its last pipeline."""
    place = {number: at for at, number in enumerate(rows)}
    ends: list[int] = []
    lanes: dict[int, int] = {}
    for number in sorted(streams, key=place.__getitem__):
        lane = next((one for one, end in enumerate(ends) if end < place[number]), len(ends))
        ends[lane : lane + 1] = [max(place[arrow.target] for arrow in outgoing[number])]
        lanes[number] = lane
    return lanes
