"""Define what every kind of source declares. Imports no broker's client.

A ``Source`` is a declaration: it can be compared, stored as JSON and read back. It never opens a connection; the
receiver of its kind does (``receiver_runtime.receivers``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from receiver_runtime.sources.fields.loopback import is_loopback
from tracker_store.close_names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence


class SourceRule(StrEnum):
    """Say whether the sender may send unacknowledged records again. Written into each segment; salvage reads it."""

    NOT_SENT_AGAIN = "not_sent_again"
    SENT_AGAIN = "sent_again"
    OFFSETS = "offsets"


class Guarantee(StrEnum):
    """Say how often each record gets from the sender into registered blocks, whatever process or host dies."""

    #: The position in the source moves in the transaction that registers the block.
    EXACTLY_ONCE = "exactly_once"
    #: Acknowledged after the block is registered; repeats are deduplicated by a key in the record, within a window.
    AT_LEAST_ONCE_DEDUPLICATED = "at_least_once_deduplicated"
    #: Acknowledged after the block is registered; a record that is sent again is stored again.
    AT_LEAST_ONCE = "at_least_once"
    #: The sender can't be asked to send again, or gets no acknowledgement.
    AT_MOST_ONCE = "at_most_once"

    @property
    def words(self) -> str:
        """Return the guarantee in words for people."""
        return {Guarantee.AT_LEAST_ONCE_DEDUPLICATED: "at least once, deduplicated"}.get(self, self.replace("_", " "))


_RULES = {
    Guarantee.EXACTLY_ONCE: SourceRule.OFFSETS,
    Guarantee.AT_LEAST_ONCE_DEDUPLICATED: SourceRule.SENT_AGAIN,
    Guarantee.AT_LEAST_ONCE: SourceRule.SENT_AGAIN,
    Guarantee.AT_MOST_ONCE: SourceRule.NOT_SENT_AGAIN,
}


class SourceError(ValueError):
    """Correct the source's declaration: it can't be used. The message names the field, its value and how to fix it."""


#: The type of the error that names the field that was meant.
UNKNOWN_FIELD = "unknown_field"


# What people call the address at which a source listens.
_LISTENS = frozenset({"address", "bind", "host", "port", "url"})


def _hint(name: str, fields: Sequence[str]) -> str:
    listens = "listen" if name in _LISTENS and "listen" in fields else ""
    return did_you_mean(name, fields) or did_you_mean(listens, fields) or f"use {', '.join(fields)}"


def _names_of(alias: str | AliasPath | AliasChoices | None) -> list[str]:
    """Return the names under which a field with this alias may be given."""
    if isinstance(alias, AliasChoices):
        return [name for choice in alias.choices for name in _names_of(choice)]
    return [] if alias is None else [alias if isinstance(alias, str) else str(alias.path[0])]


def _holds_nul(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_nul, (*value, *value.values())))
    return "\0" in value if isinstance(value, str) else isinstance(value, tuple) and any(map(_holds_nul, value))


class Source(BaseModel):
    """One kind of source. A subclass sets ``kind`` to a ``Literal`` of its own, with that value as its default."""

    # An error must not show a value that a secret's field refused: it may be the secret itself (``secret``). A stored
    # declaration has the fields' own names, also of fields with aliases.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True)

    #: The record's columns as (name, Arrow type by name), fixed per kind of source (docs/how-to/sources). Empty: the
    #: receiver's class declares them.
    columns: ClassVar[tuple[tuple[str, str], ...]]
    #: The column of text or bytes that holds the record as it came, which ``Stream(records=…)`` parses. A row with null
    #: there is a record without content, such as Kafka's tombstone. Empty: no column is the record; see ``no_record``.
    record_column: ClassVar[str] = ""
    #: Why no column is the record, and how to fix a declaration with ``records=``.
    no_record: ClassVar[str] = "its package names no record_column. Leave out records=, or ask its authors for one"
    #: The columns that say from which partition of the source a record is. Event times are in order within one.
    partition_columns: ClassVar[tuple[str, ...]] = ()
    #: The fields that name what packages register, each with its entry point group.
    plugin_fields: ClassVar[Mapping[str, str]] = {}
    #: Whether one of several servers that it connects to is enough, because a client learns of the others from it.
    any_server_suffices: ClassVar[bool] = False
    #: Whether a field ``path`` is a pattern of paths.
    path_is_pattern: ClassVar[bool] = False
    #: Its receiver, as ``module:Class``; loaded, with the broker's client, when a receiver is made.
    receiver_class: ClassVar[str] = ""
    #: What judges its dead letters, as ``module:function``, if its own parser refuses whole records. The function takes
    #: the declaration, a reason and letters, and returns as ``refusals`` does.
    letter_judge: ClassVar[str] = ""
    #: The extra of the package ``forebay`` that its receivers need where the agent runs; None if they need none.
    needs_extra: ClassVar[str | None] = None
    if TYPE_CHECKING:
        #: A kind with several guarantees has a field of this name instead; its type lists them (``guarantees``).
        guarantee: ClassVar[Guarantee]

    #: The fields that may hold a NUL, which no name, path or address has where it is used.
    may_hold_nul: ClassVar[frozenset[str]] = frozenset({"delimiter"})

    kind: str

    @model_validator(mode="after")
    def _check_nul(self) -> Self:
        for name in type(self).model_fields:
            if name not in self.may_hold_nul and _holds_nul(getattr(self, name)):
                raise ValueError(f"{name}: it holds a NUL, which is in no name: leave it out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _name_close_fields(cls, given: Any) -> Any:  # noqa: ANN401  whatever was given
        """Name the field that was meant by one that does not exist. The value is not shown: it may be a secret."""
        aliases = [name for field in cls.model_fields.values() for name in _names_of(field.validation_alias)]
        names = [*cls.model_fields, *aliases]
        for name in () if not isinstance(given, Mapping) else map(str, given):
            if name not in names:
                raise PydanticCustomError(
                    UNKNOWN_FIELD,
                    "there is no field '{name}': {hint}",
                    {"name": name, "hint": _hint(name, [known for known in names if known != "kind"])},
                )
        return given

    @property
    def plugins(self) -> Mapping[str, Sequence[str]]:
        """Return the names of what packages must have registered for its receivers, by entry point group."""
        return {group: getattr(self, field) or () for field, group in self.plugin_fields.items()}

    def load(self) -> type:
        """Import the receiver's class, with the client that it needs, and return it. Raises SourceError."""
        if not self.receiver_class:
            raise SourceError(f"kind: nothing here receives from {self.kind!r}: upgrade this host's Forebay")
        module, _, name = self.receiver_class.partition(":")
        loaded: type = getattr(importlib.import_module(module), name)
        return loaded

    def load_fitting(self) -> type:
        """Return the class, which takes what is declared. Raises SourceError."""
        return self.load()

    def refusals(self, reason: str, letters: Sequence[bytes]) -> Mapping[int, str]:
        """Return why its own parser refuses dead letters, by their places. A typed stream can't have these.

        Raises SourceError.
        """
        if not self.letter_judge:
            return {}
        module, _, name = self.letter_judge.partition(":")
        found: Mapping[int, str] = getattr(importlib.import_module(module), name)(self, reason, letters)
        return found

    def make_receiver(self) -> object:
        """Return a receiver, not yet attached.

        Raises:
            SourceError: its client is not installed here, or a user's class is missing or can't be made.
        """
        return self.load()(self)

    @property
    def source_rule(self) -> SourceRule:
        """Return what senders do with records that were not acknowledged. The guarantee implies it for most kinds."""
        return _RULES[Guarantee(self.guarantee)]

    @classmethod
    def guarantees(cls) -> tuple[Guarantee, ...]:
        """Return the guarantees that declarations of this kind can have, the default one first."""
        field = cls.model_fields.get("guarantee")
        if field is None:
            return (cls.guarantee,)
        default = Guarantee(field.default)
        return (default, *(found for value in get_args(field.annotation) if (found := Guarantee(value)) != default))

    @property
    def address(self) -> str:
        """Return where the records come from, for people; never a secret."""
        return self.kind

    def path_of(self, stream: str) -> str | None:  # noqa: ARG002  for kinds whose address has it
        """Return the path in senders' URLs if it has the stream's name, which is then `stream`; else None."""
        return None

    @property
    def one_receiver(self) -> str | None:
        """Return why only one receiver may use this declaration, and how to fix it; None if several may."""
        return None

    @property
    def is_listener(self) -> bool:
        """Return whether it listens for senders at an address of its own.

        Forebay never moves such a receiver by itself (docs/how-to/several-hosts.md).
        """
        return getattr(self, "listen", None) is not None

    @property
    def address_part(self) -> str:
        """Return which of its address's requests it takes, if sources of others may listen there too; else empty."""
        return ""

    @property
    def address_terms(self) -> str:
        """Return what all sources that listen at one address with their ``address_part`` have alike."""
        return ""

    @property
    def further_addresses(self) -> Sequence[str]:
        """Return where it listens besides ``listen``, as ``host:port``."""
        return ()

    @property
    def is_bound_to_host(self) -> bool:
        """Return whether a receiver on another host would read something else, or nothing.

        Forebay does not move such a receiver to spread the load, except on request (docs/reference/placement.md).
        """
        host = getattr(self, "host", None)
        return host is not None and is_loopback(host)

    def preferred_host(self) -> str | None:
        """Return the host where its receivers ask to run, if that is known without starting one.

        Raises:
            SourceError: it could be known, but the receiver can't be asked here.
        """
        return None
