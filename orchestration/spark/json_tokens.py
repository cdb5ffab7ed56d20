r"""Marks the tokens of a JSON text, so that Spark reads each value as the text that was sent.

Spark's reader rewrites numbers (1.10, 1E400) and takes texts for numbers. A marked text has every string as
`"<>string"`, names too, and every number as a string `"<1.10>"`; so all values can be read as strings, none is
rewritten, and a number differs from a string. Never decides which values are good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

#: What begins each string, and each name, of a marked text.
STRING = "<>"
# A string that does not end is a token too: else each quote within it would begin another attempt.
_STRING = r'"([^"\\]*+(?:\\(?s:.)[^"\\]*+)*+)(?:"|\\?\z)'
_SINGLE_QUOTED = _STRING.replace('"', "'")
_NUMBER = r"(-?+[0-9][0-9.eE+-]*+)"
_WORDS = r"([+-]?+INF\b|[+-]?+Infinity\b|NaN\b)"
_NAME = r"(?<![\w$])([A-Za-z_$][\w$]*+)(?=\s*+:)"
_COMMENT = r"//[^\n\r]*+|/\*(?s:.*?)(?:\*/|\z)"
# A marked name, or a value. Of a value only the quotes are kept.
_NAME_OR_VALUE = rf"({_STRING.replace('([', '(?:[', 1)}\s*+:)|(\")[^\"\\]*+(?:\\(?s:.)[^\"\\]*+)*+(\")"
# A backslash before what needs none, and before what does.
_ESCAPED = r'(\\["\\/bfnrtu])|\\(?s:(.))'
# A marked text has no such name, so what has it stands behind the record.
_END = "end"


def with_marks(text: Column, options: Mapping[str, str]) -> Column:
    """Return the text with marks on its tokens, also on those that Spark's options for other forms of JSON allow."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    allowed = _allowed(options)
    strings = [_STRING, *([_SINGLE_QUOTED] if "allowsinglequotes" in allowed else [])]
    if "allowcomments" in allowed:
        text = F.regexp_replace(text, f"({'|'.join(strings)})|{_COMMENT}", "$1")
    strings += [_NAME] if "allowunquotedfieldnames" in allowed else []
    numbers = [_NUMBER, *([_WORDS] if "allownonnumericnumbers" in allowed else [])]
    groups = [f"${number}" for number in range(1, len(strings) + len(numbers) + 1)]
    number, string = "".join(groups[len(strings) :]), "".join(groups[: len(strings)])
    return F.regexp_replace(text, "|".join((*strings, *numbers)), f'"<{number}>{string}"')


def read_texts(marked: Column, fields: DataType, options: Mapping[str, str]) -> Column:
    """Return a struct of `fields` with all values as marked strings; null if `marked` is not exactly one JSON object.

    Spark reads one value and ignores what follows it. In an array, before an element that no record can have, the
    record is alone only if that element is the second one.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType  # noqa: PLC0415  as above

    kind = _marked_kind(fields)
    assert isinstance(kind, StructType)
    followed = F.concat(F.lit("["), marked, F.lit(f'\n,{{"{_END}":""}}]'))
    found = F.from_json(followed, ArrayType(StructType([*kind, StructField(_END, StringType())])), dict(options))
    is_alone = (F.size(found) == 2) & F.get(found, 1).getField(_END).isNotNull()  # noqa: PLR2004  the record and the end
    return F.when(is_alone, F.get(found, 0))


def has_single_names(text: Column, marked: Column, options: Mapping[str, str]) -> Column:
    """Return whether no object has a name twice, at any depth: Spark's reader would keep the last value alone.

    A VARIANT can't have one, and is read in one pass. But its reader has limits of its own, and knows no other forms of
    JSON. So a text that it does not take is read again, as its names alone.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    names = F.regexp_replace(marked, _NAME_OR_VALUE, "$1$2$3")
    allowed = _allowed(options)
    if allowed & {"allowbackslashescapinganycharacter", "allowsinglequotes"}:
        names = F.regexp_replace(names, _ESCAPED, "$1$2")
    if "allowunquotedcontrolchars" in allowed:
        names = F.regexp_replace(names, r"[\x00-\x1f]", " ")
    return F.try_parse_json(text).isNotNull() | F.try_parse_json(names).isNotNull()


def unmarked(text: Column) -> Column:
    """Return the text of a value as it was sent, of an object or an array with its numbers as they were sent."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    # Only a quote that begins a string or a name has no backslash before and a mark behind.
    whole = F.regexp_replace(F.regexp_replace(text, r'(?<!\\)"<([^>"]++)>"', "$1"), r'(?<!\\)"<>', '"')
    number = F.regexp_extract(text, r"^<([^>]++)>$", 1)
    return F.when(text.startswith(STRING), F.substring(text, 3, 2**31 - 1)).otherwise(
        F.when(number != "", number).otherwise(whole)
    )


def _allowed(options: Mapping[str, str]) -> set[str]:
    return {name.lower() for name, value in options.items() if value.lower() == "true"}


def _marked_kind(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType  # noqa: PLC0415  as above

    if isinstance(kind, StructType):
        return StructType([StructField(STRING + one.name, _marked_kind(one.dataType)) for one in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_marked_kind(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), _marked_kind(kind.valueType))
    return StringType()
