"""Say of single JSON records whether they may fit a schema, and why not, before Arrow's parser reads them.

The judge takes all that Arrow takes, so that it never decides what Arrow decides for records that are read in bulk.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Arrow takes these as numbers, where JSON has none.
_NO_NUMBERS = (b"NaN", b"Inf")
# Arrow computes with 256 bits: ten to the power of 76. A number that it multiplies or divides by more crashes the
# process, or becomes another number.
_MOST_DIGITS = 76
# So a number has at most these digits, or those that the scale leaves, and an exponent that is not in `_EXPONENTS`.
_MOST_READ = 46
# Exponents of -30 and below at the end of a value, and escaped ones: more than there are, for they may be other text.
_EXPONENTS = [
    re.compile(pattern)
    for pattern in (
        rb'e-0*(?:[3-9]\d|[1-9]\d\d+)["\s,}\]]',
        rb'E-0*(?:[3-9]\d|[1-9]\d\d+)["\s,}\]]',
        rb"\\u00(?:3\d|2[dDeE]|[46]5)",
    )
]
# A text, ended or not, or what Arrow takes as a number where JSON has none.
_TEXT_OR_NO_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?(?:NaN|Inf(?:inity)?)', re.DOTALL)
# Stands for such a number: as it, this one fits floating-point columns, members without a column, and nothing else.
_STAND_IN = "1E+77"
# Arrow reads an exponent above this one, and that of a fraction above this one and its digits, as no number.
_MOST_EXPONENT = 308
_EXPONENT_LETTERS = 9
_EXPONENT = re.compile(r"(?:\.(?P<fraction>[0-9]+))?[eE]\+?(?P<exponent>[0-9]+)")
_DECIMAL_TEXT = re.compile(r"[+-]?0*(?P<whole>[0-9]*)\.?(?P<fraction>[0-9]*)(?:[eE][+-]?[0-9]+)?")
_JUDGED_AS = {pa.types.is_boolean: bool, pa.types.is_floating: float, pa.types.is_decimal: Decimal}


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow's JSON parser reads values of a type: ``text_values`` makes that type of it.

    Times, dates and bytes are text. Arrow stores decimals of the width of a column without looking whether they fit,
    so they are read as wider ones; their digits and those of the scale are never too many together.
    """
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal256(min(_MOST_READ, _MOST_DIGITS - kind.scale), kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.list_(pa.struct([("key", pa.string()), ("value", read_type(kind.item_type))]))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, read_type(field.type)) for field in kind])
    return kind


def may_crash(text: bytes) -> bool:
    """Return whether a text may have a number that crashes Arrow's parser of decimals."""
    return (b"-" in text or b"\\u00" in text) and any(pattern.search(text) for pattern in _EXPONENTS)


class Judge:
    """See the module."""

    def __init__(self, schema: pa.Schema, *, closed: bool) -> None:
        fields = [(field.name, read_type(field.type)) for field in schema]
        self._decoder = msgspec.json.Decoder(_struct("Record", fields, closed=closed))
        self._read_as = pa.struct(fields)
        # Objects are tuples, arrays lists, and numbers their texts.
        self._members = json.JSONDecoder(object_pairs_hook=tuple, parse_float=_fraction, parse_int=str)
        self._decimals = [(f"f{number}", field) for number, field in enumerate(schema) if has_decimals(field.type)]

    def fault_of(self, row: int, record: bytes) -> Fault | None:
        """Return the fault of a record; None if this finds none."""
        reason = DeadLetterReason.UNPARSABLE
        try:
            record.decode()
            found = self._decoder.decode(record)
        except UnicodeDecodeError as error:
            return Fault(row, reason, f"no UTF-8 at byte {error.start}")
        except msgspec.ValidationError as error:
            return Fault(row, DeadLetterReason.DOES_NOT_FIT, str(error))
        except msgspec.DecodeError as error:
            # Arrow decides of what it may take: in a member without a column it is of no use to anyone.
            is_odd = any(word in record for word in _NO_NUMBERS)
            return self._unseen(row, record) if is_odd else Fault(row, reason, f"no JSON: {error}")
        except RecursionError:
            # Arrow's parser has no such limit.
            return self._unseen(row, record)
        for attribute, field in self._decimals:
            if (why := _decimal_fault(getattr(found, attribute), field.type, f"$.{field.name}")) is not None:
                return Fault(row, DeadLetterReason.DOES_NOT_FIT, why)
        return None

    def refusal_of(self, row: int, record: bytes) -> Fault | None:
        """Return why Arrow refuses a record in which ``fault_of`` finds nothing; None if this does not find it either.

        What it finds, Arrow refuses also by itself. It makes Python's objects of each member, so it is slow.
        """
        text = record
        if has_no_number := any(word in record for word in _NO_NUMBERS):
            text = _TEXT_OR_NO_NUMBER.sub(_stood_for, record)
        try:
            members = self._members.decode(text.decode())
            # Half of a surrogate pair, which only an escape can be, is no text.
            if b"\\u" in text:
                json.dumps(members, ensure_ascii=False).encode()
        except RecursionError:
            return None
        except OverflowError as error:
            return Fault(row, DeadLetterReason.DOES_NOT_FIT, str(error))
        except json.JSONDecodeError as error:
            return Fault(row, DeadLetterReason.UNPARSABLE, f"no JSON: {error.msg}")
        except UnicodeEncodeError:
            return Fault(row, DeadLetterReason.UNPARSABLE, "no JSON: it has half of a surrogate pair")
        if has_no_number and (fault := self.fault_of(row, text)) is not None:
            return replace(fault, why=fault.why.replace(_STAND_IN, "NaN"))
        why = _refusal(members, self._read_as, "$")
        return None if why is None else Fault(row, DeadLetterReason.DOES_NOT_FIT, why)

    def _unseen(self, row: int, record: bytes) -> Fault | None:
        """Return the fault of a record whose numbers this can't see; None if Arrow may see them."""
        if self._decimals and may_crash(record):
            return Fault(row, DeadLetterReason.DOES_NOT_FIT, "it is nested too deep, or has what is no number")
        return None


def has_decimals(kind: pa.DataType) -> bool:
    """Return whether a type is a decimal, or has one inside."""
    if pa.types.is_decimal(kind):
        return True
    return any(has_decimals(kind.field(number).type) for number in range(kind.num_fields))


def _stood_for(found: re.Match[bytes]) -> bytes:
    """Return a text as it is, and the stand-in for any other match, apart from what is beside it."""
    return found[0] if found[0].startswith(b'"') else f" {_STAND_IN} ".encode()


def _fraction(number: str) -> str:
    """Return a number as it was written. Raises OverflowError."""
    if found := _EXPONENT.search(number):
        exponent = found["exponent"].lstrip("0")
        if len(exponent) > _EXPONENT_LETTERS or int(exponent or 0) > _MOST_EXPONENT + len(found["fraction"] or ""):
            raise OverflowError("Number out of range")
    return number


def _refusal(value: Any, kind: pa.DataType, place: str) -> str | None:  # noqa: ANN401  of any type
    """Return why Arrow refuses a value that the judge takes; None if this finds nothing."""
    inner: Iterable[str | None] = ()
    if pa.types.is_list(kind) and isinstance(value, list):
        inner = (_refusal(one, kind.value_type, f"{place}[...]") for one in value)
    elif pa.types.is_struct(kind) and isinstance(value, tuple):
        members = [(name, member, number) for name, member in value if (number := kind.get_field_index(name)) >= 0]
        names = [name for name, *_ in members]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            return f"it is there twice - at `{place}.{twice}`"
        inner = (_refusal(member, kind.field(number).type, f"{place}.{name}") for name, member, number in members)
    elif pa.types.is_decimal(kind) and isinstance(value, str):
        found = _DECIMAL_TEXT.fullmatch(value)
        if found is None or len(found["whole"]) + len(found["fraction"]) > kind.precision:
            return f"it is no decimal, or has too many digits - at `{place}`"
    return next((why for why in inner if why is not None), None)


def _decimal_fault(value: Any, kind: pa.DataType, place: str) -> str | None:  # noqa: ANN401  of any type
    """Return why a decimal in a value does not fit; None if each does."""
    if value is None:
        return None
    inner: Iterable[str | None] = ()
    if pa.types.is_decimal(kind):
        inner = [f"{value} is no {kind} - at `{place}`" if _does_not_fit(value, kind) else None]
    elif pa.types.is_list(kind):
        inner = (_decimal_fault(one, kind.value_type, f"{place}[...]") for one in value)
    elif pa.types.is_map(kind):
        inner = (_decimal_fault(one.f1, kind.item_type, f"{place}[...].value") for one in value)
    elif pa.types.is_struct(kind):
        inner = (
            _decimal_fault(getattr(value, f"f{number}"), field.type, f"{place}.{field.name}")
            for number, field in enumerate(kind)
        )
    return next((why for why in inner if why is not None), None)


def _does_not_fit(value: Decimal, kind: pa.Decimal128Type) -> bool:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or -exponent >= _MOST_DIGITS:
        return True
    # Decimal's own functions round.
    text = "".join(map(str, digits)).lstrip("0")
    digits_without_zeros = text.rstrip("0")
    exponent += len(text) - len(digits_without_zeros)
    return bool(text) and (-exponent > kind.scale or len(digits_without_zeros) + exponent > kind.precision - kind.scale)


def _struct(name: str, fields: Sequence[tuple[str, pa.DataType]], *, closed: bool) -> type[msgspec.Struct]:
    """Return a type whose attributes are the fields, under any name that JSON can have."""
    made = [(f"f{number}", _judged_as(kind, closed=closed) | None, None) for number, (_, kind) in enumerate(fields)]
    names = {f"f{number}": field for number, (field, _) in enumerate(fields)}
    return msgspec.defstruct(name, made, rename=names, gc=False, forbid_unknown_fields=closed)


def _judged_as(kind: pa.DataType, *, closed: bool) -> Any:  # noqa: ANN401  a type
    for is_it, judged in _JUDGED_AS.items():
        if is_it(kind):
            return judged
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if pa.types.is_list(kind):
        return list[_judged_as(kind.value_type, closed=closed) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        return _struct("Struct", [(field.name, field.type) for field in kind], closed=closed)
    return str
