"""Read .proto files into messages, each field with the Arrow type of its column. Loads neither Arrow nor protobuf.

A registry gives the text of a .proto file, and no compiler of them is small. What has no meaning for the bytes of a
message is passed over: services, options, extensions of other messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN = re.compile(
    r"\s+|//[^\n]*|/\*.*?\*/"
    r"|(\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[A-Za-z_][A-Za-z0-9_.]*|-?\d[0-9A-Za-z_.+]*|[{}\[\]()<>=;,.:/-])",
    re.DOTALL,
)
#: Scalar types, each with the type of its column and how it is written.
SCALARS = {
    "double": ("double", "fixed"),
    "float": ("float", "fixed"),
    "int32": ("int32", "varint"),
    "int64": ("int64", "varint"),
    "uint32": ("int64", "varint"),
    "uint64": ("decimal128(20, 0)", "varint"),
    "sint32": ("int32", "varint"),
    "sint64": ("int64", "varint"),
    "fixed32": ("int64", "fixed"),
    "fixed64": ("decimal128(20, 0)", "fixed"),
    "sfixed32": ("int32", "fixed"),
    "sfixed64": ("int64", "fixed"),
    "bool": ("bool", "varint"),
    "string": ("string", "bytes"),
    "bytes": ("binary", "bytes"),
}
_LABELS = frozenset({"optional", "required", "repeated"})
_DEEPEST = 64
# Fields of one message and of those within it: messages that use others twice would have more than any memory holds.
_MOST_FIELDS = 5_000
#: Google's own files, as far as their messages can be columns.
_WELL_KNOWN = """
syntax = "proto3"; package google.protobuf;
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message Any { string type_url = 1; bytes value = 2; }
message FieldMask { repeated string paths = 1; }
""" + "".join(
    f"message {name}Value {{ {kind} value = 1; }}\n"
    for name, kind in (
        *(("Double", "double"), ("Float", "float"), ("Int64", "int64"), ("UInt64", "uint64"), ("Int32", "int32")),
        *(("UInt32", "uint32"), ("Bool", "bool"), ("String", "string"), ("Bytes", "bytes")),
    )
)
TIMESTAMP = "google.protobuf.Timestamp"
_GOOGLE = "google/protobuf/"


class ProtoError(ValueError):
    """Correct the .proto file; the message says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field. ``kind``: a scalar's name, ``enum``, ``message``, or ``map``, whose message has a key and a value.

    ``has_presence``: whether a record may be without it; else a default takes its place.
    """

    name: str
    number: int
    kind: str
    arrow: str
    repeated: bool = False
    required: bool = False
    has_presence: bool = False
    oneof: str = ""
    message: Message | None = None
    symbols: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """One message, by its full name."""

    name: str
    fields: tuple[Field, ...]

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return the columns of its records."""
        return tuple((one.name, one.arrow) for one in self.fields)

    @property
    def arrow(self) -> str:
        """Return the type of a column of such messages."""
        if self.name == TIMESTAMP:
            return "timestamp[us, tz=UTC]"
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.columns)}>"


@dataclass(slots=True)
class _Declared:
    """Hold a field as it is written."""

    name: str
    number: int
    type: str
    label: str
    oneof: str = ""
    map_key: str = ""


@dataclass(slots=True)
class _Node:
    """Hold a message, or an enum (``values``), as it is written; ``proto3``: its fields have no presence."""

    name: str
    proto3: bool
    fields: list[_Declared] = field(default_factory=list)
    values: dict[int, str] | None = None
    messages: list[str] = field(default_factory=list)


class ProtoSchema:
    """Hold the messages of a file and of those that it imports.

    Args:
        text: the file.
        references: the texts of the files that it imports.

    Raises:
        ProtoError: it is no .proto file.
    """

    def __init__(self, text: str, references: tuple[tuple[str, str], ...] = ()) -> None:
        self._nodes: dict[str, _Node] = {}
        self._fields = 0
        for reference in [_WELL_KNOWN, *(text for name, text in references if not name.startswith(_GOOGLE))]:
            _File(reference, self._nodes)
        #: The names of the file's messages, in order.
        self.messages = _File(text, self._nodes).messages

    def at(self, path: tuple[int, ...]) -> str:
        """Return the name of the message at a place: its number in the file, then in the message around it."""
        names = self.messages
        name = ""
        for number in path:
            if not 0 <= number < len(names):
                raise ProtoError(f"it has no message at {list(path)}")
            name = names[number]
            names = self._nodes[name].messages
        return name

    def message(self, name: str) -> Message:
        """Return a message by its name, with or without its package. Raises ProtoError."""
        found = [one for one, node in self._nodes.items() if node.values is None and f".{one}".endswith(f".{name}")]
        if name in found:
            found = [name]
        if len(found) != 1:
            raise ProtoError(f"it has {'no' if not found else 'several'} messages {name!r}: it has {self.messages}")
        self._fields = 0
        return self._message(found[0], ())

    def _message(self, name: str, inside: tuple[str, ...]) -> Message:
        if name in inside or len(inside) > _DEEPEST:
            raise ProtoError(f"{name}: it contains itself, which no column can")
        node = self._nodes[name]
        self._fields += len(node.fields)
        if self._fields > _MOST_FIELDS:
            raise ProtoError(f"{name}: there are more than {_MOST_FIELDS:,} fields in all: declare a smaller message")
        fields = tuple(self._field(node, one, (*inside, name)) for one in node.fields)
        if not fields:
            raise ProtoError(f"{name}: it has no field, so that it can be no column")
        if len({one.number for one in fields}) < len(fields) or len({one.name for one in fields}) < len(fields):
            raise ProtoError(f"{name}: two fields have one number or one name")
        return Message(name, fields)

    def _field(self, node: _Node, one: _Declared, inside: tuple[str, ...]) -> Field:
        if one.map_key:
            key = replace(self._field(node, _Declared("key", 1, one.map_key, ""), inside), has_presence=False)
            value = self._field(node, _Declared("value", 2, one.type, ""), inside)
            value = replace(value, has_presence=value.message is not None)
            entry = Message(f"{node.name}.{one.name}", (key, value))
            return Field(one.name, one.number, "map", f"map<{key.arrow}, {value.arrow}>", repeated=True, message=entry)
        repeated = one.label == "repeated"
        message, symbols = None, {}
        if one.type in SCALARS:
            kind, arrow = one.type, SCALARS[one.type][0]
        else:
            found = self._found(one.type, node.name)
            values = self._nodes[found].values
            if values is None:
                message = self._message(found, inside)
                kind, arrow = "message", message.arrow
            else:
                kind, arrow, symbols = "enum", "string", values
        return Field(
            one.name,
            one.number,
            kind,
            f"list<item: {arrow}>" if repeated else arrow,
            repeated=repeated,
            required=one.label == "required",
            has_presence=bool(one.label or one.oneof or message is not None or not node.proto3),
            oneof=one.oneof,
            message=message,
            symbols=symbols,
        )

    def _found(self, name: str, scope: str) -> str:
        """Return the full name of a type, as a name within a scope means it."""
        if name.startswith("."):
            scope, name = "", name[1:]
        while True:
            if (full := f"{scope}.{name}" if scope else name) in self._nodes:
                return full
            if not scope:
                raise ProtoError(f"there is no type {name}: give the file that has it too")
            scope = scope.rpartition(".")[0]


class _File:
    """Read one file's messages and enums into ``nodes``."""

    def __init__(self, text: str, nodes: dict[str, _Node]) -> None:
        self._at = 0
        self._nodes = nodes
        self._proto3 = False
        self.messages: list[str] = []
        self._tokens = _tokens(text)
        package = ""
        while self._at < len(self._tokens):
            word = self._next()
            if word == "syntax":
                self._expect("=")
                self._proto3 = self._next().strip("\"'") == "proto3"
                self._expect(";")
            elif word == "edition":
                # Its features say what has presence; by default everything has.
                self._skip_statement()
            elif word == "package":
                package = self._next()
                self._expect(";")
            elif word == "message":
                self.messages.append(self._message(package, 0))
            elif word == "enum":
                self._enum(package)
            elif word != ";":
                self._skip_statement()

    def _message(self, scope: str, depth: int) -> str:
        name = self._name(scope)
        if depth > _DEEPEST:
            raise ProtoError(f"{name}: messages are more than {_DEEPEST} levels deep")
        node = self._nodes[name] = _Node(name, self._proto3)
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "message" and self._peek(1) == "{":
                node.messages.append(self._message(name, depth + 1))
            elif word == "enum" and self._peek(1) == "{":
                self._enum(name)
            elif word == "oneof" and self._peek(1) == "{":
                self._oneof(node)
            elif word in {"option", "reserved", "extensions", "extend"} and self._peek(1) != "=":
                self._skip_statement()
            elif word != ";":
                self._field(node, word, "")
        return name

    def _oneof(self, node: _Node) -> None:
        name = self._next()
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                self._skip_statement()
            elif word != ";":
                self._field(node, word, name)

    def _field(self, node: _Node, word: str, oneof: str) -> None:
        label = word if word in _LABELS and self._peek(1) != "=" else ""
        kind = self._next() if label else word
        if kind == ".":
            kind += self._next()
        if kind == "group":
            raise ProtoError(f"{node.name}: groups can't be read: make it a message")
        key = ""
        if kind == "map" and self._peek() == "<":
            self._next()
            key = self._next()
            self._expect(",")
            kind = self._next()
            if kind == ".":
                kind += self._next()
            self._expect(">")
            if key not in SCALARS:
                raise ProtoError(f"{node.name}: {key} can't be the key of a map")
        name = self._next()
        self._expect("=")
        number = self._number()
        if self._peek() == "[":
            self._skip_until("]")
        self._expect(";")
        node.fields.append(_Declared(name, number, kind, label, oneof, key))

    def _enum(self, scope: str) -> None:
        name = self._name(scope)
        values: dict[int, str] = {}
        self._nodes[name] = _Node(name, self._proto3, values=values)
        self._expect("{")
        while (word := self._next()) != "}":
            if word in {"option", "reserved"} and self._peek() != "=":
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                values.setdefault(self._number(), word)
                if self._peek() == "[":
                    self._skip_until("]")
                self._expect(";")

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _name(self, scope: str) -> str:
        name = self._next()
        full = f"{scope}.{name}" if scope else name
        if full in self._nodes:
            raise ProtoError(f"{full}: it is there twice")
        return full

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead] if self._at + ahead < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ProtoError("it ends within a message: is it the whole file?")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if (found := self._next()) != token:
            self._fail(found, token)

    def _number(self) -> int:
        found = self._next()
        try:
            return int(found, 0) if not re.fullmatch(r"-?0\d+", found) else int(found, 8)
        except ValueError:
            self._fail(found, "a number")

    def _fail(self, found: str, wanted: str) -> NoReturn:
        around = " ".join(self._tokens[max(self._at - 6, 0) : self._at + 3])
        raise ProtoError(f"{found!r} where {wanted!r} is expected, at: {around}")

    def _skip_until(self, closing: str) -> None:
        """Pass over what is in brackets."""
        opening = self._next()
        depth = 1
        while depth:
            token = self._next()
            depth += (token == opening) - (token == closing)

    def _skip_statement(self) -> None:
        """Pass over a statement, which ends with a semicolon or a block."""
        while (found := self._peek()) != ";":
            if found == "{":
                self._skip_until("}")
                # An option's value is a block too, with a semicolon behind it.
                if self._peek() == ";":
                    self._next()
                return
            self._next()
        self._next()


def _tokens(text: str) -> list[str]:
    """Return the words and signs of a file, without its comments. Raises ProtoError."""
    found: list[str] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ProtoError(f"{text[place : place + 20]!r} is no .proto")
        if match[1]:
            found.append(match[1])
        place = match.end()
    return found
