"""Read Spark's DDL, as ``"item STRING, pieces BIGINT NOT NULL"``, into columns of (name, Arrow type in text).

Loads neither Spark nor Arrow. It never guesses a type: what Spark would not read is refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The first name of a type is the one that people see.
_TYPES = {
    "BOOLEAN": "bool",
    "TINYINT": "int8",
    "BYTE": "int8",
    "SMALLINT": "int16",
    "SHORT": "int16",
    "INT": "int32",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "LONG": "int64",
    "FLOAT": "float",
    "REAL": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date32[day]",
    "TIMESTAMP": "timestamp[us, tz=UTC]",
    "TIMESTAMP_LTZ": "timestamp[us, tz=UTC]",
    "TIMESTAMP_NTZ": "timestamp[us]",
}
_DECIMALS = frozenset({"DECIMAL", "DEC", "NUMERIC"})
_MOST_DIGITS = 38
_DEFAULT_DIGITS = 10
# Types within types: Arrow's and Spark's own readers of them go deep by calling themselves.
_DEEPEST = 32
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_][A-Za-z0-9_]*)|('(?:[^'\\]|\\.)*'|\d+|[<>(),:]))")
# What Arrow's text of a type ends a field's name with.
_NO_FIELD = frozenset("<>[](),:")


# Types of sources that Spark's DDL has no name for, and what Spark reads them as.
_READ_AS = {
    "uint8": "SMALLINT",
    "uint16": "INT",
    "uint32": "BIGINT",
    "large_string": "STRING",
    "large_binary": "BINARY",
}
_NAMES = {**_READ_AS, **{text: name for name, text in reversed(_TYPES.items())}}
_OPENINGS = {"list<item: ": "ARRAY<", "large_list<item: ": "ARRAY<", "struct<": "STRUCT<", "map<": "MAP<"}
# A word before a colon is a field's name.
_IN_ARROW = re.compile(r"\w+\[[^\]]*\]|(?:large_)?list<item: |struct<|map<|\w+(?![\w:])")


class DdlError(ValueError):
    """Correct the DDL; the message says what is wrong, and where."""


class Columns(NamedTuple):
    """Hold columns in order, and the names of those that are NOT NULL."""

    columns: tuple[tuple[str, str], ...]
    required: tuple[str, ...]


class _Type(NamedTuple):
    """Hold a type in Arrow's text, and in Spark's."""

    arrow: str
    spark: str


def quoted(name: str) -> str:
    """Return a name as Spark's DDL and expressions have it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def parse_ddl(text: str) -> Columns:
    """Return the columns of Spark's DDL. Raises DdlError."""
    return _Ddl(text).columns()


def parse_spark_types(text: str) -> tuple[tuple[str, str], ...]:
    """Return the columns of Spark's DDL as (name, type in Spark's DDL), each type in its one spelling.

    Raises DdlError, also for a NOT NULL column: these types say nothing of it.
    """
    ddl = _Ddl(text)
    if required := ddl.columns().required:
        raise DdlError(f"{text!r}: {required[0]!r} can't be NOT NULL here: leave it out")
    return tuple(ddl.spark_types)


def type_name(text: str) -> str:
    """Return the name in Spark's DDL, for people, of a type that is given in Arrow's text."""

    def named(match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith("timestamp["):
            return "TIMESTAMP" if "tz=" in found else "TIMESTAMP_NTZ"
        return _OPENINGS.get(found) or _NAMES.get(found) or found.replace("decimal128", "DECIMAL")

    return _IN_ARROW.sub(named, text)


class _Ddl:
    """Read the tokens of one text, each as (kind, value): a name, a quoted name, another token, or the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._depth = 0
        self._kind, self._value = self._next()
        #: The columns that were read, as (name, type in Spark's spelling).
        self.spark_types: list[tuple[str, str]] = []

    def columns(self) -> Columns:
        columns: list[tuple[str, str]] = []
        required: list[str] = []
        while True:
            name = self._name("a column's name")
            self._takes(":")
            kind = self._type()
            columns.append((name, kind.arrow))
            self.spark_types.append((name, kind.spark))
            if self._takes_word("NOT"):
                self._expect_word("NULL")
                required.append(name)
            if self._takes_word("COMMENT"):
                self._comment()
            if self._kind == "end":
                return Columns(tuple(columns), tuple(required))
            self._expect(",")

    def _type(self) -> _Type:
        if self._kind != "word":
            raise self._error("a type")
        word = self._value.upper()
        if word not in _TYPES and word not in _DECIMALS and word not in {"ARRAY", "MAP", "STRUCT"}:
            raise self._error(f"a type, as {', '.join(sorted({'STRING', 'BIGINT', 'DOUBLE', 'TIMESTAMP'}))}")
        self._advance()
        if word in _TYPES:
            return _Type(_TYPES[word], _NAMES[_TYPES[word]])
        if word in _DECIMALS:
            return self._decimal()
        self._expect("<")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise DdlError(f"there are more than {_DEEPEST} types in one another: flatten them")
        found = {"ARRAY": self._array, "MAP": self._map, "STRUCT": self._struct}[word]()
        self._expect(">")
        self._depth -= 1
        return found

    def _decimal(self) -> _Type:
        precision, scale = _DEFAULT_DIGITS, 0
        if self._takes("("):
            precision = self._number()
            if self._takes(","):
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise DdlError(
                f"{self._text!r}: there is no DECIMAL({precision}, {scale}): at most 38 digits, scale included"
            )
        return _Type(f"decimal128({precision}, {scale})", f"DECIMAL({precision}, {scale})")

    def _array(self) -> _Type:
        item = self._type()
        return _Type(f"list<item: {item.arrow}>", f"ARRAY<{item.spark}>")

    def _map(self) -> _Type:
        key = self._type()
        self._expect(",")
        item = self._type()
        return _Type(f"map<{key.arrow}, {item.arrow}>", f"MAP<{key.spark}, {item.spark}>")

    def _struct(self) -> _Type:
        fields: dict[str, _Type] = {}
        while True:
            name = self._name("a field's name")
            if not _NO_FIELD.isdisjoint(name) or name != name.strip():
                raise DdlError(f"{self._text!r}: a field can't be named {name!r}: leave out <>[](),: and outer blanks")
            if name.lower() in fields:
                raise DdlError(f"{self._text!r}: two fields have one name in Spark, {name!r}: rename one")
            self._takes(":")
            kind = self._type()
            fields[name.lower()] = _Type(f"{name}: {kind.arrow}", f"{quoted(name)}: {kind.spark}")
            if self._takes_word("COMMENT"):
                self._comment()
            if not self._takes(","):
                arrow, spark = (", ".join(texts) for texts in zip(*fields.values(), strict=True))
                return _Type(f"struct<{arrow}>", f"STRUCT<{spark}>")

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].strip()
            if not rest:
                return "end", ""
            raise DdlError(f"{self._text!r}: {rest[:20]!r} is no DDL: write columns as 'id BIGINT, name STRING'")
        self._at = match.end()
        quoted, word, other = match.groups()
        if quoted is not None:
            return "quoted", quoted.replace("``", "`")
        return ("word", word) if word is not None else ("other", other)

    def _advance(self) -> str:
        value = self._value
        self._kind, self._value = self._next()
        return value

    def _error(self, wanted: str) -> DdlError:
        found = repr(self._value) if self._value else "the end"
        return DdlError(
            f"{self._text!r}: {found} where {wanted} is expected: write columns as 'id BIGINT, name STRING'"
        )

    def _takes(self, token: str) -> bool:
        if self._kind != "other" or self._value != token:
            return False
        self._advance()
        return True

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise self._error(repr(token))

    def _takes_word(self, word: str) -> bool:
        if self._kind != "word" or self._value.upper() != word:
            return False
        self._advance()
        return True

    def _expect_word(self, word: str) -> None:
        if not self._takes_word(word):
            raise self._error(word)

    def _name(self, wanted: str) -> str:
        if self._kind not in {"word", "quoted"}:
            raise self._error(wanted)
        return self._advance()

    def _number(self) -> int:
        if self._kind != "other" or not self._value.isdigit():
            raise self._error("a number")
        return int(self._advance())

    def _comment(self) -> None:
        if self._kind != "other" or not self._value.startswith("'"):
            raise self._error("a comment in quotes")
        self._advance()
