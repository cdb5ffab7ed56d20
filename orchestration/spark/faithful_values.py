"""Compares what Spark read with the text that was sent: a value is faithful if nothing of its text was altered.

Owns what is equal for each type. Texts have the marks of `json_tokens`: `<>text`, `<1.5>`, `true`. Spark rounds
decimals, cuts dates and fractions of a second, takes 12:00 for today, and makes numbers infinite or zero; a value of
which that is true is not faithful. Never parses a record.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestration.spark.json_tokens import STRING, unmarked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# Numbers as everyone writes them: Java also takes "1d" and "0x1p3".
_NUMBER = r"[+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?"
_WORD = r"[+-]?(?:NaN|INF|Inf|Infinity)"
_INTEGER = r"[+-]?\d++"
_DATE = r"[+-]?\d{4,}-\d\d?-\d\d?"
# Seconds since 1970 from the year 1 to 9999; a number outside of them counts milliseconds, or smaller units.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
# Microseconds are what a time of Spark's holds.
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:\.\d{1,6}0*)?)?"
_OFFSET = r" ?[+-]\d\d?(?::?\d\d){0,2}"
# Names of zones that Java guesses: IST is India's, Israel's and Ireland's. EST, MST and HST are of the tz database.
_GUESSED = "A[CEGRS]T|B[ES]T|C[ANS]T|CTT|E[AC]T|I[ES]T|JST|MIT|N[ES]T|P[LNRS]T|[SV]ST"
_ZONE = rf" ?(?!(?:{_GUESSED})$)([A-Za-z][\w/+:-]*)"
_FINER = r"[.,]\d{6}\d*[1-9]"
_EXACT = 2.0**63  # beyond it an integer can't be compared with a DOUBLE exactly
_READING_TIMES = frozenset({"timestampformat", "locale", "enabledatetimeparsingfallback"})  # options
_FINEST_DIGITS = 6  # digits of a second that a time of Spark's has


def unsupported(kind: DataType) -> DataType | None:
    """Return the type within `kind` whose values can't be compared with their texts, or None."""
    for one in within(kind):
        if (found := unsupported(one)) is not None:
            return found
    return None if within(kind) or kind.typeName() in _FAITHFUL else kind


def is_guessed(zone: str) -> bool:
    """Return whether the name of a zone has several meanings, of which Java takes one."""
    return re.fullmatch(_GUESSED, zone) is not None


def is_comparable(options: Mapping[str, str]) -> bool:
    """Return whether times of the format asked for can be compared: those with a zone by name can't."""
    return re.search("[Vvz]", _letters(options)) is None


def marked(kind: DataType, text: Column) -> Column:
    """Return a text without marks, such as a field of CSV, with those of its type."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    rule = _FAITHFUL[kind.typeName()]
    if rule is _boolean:
        return F.lower(text)
    is_number = rule in (_integer, _float, _decimal)
    return F.concat(F.lit("<"), text, F.lit(">")) if is_number else F.concat(F.lit(STRING), text)


def is_faithful(kind: DataType, value: Column, text: Column, options: Mapping[str, str]) -> Column:
    """Return whether `value` is what its marked `text` says. Never null."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415  as above

    def each(element: DataType, values: Column, texts: Column) -> Column:
        pairs = F.zip_with(values, texts, lambda one, said: is_faithful(element, one, said, options))
        return F.forall(pairs, lambda is_same: is_same)

    if isinstance(kind, StructType):
        each_same = (
            is_faithful(one.dataType, value.getField(one.name), text.getField(STRING + one.name), options)
            for one in kind
        )
        # As an array: a chain of many conditions would end the stack of Java.
        same = F.forall(F.array(value.isNotNull() & text.isNotNull(), *each_same), lambda is_same: is_same)
    elif isinstance(kind, ArrayType):
        same = each(kind.elementType, value, text)
    elif isinstance(kind, MapType):
        keys = F.map_keys(value)
        # Spark keeps a key that came twice, twice.
        same = F.size(F.array_distinct(keys)) == F.size(keys)
        same &= F.map_keys(text) == F.transform(keys, lambda key: F.concat(F.lit(STRING), key))
        same &= each(kind.valueType, F.map_values(value), F.map_values(text))
    else:
        same = _FAITHFUL[kind.typeName()](kind, value, text, options)
    return (value.isNull() & text.isNull()) | F.coalesce(same, F.lit(False))  # noqa: FBT003  SQL's literal


def with_texts(kind: DataType, value: Column, text: Column) -> Column:
    """Return `value` with every STRING within it as it was sent, where Spark rewrites numbers."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType  # noqa: PLC0415  as above

    if isinstance(kind, StringType):
        return unmarked(text).cast(kind)
    if not _has_text(kind):
        return value
    if isinstance(kind, StructType):
        fields = [
            with_texts(one.dataType, value.getField(one.name), text.getField(STRING + one.name)).alias(one.name)
            for one in kind
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.zip_with(value, text, lambda one, said: with_texts(element, one, said))
    assert isinstance(kind, MapType)
    of_key = kind.valueType
    return F.transform_values(
        value, lambda key, one: with_texts(of_key, one, F.try_element_at(text, F.concat(F.lit(STRING), key)))
    )


def within(kind: DataType) -> list[DataType]:
    """Return the types that a type consists of; none of one that is not nested."""
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415  the light parts load no Spark

    if isinstance(kind, StructType):
        return [one.dataType for one in kind]
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    return [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []


def _has_text(kind: DataType) -> bool:
    from pyspark.sql.types import StringType  # noqa: PLC0415  the light parts load no Spark

    return isinstance(kind, StringType) or any(_has_text(one) for one in within(kind))


def _bare(text: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    return F.regexp_replace(text, "^<>?|>$", "")


def _string(_: DataType, value: Column, text: Column, __: Mapping[str, str]) -> Column:
    return value.isNotNull() & text.isNotNull()


def _boolean(_: DataType, value: Column, text: Column, __: Mapping[str, str]) -> Column:
    return value.cast("string") == text


def _integer(_: DataType, value: Column, text: Column, __: Mapping[str, str]) -> Column:
    return text.rlike(f"^<{_INTEGER}>$") & (value.cast("bigint") == _bare(text).try_cast("bigint"))


def _float(_: DataType, value: Column, text: Column, __: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    bare, wide = _bare(text), value.cast("double")
    is_lost = (F.abs(wide) == float("inf")) | ((wide == 0) & text.rlike("^[^eE]*[1-9]"))
    is_rounded = text.rlike(f"^<{_INTEGER}>$") & ~F.coalesce(
        (F.abs(wide) < _EXACT) & (wide.try_cast("bigint") == bare.try_cast("bigint")),
        F.lit(False),  # noqa: FBT003  SQL's literal
    )
    is_number = text.rlike(f"^<{_NUMBER}>$") & ~is_lost & ~is_rounded
    return value.isNotNull() & (text.rlike(f"^<{_WORD}>$") | is_number)


def _decimal(kind: DataType, value: Column, text: Column, __: Mapping[str, str]) -> Column:
    """Count the digits behind the point that the text needs. More than a type has are rounded."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark
    from pyspark.sql.types import DecimalType  # noqa: PLC0415  as above

    assert isinstance(kind, DecimalType)
    bare = _bare(text)
    digits = F.regexp_extract(bare, r"^[+-]?([0-9.]*)", 1)
    exponent = F.regexp_extract(bare, "[eE](.*)$", 1)
    behind = F.length(F.regexp_extract(digits, r"\.(.*)$", 1))
    all_digits = F.replace(digits, F.lit("."), F.lit(""))
    zeros = F.length(all_digits) - F.length(F.rtrim(all_digits, F.lit("0")))
    needed = behind - zeros - F.when(exponent == "", 0).otherwise(exponent.try_cast("int"))
    is_exact = ~digits.rlike("[1-9]") | (needed <= kind.scale)
    return value.isNotNull() & text.rlike(f"^<(?:{_NUMBER}>|>{_NUMBER})$") & is_exact


def _date(_: DataType, value: Column, text: Column, options: Mapping[str, str]) -> Column:
    return value.isNotNull() & text.rlike(f"^<>{_DATE}$" if _format(options, "dateFormat") is None else "^<>")


def _timestamp(_: DataType, value: Column, text: Column, options: Mapping[str, str]) -> Column:
    """Compare the clock's time too: clocks that are set forward leave out an hour, and Spark moves what is within."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    unix = F.unix_seconds(value)
    is_same = (unix == _bare(text).try_cast("bigint")) & unix.between(_FIRST_SECOND, _LAST_SECOND)
    seconds = text.rlike(f"^<{_INTEGER}>$") & is_same
    asked, zone = _format(options, "timestampFormat"), _format(options, "timeZone")
    clock = F.current_timezone() if zone is None else F.lit(zone)
    if asked is not None:
        return seconds | (text.rlike("^<>") & ~_is_finer(asked, text) & _is_of_clock(value, text, clock, options))
    day, time, name = (
        F.regexp_extract(text, f"^<>({_DATE})(?:[ T]({_CLOCK})(?:{_ZONE})?)?$", group) for group in (1, 2, 3)
    )
    # Spark takes a zone only behind seconds.
    seconds_too = F.when(time == "", "00:00:00").when(time.rlike(":.*:"), time).otherwise(F.concat(time, F.lit(":00")))
    said = F.concat(day, F.lit(" "), seconds_too, F.lit("Z")).try_cast("timestamp")
    # The name of a zone that Spark does not know would end the batch: such a text is no time.
    is_known = (name == "") | (_bare(text).try_cast("timestamp") == value)
    local = F.when(is_known, F.from_utc_timestamp(value, F.when(name == "", clock).otherwise(name)))
    return value.isNotNull() & (seconds | text.rlike(f"^<>{_DATE}[ T]{_CLOCK}{_OFFSET}$") | (local == said))


def _is_of_clock(value: Column, text: Column, clock: Column, options: Mapping[str, str]) -> Column:
    """Return whether a time in the caller's format is what the clock showed; one with an offset needs no clock."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    asked = {name: one for name, one in options.items() if name.lower() in _READING_TIMES}

    def at(offset: str) -> Column:
        record = F.to_json(F.struct(unmarked(text).alias("t")))
        return F.from_json(record, "t TIMESTAMP_LTZ", {**asked, "timeZone": offset}).getField("t")

    letters = _letters(options)
    is_same = F.from_utc_timestamp(value, clock) == at("+00:00")
    if re.search("[OXxZ]", letters) is None:
        return is_same
    return (is_same | (at("+00:00") == at("+01:00"))) if "[" in letters else value.isNotNull()


def _timestamp_ntz(_: DataType, value: Column, text: Column, options: Mapping[str, str]) -> Column:
    asked = _format(options, "timestampNTZFormat")
    good = text.rlike(f"^<>{_DATE}(?:[ T]{_CLOCK})?$") if asked is None else text.rlike("^<>") & ~_is_finer(asked, text)
    return value.isNotNull() & good


def _binary(_: DataType, value: Column, text: Column, __: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    return F.concat(F.lit(STRING), F.regexp_replace(F.base64(value), r"\s", "")) == text


def _is_finer(asked: str, text: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    return text.rlike(_FINER) if "S" * (_FINEST_DIGITS + 1) in asked else F.lit(False)  # noqa: FBT003  as above


def _format(options: Mapping[str, str], name: str) -> str | None:
    return next((value for asked, value in options.items() if asked.lower() == name.lower()), None)


def _letters(options: Mapping[str, str]) -> str:
    """Return the format of times without what is in quotes."""
    return re.sub("'[^']*'", "", _format(options, "timestampFormat") or "")


_FAITHFUL: Mapping[str, Callable[[DataType, Column, Column, Mapping[str, str]], Column]] = {
    "string": _string,
    "boolean": _boolean,
    **dict.fromkeys(("byte", "short", "integer", "long"), _integer),
    **dict.fromkeys(("float", "double"), _float),
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
    "binary": _binary,
}
