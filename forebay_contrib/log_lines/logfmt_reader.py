"""Read lines of pairs, as logfmt has them: find the pairs of all lines at once, by vector code.

Only a quoted value with a backslash is decoded by itself, which costs about 1 µs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.text_reader import Lines, TextReader

if TYPE_CHECKING:
    from receiver_runtime.sources.records.declared import Records

    Places = np.ndarray[tuple[int], np.dtype[np.int64]]
    Rows = np.ndarray[tuple[int], np.dtype[np.bool_]]

_SPACE, _TAB, _QUOTE, _BACKSLASH, _EQUALS = b' \t"\\='


@dataclass(slots=True)
class _Pairs:
    """Hold pairs in order: the row of each, where it begins and ends, and where its key ends."""

    rows: Places
    begins: Places
    key_ends: Places
    ends: Places

    def where(self, keep: Rows | Places) -> _Pairs:
        """Return some of them."""
        return _Pairs(self.rows[keep], self.begins[keep], self.key_ends[keep], self.ends[keep])


class LogfmtReader(TextReader):
    """Read lines of pairs; see the module. Safe from any thread."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self._names = pa.array(self.schema.names, pa.string())

    def columns(self, lines: Lines) -> list[pa.StringArray]:
        """Return the values by their keys."""
        pairs = _pairs(lines)
        keys = lines.spans(pairs.begins, pairs.key_ends)
        places = pc.fill_null(pc.index_in(keys, value_set=self._names), -1).to_numpy()
        count = len(self.schema)
        cells = pairs.rows * count + places
        twice = np.flatnonzero(np.bincount(cells[places >= 0], minlength=1) > 1)
        for cell in twice.tolist():
            row, number = divmod(cell, count)
            why = f"it stands twice - at `{self.schema.names[number]}`"
            lines.refuse([row], DeadLetterReason.DOES_NOT_FIT, why)
        # A row that is refused has no pair, so a column has one at most for each row.
        taken = ~lines.blank[pairs.rows]
        return [self._column(lines, pairs.where(taken & (places == number)), number) for number in range(count)]

    def _column(self, lines: Lines, pairs: _Pairs, number: int) -> pa.StringArray:
        kind = self.schema.field(number).type
        begins = lines.starts.copy()
        stops = lines.starts.copy()
        there = np.zeros(len(begins), np.bool_)
        bare = pairs.key_ends == pairs.ends
        if bare.any() and not pa.types.is_boolean(kind):
            why = f"it has no value - at `{self.schema.names[number]}`"
            lines.refuse(pairs.rows[bare].tolist(), DeadLetterReason.DOES_NOT_FIT, why)
        valued = pairs.where(~bare)
        begins[valued.rows], stops[valued.rows] = valued.key_ends + 1, valued.ends
        there[valued.rows] = stops[valued.rows] > begins[valued.rows]
        quoted = np.zeros(len(begins), np.bool_)
        if lines.octets.size:
            quoted = there & (lines.octets[np.minimum(begins, lines.octets.size - 1)] == _QUOTE)
        begins, stops = begins + quoted, stops - quoted
        if not pa.types.is_string(kind):
            there &= stops > begins
        column = lines.spans(begins, stops, there)
        if bare.any() and pa.types.is_boolean(kind):
            is_bare = np.zeros(len(begins), np.bool_)
            is_bare[pairs.rows[bare]] = True
            column = pc.if_else(pa.array(is_bare), pa.scalar("true"), column)
        return _unescaped(lines, column, np.flatnonzero(quoted), self.schema.names[number])


def _pairs(lines: Lines) -> _Pairs:
    """Return the pairs of lines; refuse those with a quote where none may be, or a pair without a key."""
    octets = lines.octets
    is_space = (octets == _SPACE) | (octets == _TAB)
    quotes = np.flatnonzero(octets == _QUOTE)
    quotes, escaped = _without_escaped(octets, quotes)
    firsts = np.searchsorted(quotes, lines.starts)
    if quotes.size or escaped.size:
        spaces = np.flatnonzero(is_space)
        is_space[spaces[_ordinals(lines, spaces, quotes, firsts) % 2 == 1]] = False
    # Neither line ends behind a line nor a byte-order mark before it are part of a pair.
    begins_line = np.zeros(octets.size + 1, np.bool_)
    begins_line[lines.starts] = True
    is_text = ~is_space
    cut = np.flatnonzero(lines.ends[:-1] != lines.starts[1:]) if len(lines.starts) else np.zeros(0, np.int64)
    for row in cut.tolist():
        is_text[lines.ends[row] : lines.starts[row + 1]] = False
    if len(lines.ends):
        is_text[: lines.starts[0]] = False
        is_text[lines.ends[-1] :] = False
    before = np.concatenate(([False], is_text[:-1])) if octets.size else is_text
    begins = np.flatnonzero(is_text & (~before | begins_line[:-1]))
    after = np.concatenate((is_text[1:], [False])) if octets.size else is_text
    ends = np.flatnonzero(is_text & (~after | begins_line[1:])) + 1
    rows = np.searchsorted(lines.starts, begins, side="right") - 1
    equals = np.append(np.flatnonzero(octets == _EQUALS), octets.size)
    key_ends = np.minimum(equals[np.searchsorted(equals, begins)], ends) if begins.size else begins
    pairs = _Pairs(rows, begins, key_ends, ends)
    lines.refuse(rows[key_ends == begins].tolist(), DeadLetterReason.UNPARSABLE, "a value has no key")
    _refuse_quotes(lines, pairs, quotes, escaped, firsts)
    return pairs


def _without_escaped(octets: np.ndarray[tuple[int], np.dtype[np.uint8]], quotes: Places) -> tuple[Places, Places]:
    """Return the quotes without and with an odd number of backslashes before them."""
    if not quotes.size:
        return quotes, quotes
    # For each byte where the last one up to it is that is no backslash.
    plain = np.maximum.accumulate(np.where(octets != _BACKSLASH, np.arange(octets.size), -1))
    before = np.maximum(quotes - 1, 0)
    odd = (before - plain[before]) % 2 == 1
    return quotes[~odd], quotes[odd]


def _ordinals(lines: Lines, places: Places, quotes: Places, firsts: Places) -> Places:
    """Return how many quotes of its line stand before each place."""
    rows = np.searchsorted(lines.starts, places, side="right") - 1
    found: Places = np.searchsorted(quotes, places) - firsts[rows]
    return found


def _refuse_quotes(lines: Lines, pairs: _Pairs, quotes: Places, escaped: Places, firsts: Places) -> None:
    """Refuse lines with a quote that is not closed, or that stands elsewhere than around a value."""
    rows = np.searchsorted(lines.starts, quotes, side="right") - 1
    odd = np.flatnonzero(np.bincount(rows, minlength=len(lines.starts)) % 2)
    lines.refuse(odd.tolist(), DeadLetterReason.UNPARSABLE, "a quote is not closed")
    why = "a quote stands where none may"
    outside = escaped[_ordinals(lines, escaped, quotes, firsts) % 2 == 0]
    outside_rows = np.searchsorted(lines.starts, outside, side="right") - 1
    lines.refuse(np.unique(outside_rows).tolist(), DeadLetterReason.UNPARSABLE, why)
    if not quotes.size or not pairs.begins.size:
        return
    opens = (np.arange(quotes.size) - firsts[rows]) % 2 == 0
    of = np.maximum(np.searchsorted(pairs.begins, quotes, side="right") - 1, 0)
    well = np.where(opens, quotes == pairs.key_ends[of] + 1, quotes == pairs.ends[of] - 1)
    lines.refuse(np.unique(rows[~well]).tolist(), DeadLetterReason.UNPARSABLE, why)


def _unescaped(lines: Lines, column: pa.StringArray, quoted: Places, name: str) -> pa.StringArray:
    """Return a column with the escapes of its quoted values decoded."""
    if not quoted.size:
        return column
    has = pc.fill_null(pc.find_substring(column.take(pa.array(quoted)), "\\"), -1).to_numpy() >= 0
    if not has.any():
        return column
    rows = quoted[has]
    made: list[str | None] = []
    for row, text in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            decoded = json.loads(f'"{text}"', strict=False)
            decoded.encode()
        except ValueError:
            lines.refuse([row], DeadLetterReason.UNPARSABLE, f"an escape is not one of JSON's - at `{name}`")
            decoded = None
        made.append(decoded)
    mask = np.zeros(len(column), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(column, pa.array(mask), pa.array(made, pa.string()))
