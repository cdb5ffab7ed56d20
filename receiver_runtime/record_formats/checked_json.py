"""Read JSON objects whose values must keep rules: bounds, lengths, patterns, and what is there. All rows at once."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.record_formats.record_reader import Fault, Parsed
from receiver_runtime.sources.records.json_records import JsonObjects
from receiver_runtime.sources.records.shapes import ITEMS
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.records.shapes import Rule

    Rows = np.ndarray[tuple[int], np.dtype[np.int64]]

# The longest part of a value, and of a pattern or of what is allowed, in a reason.
_LONGEST, _LONGEST_RULE = 60, 120
_COMPARED = {
    "at_least": (pc.less, "at least"),
    "more_than": (pc.less_equal, "more than"),
    "at_most": (pc.greater, "at most"),
    "less_than": (pc.greater_equal, "less than"),
}


class CheckedJsonReader(JsonReader):
    """Read JSON objects, and refuse those whose values break a rule; see the module. Safe from any thread.

    Raises ValueError: RE2 does not take a pattern.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        assert isinstance(records, JsonObjects)
        self._rules = records.rules
        try:
            for rule in self._rules:
                if rule.rule == "pattern":
                    pc.match_substring_regex(pa.array([""]), rule.value)
        except pa.ArrowInvalid as error:
            raise ValueError(f"pattern: {error}: write one that RE2 takes") from error

    def read(self, values: pa.BinaryArray) -> Parsed:
        """See ``RecordReader``."""
        parsed = super().read(values)
        broken = _broken_rules(parsed.batch, self._rules) if self._rules else {}
        if not broken:
            return parsed
        fits = np.ones(len(values), dtype=np.bool_)
        fits[[fault.row for fault in parsed.faults]] = False
        rows = np.flatnonzero(fits)
        faults = [Fault(int(rows[row]), DeadLetterReason.DOES_NOT_FIT, why) for row, why in broken.items()]
        keeps = np.ones(parsed.batch.num_rows, dtype=np.bool_)
        keeps[list(broken)] = False
        return Parsed(
            parsed.batch.filter(pa.array(keeps)), sorted([*parsed.faults, *faults], key=lambda fault: fault.row)
        )


def _broken_rules(batch: pa.RecordBatch, rules: tuple[Rule, ...]) -> dict[int, str]:
    """Return the rows that break a rule, and what is said of each."""
    found: dict[int, str] = {}
    for rule in rules:
        rows, values = _broken(batch.column(rule.path[0]), rule.path[1:], rule)
        place = "".join("[...]" if part == ITEMS else f".{part}" for part in rule.path)
        for row, value in zip(rows.tolist(), values, strict=True):
            found.setdefault(row, f"{_said(value, rule)} - at `${place}`")
    return found


def _broken(array: pa.Array, path: tuple[str, ...], rule: Rule) -> tuple[Rows, list[object]]:
    """Return the rows of an array that break a rule within it, and the values that do."""
    if not path:
        rows = np.flatnonzero(pc.fill_null(_breaks(array, rule), False).to_numpy(zero_copy_only=False))  # noqa: FBT003  Arrow's
        return rows, array.take(pa.array(rows)).to_pylist()
    if path[0] == ITEMS:
        inner, parents = array.flatten(), pc.list_parent_indices(array).to_numpy()
    else:
        number = array.type.get_field_index(path[0])
        inner, parents = array.flatten()[number], np.arange(len(array))
    if rule.rule == "required" and len(path) == 1:
        lacks = inner.is_null()
        if path[0] != ITEMS:
            lacks = pc.and_(lacks, array.is_valid())
        rows = np.flatnonzero(lacks.to_numpy(zero_copy_only=False))
        return parents[rows], [None] * len(rows)
    rows, values = _broken(inner, path[1:], rule)
    return parents[rows], values


def _breaks(array: pa.Array, rule: Rule) -> pa.BooleanArray:
    """Return for each value whether it breaks a rule of its own."""
    if rule.rule in _COMPARED:
        value = rule.value
        bound = pa.scalar(Decimal(value)) if isinstance(value, str) else pa.scalar(value, array.type)
        return _COMPARED[rule.rule][0](array, bound)
    if rule.rule == "one_of":
        allowed = pc.is_in(array, value_set=pa.array(rule.value, array.type))
        return pc.and_(pc.invert(allowed), array.is_valid())
    if rule.rule == "pattern":
        return pc.invert(pc.match_substring_regex(array, rule.value))
    length = pc.utf8_length(array) if pa.types.is_string(array.type) else pc.list_value_length(array)
    return (pc.less if rule.rule == "min_length" else pc.greater)(length, pa.scalar(rule.value))


def _said(value: object, rule: Rule) -> str:
    if rule.rule == "required":
        return "the value is missing or null"
    found = shortened(repr(value), _LONGEST) if not isinstance(value, Decimal) else str(value)
    if rule.rule in _COMPARED:
        return f"{found} is not {_COMPARED[rule.rule][1]} {rule.value}"
    if rule.rule == "one_of":
        assert isinstance(rule.value, tuple)
        return f"{found} is none of {shortened(', '.join(map(repr, rule.value)), _LONGEST_RULE)}"
    if rule.rule == "pattern":
        return f"{found} does not match {shortened(str(rule.value), _LONGEST_RULE)}"
    return f"{found} has {'less' if rule.rule == 'min_length' else 'more'} than {rule.value}"
