"""Read JSON objects that are alike, all at once, from where their quotes are: several times as fast as a parser.

A machine writes its objects with the same members in one order, and with the same blanks. The *layout* of one of them
says which bytes stand before each value, and how many quotes there are. Another record has the layout if it has as many
quotes and the same bytes, at the places that follow from its own quotes. What is left are its values, each of which
must be as JSON and its column demand. So only records without escapes, line ends and nested values have one.

It decides nothing. A record that it does not take is one for Arrow's parser, and of one that it takes, that parser
makes the same values. It looks at each record by itself, whatever stands beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Places = npt.NDArray[np.int64]
    Rows = npt.NDArray[np.bool_]

_QUOTE, _ESCAPE, _BLANK, _DOT, _MINUS, _ZERO, _NINE = b'"\\ .-09'
_NO_ASCII = 0x80
# A member up to what follows its value, of a record without escapes.
_MEMBER = re.compile(rb' *"(?P<name>[^"]*)" *: *(?:"(?P<text>[^"]*)"|(?P<plain>[^", {}\[\]]+)) *(?P<end>[,}])')
# Numbers of JSON. Those with more digits are left to Arrow, which knows which of them it takes, also without a column.
_MOST_LETTERS = {True: 18, False: 40}
_NUMBER = r"-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?"
#: By whether a column has integers.
_PATTERNS = {True: r"^-?(?:0|[1-9][0-9]{0,17})$", False: f"^{_NUMBER}$"}
_ANY = f"^(?:true|false|null|{_NUMBER})$"
_NULL = "null"
_WORD = 8
# Each value, and each word between two, has a cost that does not depend on how many records there are.
_MOST_VALUES, _MOST_BETWEEN = 256, 4096


class _Value(NamedTuple):
    """Say what a value of each record is. ``before``: the bytes between the value before it and this one."""

    name: str
    is_text: bool
    before: bytes


class _Layout(NamedTuple):
    """Hold the values of a record in order; see the module. ``after``: the bytes behind the last one."""

    values: Sequence[_Value]
    after: bytes
    quotes: int


class _Span(NamedTuple):
    """Say where a value begins and ends in each record."""

    starts: Places
    stops: Places


class _UnlikeError(Exception):
    """Nothing to do: these records are for another parser."""


class FlatObjects:
    """Read objects into columns; see the module. Safe from any thread.

    Args:
        schema: the columns, of the types that Arrow's parser gives them.
        closed: whether a record may have no other members.
    """

    def __init__(self, schema: pa.Schema, *, closed: bool) -> None:
        self._schema = schema
        self._closed = closed
        # That of the records before: the records of a stream are mostly alike.
        self._layout: _Layout | None = None

    def read(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, Rows] | None:
        """Return the members of the records that have one layout, and which these are; None: less than half have one.

        Each record must begin and end with a brace, and none may be null.
        """
        text = _Text.of(values)
        if not text.is_utf8(values):
            return None
        for layout in (self._layout, self._layout_of(text.record(0))):
            if layout is None:
                continue
            try:
                found = self._read(text, layout)
            except _UnlikeError:
                continue
            self._layout = layout
            return found
        return None

    def _layout_of(self, record: bytes) -> _Layout | None:
        """Return the layout of a record; None: it has none."""
        values: list[_Value] = []
        begin, at = 0, 1
        member = _MEMBER.match(record, at)
        while member is not None:
            value = "plain" if member["text"] is None else "text"
            values.append(_Value(member["name"].decode(), value == "text", record[begin : member.start(value)]))
            begin, at = member.end(value), member.end()
            if member["end"] == b"}":
                break
            # Looked at before the next one is: a record may have any number.
            member = None if len(values) == _MOST_VALUES else _MEMBER.match(record, at)
        if member is None or at != len(record) or sum(len(value.before) for value in values) > _MOST_BETWEEN:
            return None
        names = {value.name for value in values}
        fields = [(value, self._field(value.name)) for value in values]
        if len(names) < len(values) or not all(
            _can_have(field.type, value) if field else not self._closed for value, field in fields
        ):
            return None
        return _Layout(values, record[begin:], record.count(b'"'))

    def _field(self, name: str) -> pa.Field | None:
        number = self._schema.get_field_index(name)
        return None if number < 0 else self._schema.field(number)

    def _read(self, text: _Text, layout: _Layout) -> tuple[pa.RecordBatch, Rows]:
        """Return the members of the records that have a layout, and which these are. Raises _UnlikeError."""
        rows, spans = text.spans(layout)
        good = np.ones(len(rows), dtype=np.bool_)
        found: dict[str, pa.Array] = {}
        for value, span in zip(layout.values, spans, strict=True):
            field = self._field(value.name)
            if value.is_text and field is None:
                continue
            texts = text.texts(span)
            if value.is_text:
                found[value.name] = texts
            elif field is None:
                good &= _matches(texts, _ANY)
            else:
                found[value.name], fit = _plain(texts, field.type)
                good &= fit
        columns = [
            found[field.name] if field.name in found else pa.nulls(len(rows), field.type) for field in self._schema
        ]
        members = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if not good.all():
            members, rows = members.filter(pa.array(good)), _most(rows[good], text.count)
        taken = np.zeros(text.count, dtype=np.bool_)
        taken[rows] = True
        return members, taken


@dataclass(frozen=True, slots=True)
class _Text:
    """Hold records as they lie in memory, one behind the other: each begins at one of the ``edges``."""

    data: pa.Buffer
    octets: npt.NDArray[np.uint8]
    edges: Places

    @classmethod
    def of(cls, values: pa.BinaryArray) -> _Text:
        """Return the records of a column."""
        _, offsets, data = values.buffers()
        places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        data = data.slice(int(places[0]), int(places[-1] - places[0]))
        return cls(data, np.frombuffer(data, np.uint8), places - places[0])

    @property
    def count(self) -> int:
        """Return how many records there are."""
        return len(self.edges) - 1

    def record(self, row: int) -> bytes:
        """Return one record."""
        return self.octets[self.edges[row] : self.edges[row + 1]].tobytes()

    def is_utf8(self, values: pa.BinaryArray) -> bool:
        """Return whether each record is UTF-8."""
        if self.octets.max() < _NO_ASCII:
            return True
        try:
            values.view(pa.string()).validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    def texts(self, span: _Span) -> pa.StringArray:
        """Return a value of each record as text."""
        count = len(span.starts)
        edges = np.empty(2 * count, dtype=np.int32)
        edges[0::2], edges[1::2] = span
        both = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(edges), self.data, null_count=0)
        return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))

    def spans(self, layout: _Layout) -> tuple[Places, Sequence[_Span]]:
        """Return which records have a layout, and where each of its values is in them. Raises _UnlikeError."""
        rows, marks = self._with_quotes(layout.quotes)
        begins, ends = self.edges[:-1][rows], self.edges[1:][rows]
        runs = _Runs(self.octets, max(len(value.before) for value in layout.values) + len(layout.after))
        differ = np.zeros(len(rows), dtype=np.uint64)
        fits = np.ones(len(rows), dtype=np.bool_)
        spans: list[_Span] = []
        at, mark = begins, 0
        following = [value.before for value in layout.values[1:]] + [layout.after]
        for value, behind in zip(layout.values, following, strict=True):
            differ |= runs.differ(value.before, at)
            starts = at + len(value.before)
            mark += value.before.count(b'"')
            # A text ends at its own quote. Behind another value are bytes with a quote, except behind the last one.
            at = marks[mark] - behind.index(b'"') if b'"' in behind else ends - len(behind)
            fits &= at >= starts
            spans.append(_Span(starts, at))
        differ |= runs.differ(layout.after, at)
        fits &= (differ == 0) & (at + len(layout.after) == ends)
        if fits.all():
            return rows, spans
        return _most(rows[fits], self.count), [_Span(span.starts[fits], span.stops[fits]) for span in spans]

    def _with_quotes(self, count: int) -> tuple[Places, Places]:
        """Return which records have ``count`` quotes, no escape and no control character; and where their quotes are.

        The places have a row for the first quotes, one for the second, and so on. Raises _UnlikeError.
        """
        marks = np.flatnonzero(self.octets == _QUOTE)
        plain = np.ones(self.count, dtype=np.bool_)
        for odd in (self.octets < _BLANK, self.octets == _ESCAPE):
            if odd.any():
                plain[self.edges.searchsorted(np.flatnonzero(odd), side="right") - 1] = False
        if len(marks) != self.count * count or not self._are_in_turn(marks.reshape(-1, count)):
            counts = np.diff(marks.searchsorted(self.edges))
            plain &= counts == count
            marks = marks[np.repeat(plain, counts)]
        elif not plain.all():
            marks = marks[np.repeat(plain, count)]
        return _most(np.flatnonzero(plain), self.count), np.ascontiguousarray(marks.reshape(-1, count).T)

    def _are_in_turn(self, marks: Places) -> bool:
        """Return whether each row of places is within the record of that row."""
        return bool((marks[:, 0] >= self.edges[:-1]).all() and (marks[:, -1] < self.edges[1:]).all())


class _Runs:
    """Compare bytes at many places, eight at a time. ``longest``: at most this many are compared at one place."""

    def __init__(self, octets: npt.NDArray[np.uint8], longest: int) -> None:
        room = np.zeros(len(octets) + longest + _WORD, dtype=np.uint8)
        room[: len(octets)] = octets
        # The word that begins at each byte.
        self._words = np.ndarray((len(room) - _WORD + 1,), "<u8", buffer=room, strides=(1,))

    def differ(self, run: bytes, places: Places) -> npt.NDArray[np.uint64]:
        """Return zero for each place where these bytes begin. A place may be negative: its answer is of no use."""
        if len(run) < _WORD:
            mask = np.uint64(256 ** len(run) - 1)
            return (self._words[places] ^ _word(run)) & mask
        last = len(run) - _WORD
        found: npt.NDArray[np.uint64] = self._words[last:][places] ^ _word(run[last:])
        for begin in range(0, last, _WORD):
            found |= self._words[begin:][places] ^ _word(run[begin : begin + _WORD])
        return found


def _word(octets: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(octets, "little"))


def _most(rows: Places, count: int) -> Places:
    """Return rows if they are at least half of all. Raises _UnlikeError."""
    if 2 * len(rows) < count:
        raise _UnlikeError
    return rows


def _can_have(kind: pa.DataType, value: _Value) -> bool:
    """Return whether a column can have values of this form."""
    if value.is_text:
        return bool(pa.types.is_string(kind))
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _matches(texts: pa.StringArray, pattern: str) -> Rows:
    found: Rows = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    return found


def _plain(texts: pa.StringArray, kind: pa.DataType) -> tuple[pa.Array, Rows]:
    """Return values without quotes as a type, and which of them are such values, or null. Raises _UnlikeError."""
    if pa.types.is_boolean(kind):
        array = pc.equal(texts, "true")
        good = pc.or_(array, pc.equal(texts, "false"))
    elif _are_usual(texts, is_integer=pa.types.is_integer(kind)):
        return _cast(texts, kind), np.ones(len(texts), dtype=np.bool_)
    else:
        good = pc.match_substring_regex(texts, _PATTERNS[pa.types.is_integer(kind)])
        array = _cast(pc.if_else(good, texts, pa.scalar(None, pa.string())), kind)
    if good.false_count:
        array = pc.if_else(good, array, pa.scalar(None, kind))
        good = pc.or_(good, pc.equal(texts, _NULL))
    fits: Rows = good.to_numpy(zero_copy_only=False)
    return array, fits


def _cast(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        raise _UnlikeError from error


def _are_usual(texts: pa.StringArray, *, is_integer: bool) -> bool:
    """Return whether all are numbers as JSON has them, apart from how many dots a number has; by a few passes.

    False: some have an exponent, or may not be such numbers.
    """
    _, offsets, data = texts.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(texts) + 1]
    octets = np.frombuffer(data, np.uint8)[: edges[-1]]
    starts, lasts = edges[:-1], edges[1:] - 1
    if (starts > lasts).any() or (lasts - starts).max() >= _MOST_LETTERS[is_integer]:
        return False
    are_digits = (octets >= _ZERO) & (octets <= _NINE)
    others = np.flatnonzero(~are_digits)
    if len(others):
        are_negative = octets[starts] == _MINUS
        starts = starts + are_negative
        others = others[octets[others] != _MINUS]
        if np.count_nonzero(octets == _MINUS) != np.count_nonzero(are_negative) or (starts > lasts).any():
            return False
        if len(others) and (
            is_integer
            or (octets[others] != _DOT).any()
            or others[-1] + 1 == len(octets)
            or not (are_digits[others - 1] & are_digits[others + 1]).all()
        ):
            return False
    if not (are_digits[starts].all() and are_digits[lasts].all()):
        return False
    # No zero before another digit.
    zeros = starts[(octets[starts] == _ZERO) & (starts < lasts)]
    return not len(zeros) or bool((octets[zeros + 1] == _DOT).all())
