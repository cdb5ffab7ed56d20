"""Read times of one format, as ``%d/%b/%Y:%H:%M:%S %z``, by vector code: each position of all texts at once.

Texts of one length have their parts at the same places; so each length is read by itself. A text is read as a whole or
not at all.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.record_formats.exact_cast import END_DAY, FIRST_DAY
from receiver_runtime.sources.records.text_records import format_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    Octets = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
    Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

_WIDTHS = {"Y": (4,), "b": (3,), "f": (1, 2, 3, 4, 5, 6), "z": (1, 5, 6)}
_MOST = {"m": 12, "d": 31, "H": 23, "M": 59, "S": 59}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CODES = np.array([int.from_bytes(name.encode(), "big") for name in _MONTHS])
_SORTED = np.argsort(_CODES)
_LOWER_CASE = 0x20
_MICROSECONDS = 6
_DAY_SECONDS = 86_400


class TimeFormat:
    """Read texts of one format as a type; see the module. Safe from any thread."""

    def __init__(self, text: str, kind: pa.DataType) -> None:
        self._kind = kind
        self._variants: dict[int, list[list[tuple[str, str, int]]]] = {}
        parts = format_parts(text)
        widths = [(len(literal),) if literal else _WIDTHS.get(directive, (2,)) for directive, literal in parts]
        for chosen in itertools.product(*widths):
            variant = [(*part, width) for part, width in zip(parts, chosen, strict=True)]
            self._variants.setdefault(sum(chosen), []).append(variant)

    def read(self, column: pa.StringArray) -> tuple[pa.Array, Mask]:
        """Return the times, null for texts that have not this format, and where these are."""
        values = np.zeros(len(column), np.int64)
        done = np.zeros(len(column), np.bool_)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.where(there, pc.fill_null(pc.binary_length(column), 0).to_numpy(), -1)
        for length in np.unique(lengths).tolist():
            for variant in self._variants.get(length, ()):
                rows = np.flatnonzero((lengths == length) & ~done)
                if rows.size:
                    found = _read(_positions(column, rows, length), variant)
                    values[rows], done[rows] = found.microseconds(), found.fits
        times = pa.array(values, pa.int64(), mask=~done).cast(pa.timestamp("us"))
        made = times.cast(self._kind) if pa.types.is_date(self._kind) else times.view(self._kind)
        return made, there & ~done


@dataclass(slots=True)
class _Found:
    """Hold the parts of times, and for which all of them are there."""

    fits: Mask
    parts: dict[str, Numbers] = field(default_factory=dict)
    offset: Numbers | int = 0

    def microseconds(self) -> Numbers:
        """Return microseconds since 1970; a time that there is not is no longer among those that fit.

        It has a day that its month does not have, or its offset moves it out of the years 1 to 9999.
        """
        year, month, day = (np.where(self.fits, self.parts[part], 1) for part in "Ymd")
        months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
        days = months.astype("datetime64[D]") + (day - 1)
        self.fits &= (days.astype("datetime64[M]") == months) & (year > 0)
        seconds = days.astype(np.int64) * _DAY_SECONDS - self.offset
        for part, unit in (("H", 3600), ("M", 60), ("S", 1)):
            seconds = seconds + self.parts.get(part, 0) * unit
        self.fits &= (seconds >= FIRST_DAY * _DAY_SECONDS) & (seconds < END_DAY * _DAY_SECONDS)
        made: Numbers = seconds * 1_000_000 + self.parts.get("f", 0)
        return made


def _positions(column: pa.StringArray, rows: Numbers, length: int) -> Octets:
    """Return the bytes of texts of one length: for each position those of all texts."""
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column)][rows]
    octets = np.frombuffer(data, np.uint8)
    return np.ascontiguousarray(octets[starts[:, None] + np.arange(length, dtype=np.int32)].T)


def _read(octets: Octets, variant: Sequence[tuple[str, str, int]]) -> _Found:
    found = _Found(np.ones(octets.shape[1], np.bool_))
    at = 0
    for directive, literal, width in variant:
        part = octets[at : at + width]
        at += width
        if literal:
            for position, octet in zip(part, literal.encode(), strict=True):
                found.fits &= position == octet
        elif directive == "b":
            found.parts["m"] = _month(part, found.fits)
        elif directive == "z":
            found.offset = _offset(part, found.fits)
        else:
            number = _number(part, found.fits)
            if directive == "f":
                number *= 10 ** (_MICROSECONDS - width)
            elif directive in _MOST:
                found.fits &= (number <= _MOST[directive]) & ((number > 0) | (directive not in "md"))
            found.parts[directive] = number
    return found


def _number(positions: Octets, fits: Mask) -> Numbers:
    number = np.zeros(positions.shape[1], np.int64)
    for position in positions:
        digit = position - np.uint8(ord("0"))
        fits &= digit <= 9  # noqa: PLR2004  of decimal digits
        number = number * 10 + digit
    return number


def _month(positions: Octets, fits: Mask) -> Numbers:
    code = np.zeros(positions.shape[1], np.int64)
    for position in positions:
        code = code << 8 | (position | _LOWER_CASE)
    place = np.minimum(np.searchsorted(_CODES, code, sorter=_SORTED), len(_CODES) - 1)
    month: Numbers = _SORTED[place]
    fits &= _CODES[month] == code
    return month + 1


def _offset(positions: Octets, fits: Mask) -> Numbers | int:
    """Return the seconds that a zone is ahead of UTC."""
    sign = positions[0]
    if len(positions) == 1:
        fits &= sign == ord("Z")
        return 0
    fits &= (sign == ord("+")) | (sign == ord("-"))
    hours, minutes = _number(positions[1:3], fits), _number(positions[-2:], fits)
    if len(positions) == _WIDTHS["z"][-1]:
        fits &= positions[3] == ord(":")
    fits &= (hours <= _MOST["H"]) & (minutes <= _MOST["M"])
    seconds: Numbers = np.where(sign == ord("-"), -1, 1) * (hours * 3600 + minutes * 60)
    return seconds
