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

from receiver_runtime.record_formats.short_values import short_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
_ALL_BITS = np.uint64(2**64 - 1)
_MOST_WORDS = 4  # of one look at a place
# Each value, and each word between two, has a cost that does not depend on how many records there are.
_MOST_VALUES, _MOST_BETWEEN = 256, 4096
# Bytes of records whose values are looked for at once: what is made of them stays in a processor's cache.
_PIECE_BYTES = 2**20


class _Run:
    """Hold bytes that stand between two values, or before or behind them, in each record of a layout."""

    def __init__(self, octets: bytes) -> None:
        self.size = len(octets)
        self.quotes = octets.count(b'"')
        self.first_quote = octets.find(b'"')
        words = [octets[begin : begin + _WORD] for begin in range(0, len(octets), _WORD)]
        self._words = [(_word(word), _word(b"\xff" * len(word))) for word in words]

    def add_differences(self, found: npt.NDArray[np.uint64], room: _Room, places: Places) -> None:
        """Set bits in ``found`` for each place where these bytes do not begin.

        A place may be before the room: its answer is of no use.
        """
        for first in range(0, len(self._words), _MOST_WORDS):
            words = self._words[first : first + _MOST_WORDS]
            looked_at = room.words(len(words))[first * _WORD :][places].view("<u8")
            for number, (word, mask) in enumerate(words):
                differences = looked_at[number :: len(words)] ^ word
                if mask != _ALL_BITS:
                    differences &= mask
                found |= differences


class _Value(NamedTuple):
    """Say what a value of each record is. ``before``: the bytes between the value before it and this one."""

    name: str
    is_text: bool
    before: _Run


class _Layout(NamedTuple):
    """Hold the values of a record in order; see the module. ``after``: the bytes behind the last one."""

    values: Sequence[_Value]
    after: _Run
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
        piece_bytes: how many bytes of records are looked at together.
    """

    def __init__(self, schema: pa.Schema, *, closed: bool, piece_bytes: int = _PIECE_BYTES) -> None:
        self._schema = schema
        self._closed = closed
        self._piece_bytes = piece_bytes
        # That of the records before: the records of a stream are mostly alike.
        self._layout: _Layout | None = None

    def read(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, Rows] | None:
        """Return the members of the records that have one layout, and which these are; None: less than half have one.

        Each record must begin and end with a brace, and none may be null.
        """
        text = _Text.of(values)
        if not text.is_utf8(values):
            return None
        for layout in self._layouts(text):
            try:
                found = self._read(text, layout)
            except _UnlikeError:
                continue
            self._layout = layout
            return found
        return None

    def _layouts(self, text: _Text) -> Iterator[_Layout]:
        """Yield what the layout of most records may be."""
        if (before := self._layout) is not None:
            yield before
        if (first := self._layout_of(text.record(0))) is not None:
            yield first

    def _layout_of(self, record: bytes) -> _Layout | None:
        """Return the layout of a record; None: it has none."""
        values: list[_Value] = []
        between = begin = 0
        at = 1
        member = _MEMBER.match(record, at)
        while member is not None:
            value = "plain" if member["text"] is None else "text"
            before = record[begin : member.start(value)]
            between += len(before)
            values.append(_Value(member["name"].decode(), value == "text", _Run(before)))
            begin, at = member.end(value), member.end()
            if member["end"] == b"}":
                break
            # Looked at before the next one is: a record may have any number.
            is_over = len(values) == _MOST_VALUES or between > _MOST_BETWEEN
            member = None if is_over else _MEMBER.match(record, at)
        if member is None or at != len(record) or between > _MOST_BETWEEN:
            return None
        names = {value.name for value in values}
        fields = [(value, self._field(value.name)) for value in values]
        if len(names) < len(values) or not all(
            _can_have(field.type, value) if field else not self._closed for value, field in fields
        ):
            return None
        return _Layout(values, _Run(record[begin:]), record.count(b'"'))

    def _field(self, name: str) -> pa.Field | None:
        number = self._schema.get_field_index(name)
        return None if number < 0 else self._schema.field(number)

    def _read(self, text: _Text, layout: _Layout) -> tuple[pa.RecordBatch, Rows]:
        """Return the members of the records that have a layout, and which these are. Raises _UnlikeError."""
        rows, spans = text.spans(layout, self._piece_bytes)
        good = np.ones(len(rows), dtype=np.bool_)
        found: dict[str, pa.Array] = {}
        for value, span in zip(layout.values, spans, strict=True):
            field = self._field(value.name)
            if value.is_text and field is None:
                continue
            if not value.is_text and field is not None:
                found[value.name] = short_values(text.octets, span.starts, span.stops, field.type)
                if found[value.name] is not None:
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

    def spans(self, layout: _Layout, piece_bytes: int) -> tuple[Places, Sequence[_Span]]:
        """Return which records have a layout, and where each of its values is in them. Raises _UnlikeError."""
        count = max(1, self.count * piece_bytes // len(self.octets))
        firsts = range(0, self.count, count)
        room = _Room(
            max(int(self.edges[min(first + count, self.count)] - self.edges[first]) for first in firsts),
            max(value.before.size for value in layout.values) + layout.after.size,
        )
        unlike = 0
        found: list[Places] = []
        spans: list[Sequence[_Span]] = []
        for first in firsts:
            places = self.edges[first : first + count + 1]
            begin = places[0]
            piece = _Piece(room, room.filled(self.octets[begin : places[-1]]), places - begin)
            rows, its_spans = piece.spans(layout)
            unlike += piece.count - len(rows)
            if 2 * unlike > self.count:
                raise _UnlikeError
            found.append(rows + first)
            spans.append([_Span(span.starts + begin, span.stops + begin) for span in its_spans])
        return np.concatenate(found), [
            _Span(*map(np.concatenate, zip(*of_value, strict=True))) for of_value in zip(*spans, strict=True)
        ]


class _Room:
    """Hold the bytes of one piece of records after another, with room behind them for a look past their end.

    Args:
        most: the size of the largest piece.
        longest: how far from a byte of the piece a look may begin.
    """

    def __init__(self, most: int, longest: int) -> None:
        self._octets = np.zeros(most + 2 * longest + _MOST_WORDS * _WORD, dtype=np.uint8)
        self._words: dict[int, npt.NDArray[np.void]] = {}

    def filled(self, octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the same bytes in this room."""
        own = self._octets[: len(octets)]
        own[:] = octets
        return own

    def words(self, count: int) -> npt.NDArray[np.void]:
        """Return for each byte the ``count`` words that begin at it."""
        if count not in self._words:
            size = count * _WORD
            places = len(self._octets) - size + 1
            self._words[count] = np.ndarray((places,), f"V{size}", buffer=self._octets, strides=(1,))
        return self._words[count]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Hold some of the records, at the beginning of a room; each begins at one of the ``edges``."""

    room: _Room
    octets: npt.NDArray[np.uint8]
    edges: Places

    @property
    def count(self) -> int:
        """Return how many records there are."""
        return len(self.edges) - 1

    def spans(self, layout: _Layout) -> tuple[Places, Sequence[_Span]]:
        """Return which records have a layout, and where each of its values is in them."""
        rows, marks = self._with_quotes(layout.quotes)
        begins, ends = self.edges[:-1][rows], self.edges[1:][rows]
        differ = np.zeros(len(rows), dtype=np.uint64)
        fits = np.ones(len(rows), dtype=np.bool_)
        spans: list[_Span] = []
        at, mark = begins, 0
        following = [*(value.before for value in layout.values[1:]), layout.after]
        for value, behind in zip(layout.values, following, strict=True):
            value.before.add_differences(differ, self.room, at)
            starts = at + value.before.size
            mark += value.before.quotes
            # A text ends at its own quote. Behind another value are bytes with a quote, except behind the last one.
            at = marks[:, mark] - behind.first_quote if behind.quotes else ends - behind.size
            fits &= at >= starts
            spans.append(_Span(starts, at))
        layout.after.add_differences(differ, self.room, at)
        fits &= (differ == 0) & (at + layout.after.size == ends)
        if fits.all():
            return rows, spans
        return rows[fits], [_Span(span.starts[fits], span.stops[fits]) for span in spans]

    def _with_quotes(self, count: int) -> tuple[Places, Places]:
        """Return which records have ``count`` quotes, no escape and no control character; and where their quotes are.

        The places have a row for each of these records.
        """
        marks = np.flatnonzero(self.octets == _QUOTE)
        plain = np.ones(self.count, dtype=np.bool_)
        for odd in self._odd():
            plain[self.edges.searchsorted(np.flatnonzero(odd), side="right") - 1] = False
        if len(marks) != self.count * count or not self._are_in_turn(marks.reshape(-1, count)):
            counts = np.diff(marks.searchsorted(self.edges))
            plain &= counts == count
            marks = marks[np.repeat(plain, counts)]
        elif not plain.all():
            marks = marks[np.repeat(plain, count)]
        return np.flatnonzero(plain), marks.reshape(-1, count)

    def _odd(self) -> Iterator[Rows]:
        """Yield which bytes a record must not have."""
        if self.octets.min() < _BLANK:
            yield self.octets < _BLANK
        if (escapes := self.octets == _ESCAPE).any():
            yield escapes

    def _are_in_turn(self, marks: Places) -> bool:
        """Return whether each row of places is within the record of that row."""
        return bool((marks[:, 0] >= self.edges[:-1]).all() and (marks[:, -1] < self.edges[1:]).all())


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
