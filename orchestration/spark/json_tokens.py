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
# A marked text has no such name, so what has it stands behind the record.
_END = "end"


def read_texts(text: Column, fields: DataType, options: Mapping[str, str]) -> Column:
    """Return a struct of `fields` with all values as marked strings; null if the text is not exactly one JSON object.

    Spark reads one value and ignores what follows it. In an array, before an element that no record can have, the
    record is alone only if that element is the second one.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType  # noqa: PLC0415  as above

    kind = _marked_kind(fields)
    assert isinstance(kind, StructType)
    marked = F.concat(F.lit("["), _marked(text, options), F.lit(f'\n,{{"{_END}":""}}]'))
    found = F.from_json(marked, ArrayType(StructType([*kind, StructField(_END, StringType())])), dict(options))
    is_alone = (F.size(found) == 2) & F.get(found, 1).getField(_END).isNotNull()  # noqa: PLR2004  the record and the end
    return F.when(is_alone, F.get(found, 0))


def unmarked(text: Column) -> Column:
    """Return the text of a value as it was sent, of an object or an array with its numbers as they were sent."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    # Only a quote that begins a string or a name has no backslash before and a mark behind.
    whole = F.regexp_replace(F.regexp_replace(text, r'(?<!\\)"<([^>"]++)>"', "$1"), r'(?<!\\)"<>', '"')
    number = F.regexp_extract(text, r"^<([^>]++)>$", 1)
    return F.when(text.startswith(STRING), F.substring(text, 3, 2**31 - 1)).otherwise(
        F.when(number != "", number).otherwise(whole)
    )


def _marked(text: Column, options: Mapping[str, str]) -> Column:
    """Return the text with marks on its tokens, also on those that Spark's options for other forms of JSON allow."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark

    allowed = {name.lower() for name, value in options.items() if value.lower() == "true"}
    strings = [_STRING, *([_SINGLE_QUOTED] if "allowsinglequotes" in allowed else [])]
    if "allowcomments" in allowed:
        text = F.regexp_replace(text, f"({'|'.join(strings)})|{_COMMENT}", "$1")
    strings += [_NAME] if "allowunquotedfieldnames" in allowed else []
    numbers = [_NUMBER, *([_WORDS] if "allownonnumericnumbers" in allowed else [])]
    groups = [f"${number}" for number in range(1, len(strings) + len(numbers) + 1)]
    number, string = "".join(groups[len(strings) :]), "".join(groups[: len(strings)])
    return F.regexp_replace(text, "|".join((*strings, *numbers)), f'"<{number}>{string}"')


def _marked_kind(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType  # noqa: PLC0415  as above

    if isinstance(kind, StructType):
        return StructType([StructField(STRING + one.name, _marked_kind(one.dataType)) for one in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_marked_kind(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), _marked_kind(kind.valueType))
    return StringType()
