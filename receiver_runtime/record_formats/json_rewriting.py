"""Write a JSON record again as Arrow's parser reads it: maps as arrays of entries, and what `coerce=` allows as strict.

Only records that need it come here: those of a schema with a MAP, and those that did not fit as they are. It makes
Python objects of a record, and never a value: it writes text, and the strict reader decides what that is.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from receiver_runtime.block_store.frames.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import TypeAlias

    Value: TypeAlias = "str | bool | list[Value] | _Members | None"
    # Returns the text of a value; a coercion returns None if it is not for that value.
    Writer = Callable[[Value], str]
    Coercion = Callable[[Value], str | None]

# Checks values and builds none.
_UNBUILT = msgspec.json.Decoder(msgspec.Raw)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# A time without a zone, as TIMESTAMP_NTZ takes it: a date alone is its midnight.
_LOCAL_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?P<time>[T ][0-9]{2}(?::[0-9]{2}){0,2}(?:\.[0-9]+)?)?")
_WORDS = {True: "true", False: "false", None: "null"}
_BOOLEANS = {"true": "true", "false": "false", "1": "true", "0": "false"}
_MOST_LEVELS = 200
# Brackets, and strings, which may have brackets in them.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
# Letters of a number, and digits before its point, of what may be an integer or a time: more are of no use.
_MOST_LETTERS = 100
_MOST_DIGITS = 40
# Digits after the point of such a number that are whole microseconds.
_EPOCHS = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  its text is without a zone


class NotWrittenError(ValueError):
    """Keep the record as a dead letter, with this reason: it can't be written again."""

    def __init__(self, why: str, reason: DeadLetterReason = DeadLetterReason.DOES_NOT_FIT) -> None:
        super().__init__(why)
        self.reason = reason


class _Number(str):
    """Hold a number, or NaN, as it was written."""

    __slots__ = ()


class _Members(NamedTuple):
    """Hold the members of an object, in order; a name may be there twice."""

    pairs: list[tuple[str, Value]]


class Rewriter:
    """See the module.

    Args:
        schema: the columns.
        coerce: names of coercions; none: only maps are written in another way.
    """

    def __init__(self, schema: pa.Schema, coerce: Collection[str]) -> None:
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_Members, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
        self._write = _members_writer(schema, coerce, "$")

    def rewritten(self, record: bytes) -> bytes:
        """Return the record in strict JSON, as Arrow reads it. Raises NotWrittenError."""
        if _is_deep(record):
            raise NotWrittenError("it is nested too deep")
        try:
            text = record.decode()
            _UNBUILT.decode(record)
            return self._write(self._decoder.decode(text)).encode()
        except UnicodeDecodeError as error:
            raise NotWrittenError(f"no UTF-8 at byte {error.start}", DeadLetterReason.UNPARSABLE) from error
        except msgspec.DecodeError as error:
            raise NotWrittenError(f"no JSON: {error}", DeadLetterReason.UNPARSABLE) from error
        except RecursionError as error:
            raise NotWrittenError("it is nested too deep") from error


def _is_deep(record: bytes) -> bool:
    """Return whether a record is nested deeper than it may be: Python's own limit depends on its version and caller."""
    if record.count(b"[") + record.count(b"{") <= _MOST_LEVELS:
        return False
    depth = 0
    for token in _BRACKETS.finditer(record):
        if (found := token[0]) in b"[{":
            depth += 1
            if depth > _MOST_LEVELS:
                return True
        elif found in b"]}":
            depth -= 1
    return False


def has_maps(kind: pa.DataType) -> bool:
    """Return whether a type is a map, or has one inside."""
    return pa.types.is_map(kind) or any(has_maps(kind.field(number).type) for number in range(kind.num_fields))


def _writer(kind: pa.DataType, coerce: Collection[str], place: str) -> Writer:
    """Return what writes values of a type."""
    coercions = list(_coercions(kind, coerce))
    if pa.types.is_struct(kind):
        write = _members_writer(kind, coerce, place)
    elif pa.types.is_map(kind):
        write = _map_writer(_writer(kind.item_type, coerce, f"{place}[...]"), place)
    elif pa.types.is_list(kind):
        write = _array_writer(_writer(kind.value_type, coerce, f"{place}[...]"))
    else:
        write = _plain
    if not coercions:
        return write

    def coerced(value: Value) -> str:
        for coercion in coercions:
            if (text := coercion(value)) is not None:
                return text
        return write(value)

    return coerced


def _members_writer(fields: Iterable[pa.Field], coerce: Collection[str], place: str) -> Writer:
    writers = {
        field.name: (f"{json.dumps(field.name)}:", _writer(field.type, coerce, f"{place}.{field.name}"))
        for field in fields
    }

    def write(value: Value) -> str:
        if not isinstance(value, _Members):
            return _plain(value)
        parts = []
        for name, member in value.pairs:
            found = writers.get(name)
            # The strict reader may refuse members without a column, so it sees their names.
            parts.append(f"{json.dumps(name)}:null" if found is None else found[0] + found[1](member))
        return f"{{{','.join(parts)}}}"

    return write


def _array_writer(item: Writer) -> Writer:
    def write(value: Value) -> str:
        if isinstance(value, list):
            return f"[{','.join(map(item, value))}]"
        return _plain(value)

    return write


def _map_writer(item: Writer, place: str) -> Writer:
    def write(value: Value) -> str:
        if value is None:
            return "null"
        if not isinstance(value, _Members):
            raise NotWrittenError(f"Expected `object | null`, got another value - at `{place}`")
        if len({name for name, _ in value.pairs}) < len(value.pairs):
            raise NotWrittenError(f"a member is there twice - at `{place}`")
        entries = [f'{{"key":{json.dumps(name)},"value":{item(member)}}}' for name, member in value.pairs]
        return f"[{','.join(entries)}]"

    return write


def _plain(value: Value) -> str:
    """Return a value as it was."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, _Members):
        return f"{{{','.join(f'{json.dumps(name)}:{_plain(member)}' for name, member in value.pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_plain, value))}]"
    return json.dumps(value) if isinstance(value, str) else _WORDS[value]


# -- what `coerce=` names --------------------------------------------------------------------------------------------


def _coercions(kind: pa.DataType, coerce: Collection[str]) -> Iterable[Coercion]:
    """Yield the coercions that are for a type."""
    if "empty_as_null" in coerce and not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        yield _null_of_empty
    if "numbers" in coerce and pa.types.is_integer(kind):
        yield _integer
    if "numbers" in coerce and pa.types.is_floating(kind):
        yield _quoted_number
    if "booleans" in coerce and pa.types.is_boolean(kind):
        yield _boolean
    if "text" in coerce and pa.types.is_string(kind):
        yield _text
    if pa.types.is_timestamp(kind) and kind.tz:
        for unit in coerce:
            if unit in _EPOCHS:
                yield _epoch(_EPOCHS[unit], quoted="numbers" in coerce)
        if "assume_utc" in coerce:
            yield _utc


def _null_of_empty(value: Value) -> str | None:
    return "null" if value == "" else None


def _quoted_number(value: Value) -> str | None:
    return value if isinstance(value, str) and _JSON_NUMBER.fullmatch(value) else None


def _whole(text: str, digits: int) -> int | None:
    """Return a number times ten to the power of ``digits``; None if that is not whole, or the number far too large."""
    if len(text) > _MOST_LETTERS:
        return None
    try:
        number = Decimal(text)
    except ArithmeticError:
        return None
    sign, figures, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    exponent += digits
    if not number:
        return 0
    if number.adjusted() > _MOST_DIGITS or (exponent < 0 and any(figures[exponent:])):
        return None
    kept = "".join(map(str, figures[:exponent] if exponent < 0 else figures))
    return int("-" * sign + kept + "0" * exponent)


def _integer(value: Value) -> str | None:
    text = _quoted_number(value)
    number = None if text is None else _whole(text, 0)
    return None if number is None else str(number)


def _boolean(value: Value) -> str | None:
    return _BOOLEANS.get(value.lower()) if isinstance(value, str) else None


def _text(value: Value) -> str | None:
    if isinstance(value, _Number):
        return f'"{value}"'
    if isinstance(value, bool):
        return '"true"' if value else '"false"'
    return None


def _utc(value: Value) -> str | None:
    found = _LOCAL_TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    return f'"{found[0]}Z"' if found["time"] else f'"{found[0]}T00:00Z"'


def _epoch(digits: int, *, quoted: bool) -> Coercion:
    """Return what writes a number since 1970 as a time: ``digits`` after its point are microseconds."""

    def coerced(value: Value) -> str | None:
        if not (quoted or isinstance(value, _Number)):
            return None
        text = _quoted_number(value)
        number = None if text is None else _whole(text, digits)
        if number is None:
            return None
        try:
            return f'"{(_EPOCH + timedelta(microseconds=number)).isoformat()}Z"'
        except OverflowError:
            return None

    return coerced
