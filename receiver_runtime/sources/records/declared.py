"""Define what a stream's ``records=`` declares: which columns its receivers parse each record into.

A ``Records`` is a declaration, as a ``Source`` is: it can be compared, stored as JSON and read back. It parses nothing;
the reader of its kind does (``receiver_runtime.record_formats``).
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A column beside the parsed ones: the record as it came, and under ``_NAME`` each other column of the source.
RAW = "_raw"
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
    def reader_address(self) -> str:
        """Return which reader this declaration needs, as ``module:Class``."""
        return self.reader_class

    def load_reader(self) -> type:
        """Import the class of its reader, and return it."""
        module, _, name = self.reader_address.partition(":")
        loaded: type = getattr(importlib.import_module(module), name)
        return loaded

    def block_columns(self, source: Iterable[tuple[str, str]], record: str) -> tuple[tuple[str, str], ...]:
        """Return the columns of blocks: what is parsed, the record as it came if it is kept, and the source's others.

        Args:
            source: the columns of the source; none if only the receiver's class knows them.
            record: the one of them that holds the record.

        Raises:
            ValueError: a parsed column has the name of another one, one that is to be kept is none, or none of the
                source's is the record.
        """
        kinds = dict(source)
        if not kinds:
            return self.columns
        if record not in kinds:
            raise ValueError("no column is the record: name one as record_column in the class of the receiver")
        beside = self.beside(kinds, record)
        taken = {name.lower() for name, _ in self.columns}
        for name in beside.values():
            if name.lower() in taken:
                raise ValueError(f"the column {name!r} is there for each record of this source: rename yours")
        return (*self.columns, *((name, kinds[of]) for of, name in beside.items()))

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
