"""Define what a stream's ``records=`` declares: which columns its receivers parse each record into.

A ``Records`` is a declaration, as a ``Source`` is: it can be compared, stored as JSON and read back. It parses nothing;
the reader of its kind does (``receiver_runtime.record_formats``).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from receiver_runtime.sources import plugins

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A package registers its kinds of records in this entry point group: ``KIND = "package.module:Class"``.
GROUP = "forebay.records"
#: A column beside the parsed ones: the record as it came, and under ``_NAME`` each other column of the source.
RAW = "_raw"
#: The source's column that holds the key of each record, and what stands before the name of each column that is parsed
#: of it.
KEY, KEY_PREFIX = "key", "_key_"
# Types in one another that blocks can have; a map is two of them.
_DEEPEST = 60
_NESTING = re.compile(r"map<|<|>|[^<>,]+: ")


class Records(BaseModel):
    """One kind of record. A subclass sets ``kind`` to a ``Literal`` of its own, with that value as its default.

    Args:
        columns: (name, Arrow type in text) of what is parsed, in order.
        required: the names of columns that no record may lack.
        keep: the names of the source's other columns that are kept; None: all.
        raw: keep each record as it came, in the column ``_raw``.
        key: what the key of each record is, of a source that has a column ``key``: the columns of another declaration,
            each with ``_key_`` before its name. None: the key is kept as it came.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Its reader, as ``module:Class``; loaded when a receiver is made.
    reader_class: ClassVar[str] = ""
    #: Whether each record is a JSON object, so that a JSON schema can describe it.
    is_json: ClassVar[bool] = False

    kind: str
    columns: tuple[tuple[str, str], ...]
    required: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    raw: bool = False
    key: SerializeAsAny[Records] | None = None

    @field_validator("key", mode="before")
    @classmethod
    def _read_key(cls, key: object) -> object:
        """Read a stored declaration of any kind. Raises ValueError."""
        if not isinstance(key, Mapping):
            return key
        try:
            return plugins.load(GROUP, str(key.get("kind")), Records).model_validate(dict(key))
        except plugins.PluginError as error:
            raise ValueError(str(error)) from error

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: Records | None) -> Records | None:
        if key is not None and (key.raw or key.keep is not None or key.key is not None):
            raise ValueError("raw, keep and key are of the records, not of their keys: write them beside key")
        return key

    @model_serializer(mode="wrap")
    def _without_absent_key(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a key that is not declared: a host of the version before this field knows none."""
        stored: dict[str, Any] = serialize(self)
        if self.key is None:
            stored.pop("key", None)
        return stored

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        seen: dict[str, str] = {}
        for name, kind in self.columns:
            _check_inner(name, kind)
            if name.lower() in seen:
                raise ValueError(f"the columns {seen[name.lower()]!r} and {name!r} have one name in Spark: rename one")
            seen[name.lower()] = name
        if not seen and not self.columns_grow:
            raise ValueError("there is no column: declare at least one")
        return self

    @property
    def columns_grow(self) -> bool:
        """Return whether records bring columns of their own, beside the declared ones, if there are any."""
        return False

    @property
    def parts(self) -> tuple[Records, ...]:
        """Return what is parsed of a record: itself, and its key if that is declared."""
        return (self,) if self.key is None else (self, self.key)

    @property
    def reader_address(self) -> str:
        """Return which reader this declaration needs, as ``module:Class``."""
        return self.reader_class

    def load_reader(self) -> type:
        """Import the class of its reader, and return it."""
        module, _, name = self.reader_address.partition(":")
        loaded: type = getattr(importlib.import_module(module), name)
        return loaded

    def with_columns(self, columns: Iterable[tuple[str, str]], key_columns: Iterable[tuple[str, str]] = ()) -> Self:
        """Return the same declaration of other columns, and of other ones of the key."""
        key = None if self.key is None else self.key.model_copy(update={"columns": tuple(key_columns)})
        return self.model_copy(update={"columns": tuple(columns), "key": key})

    def block_columns(self, source: Iterable[tuple[str, str]], record: str) -> tuple[tuple[str, str], ...]:
        """Return the columns of blocks: what is parsed, of the record and of its key, and the source's columns.

        The record as it came is one of these only if it is kept.

        Args:
            source: the columns of the source; none if only the receiver's class knows them.
            record: the one of them that holds the record.

        Raises:
            ValueError: a parsed column has the name of another one, one that is to be kept is none, or none of the
                source's is the record, or the key that is declared.
        """
        kinds = dict(source)
        if not kinds:
            return self.columns
        if record not in kinds:
            raise ValueError("no column is the record: name one as record_column in the class of the receiver")
        if self.key is not None and KEY not in kinds:
            raise ValueError(f"key: this source has no column {KEY!r}, it has {', '.join(kinds)}: leave key out")
        beside = self.beside(kinds, record)
        of_key = () if self.key is None else tuple((KEY_PREFIX + name, kind) for name, kind in self.key.columns)
        taken = {name.lower() for name, _ in self.columns}
        for name in (*(name for name, _ in of_key), *beside.values()):
            if name.lower() in taken:
                raise ValueError(f"the column {name!r} is there for each record of this source: rename yours")
            taken.add(name.lower())
        return (*self.columns, *of_key, *((name, kinds[of]) for of, name in beside.items()))

    def beside(self, source: Iterable[str], record: str) -> Mapping[str, str]:
        """Return the columns of a source that blocks have beside the parsed ones, each with its name there.

        A source that has a column ``raw`` keeps each record as it came by itself, and under the same name.

        Raises:
            ValueError: ``keep`` names a column that the source has not.
        """
        names = list(source)
        others = {name: f"_{name}" for name in names if name != record}
        if unknown := [name for name in self.keep or () if name not in others.values()]:
            raise ValueError(
                f"keep: there is no column {', '.join(map(repr, unknown))} beside the record: this source has "
                f"{', '.join(others.values()) or 'none'}{'; raw=True keeps the record' if RAW in unknown else ''}"
            )
        if self.raw and RAW not in others.values():
            others = {name: others.get(name, RAW) for name in names}
        kept = {RAW, *self.keep} if self.keep is not None and self.raw else self.keep
        return others if kept is None else {of: name for of, name in others.items() if name in kept}


def _check_inner(column: str, kind: str) -> None:
    """Refuse a type that blocks can't have. Raises ValueError."""
    within: list[set[str]] = []
    levels: list[int] = []
    for part in _NESTING.findall(kind):
        if part.endswith("<"):
            within.append(set())
            levels.append(2 if part == "map<" else 1)
            if sum(levels) > _DEEPEST:
                raise ValueError(f"column {column!r} has more than {_DEEPEST} types in one another: flatten them")
        elif part == ">":
            del within[-1:], levels[-1:]
        elif within:
            name = part[:-2].strip()
            if name.lower() in within[-1]:
                raise ValueError(f"column {column!r}: two fields have one name in Spark, {name!r}: rename one")
            within[-1].add(name.lower())
