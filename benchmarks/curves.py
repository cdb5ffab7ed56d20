"""Draw growth curves as SVG: lines over two logarithmic axes, by hand, so that no library is needed.

Owns the pictures' look. Colours are mid-tones that can be read on a light and on a dark page, and the background is
transparent. Pure: it returns text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 270, 40, 50
_COLOURS = ("#3b82c4", "#d9822b", "#3d9970", "#c0504d", "#8064a2", "#7f7f7f", "#b59b00", "#2aa5a0", "#c27ba0")
_TEXT = "#808080"
_GRID = "#80808040"
# Labels of lines that end at the same height are moved apart by this many pixels.
_LABEL_STEP = 15


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: points (x, y), both above 0, in rising order of x; a dashed one is an aim or an earlier version."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def _power_of_ten(exponent: int) -> str:
    value = 10.0**exponent
    return f"{value:,.0f}" if exponent >= 0 else f"{value:g}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """Whole powers of ten from `low` to `high`, along `length` pixels."""

    low: int
    high: int
    length: int

    @classmethod
    def of(cls, values: Sequence[float], length: int) -> _Axis:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), length)

    def at(self, value: float) -> float:
        return (math.log10(value) - self.low) / (self.high - self.low) * self.length


def svg(title: str, lines: Sequence[Line], *, x: str, y: str) -> str:
    """Return a picture of these lines; `x` and `y` name the axes. Raises ValueError without points or with y <= 0."""
    points = [point for line in lines for point in line.points]
    if not points or any(value <= 0 for point in points for value in point):
        message = f"{title}: a logarithmic picture needs points above 0"
        raise ValueError(message)
    across = _Axis.of([point[0] for point in points], _WIDTH - _LEFT - _RIGHT)
    up = _Axis.of([point[1] for point in points], _HEIGHT - _TOP - _BOTTOM)
    floor = _HEIGHT - _BOTTOM

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return _LEFT + across.at(point[0]), floor - up.at(point[1])

    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    parts = [
        f'{root} font-family="sans-serif" font-size="12" fill="{_TEXT}">',
        f"<title>{escape(title)}</title>",
        f'<text x="{_LEFT}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for exponent in range(across.low, across.high + 1):
        at = _LEFT + across.at(10.0**exponent)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{floor}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{at:.1f}" y="{floor + 17}" text-anchor="middle">{_power_of_ten(exponent)}</text>')
    for exponent in range(up.low, up.high + 1):
        at = floor - up.at(10.0**exponent)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_power_of_ten(exponent)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(x)}</text>')
    parts.append(f'<text transform="translate(16 {(_TOP + floor) / 2:.1f}) rotate(-90)" text-anchor="middle">')
    parts.append(f"{escape(y)}</text>")
    heights = label_heights([place(line.points[-1])[1] for line in lines])
    for number, (line, height) in enumerate(zip(lines, heights, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [place(point) for point in line.points]
        path = "L".join(f"{at:.1f} {high:.1f}" for at, high in places)
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{at:.1f}" cy="{high:.1f}" r="3" fill="{colour}"/>' for at, high in places]
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 10}" y="{height + 4:.1f}" fill="{colour}">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def label_heights(wanted: Sequence[float]) -> list[float]:
    """Return heights near those wanted, in the same order from the top, so far apart that no two labels overlap."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    heights = [0.0] * len(wanted)
    above = -math.inf
    for number in order:
        above = heights[number] = max(wanted[number], above + _LABEL_STEP)
    below = float(_HEIGHT - _BOTTOM)
    for number in reversed(order):
        below = heights[number] = min(heights[number], below)
        below -= _LABEL_STEP
    return heights
