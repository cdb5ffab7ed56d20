"""What every kind of source declares: a leaf that imports no broker's client and nothing of ours.

A ``Source`` is a declaration: it can be compared, stored as JSON and read back. It never opens a connection; the
receiver of its kind does (``receiver_runtime.receivers``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, get_args

from pydantic import BaseModel, ConfigDict


class SourceRule(StrEnum):
    """May the sender send records again that were not acknowledged? Written into each segment, for salvage."""

    NOT_SENT_AGAIN = "not_sent_again"
    SENT_AGAIN = "sent_again"
    OFFSETS = "offsets"


class Guarantee(StrEnum):
    """What holds of a source's records from the sender to registered blocks, whatever process or host dies."""

    #: How far the source was read moves in the transaction that registers the block.
    EXACTLY_ONCE = "exactly_once"
    #: Acknowledged after the block is registered; a key in the record removes what comes again, within a window.
    AT_LEAST_ONCE_DEDUPLICATED = "at_least_once_deduplicated"
    #: Acknowledged after the block is registered; what comes again is stored again.
    AT_LEAST_ONCE = "at_least_once"
    #: The sender can't be asked again, or is told of nothing.
    AT_MOST_ONCE = "at_most_once"

    @property
    def words(self) -> str:
        """As people read it."""
        return {Guarantee.AT_LEAST_ONCE_DEDUPLICATED: "at least once, deduplicated"}.get(self, self.replace("_", " "))


_RULES = {
    Guarantee.EXACTLY_ONCE: SourceRule.OFFSETS,
    Guarantee.AT_LEAST_ONCE_DEDUPLICATED: SourceRule.SENT_AGAIN,
    Guarantee.AT_LEAST_ONCE: SourceRule.SENT_AGAIN,
    Guarantee.AT_MOST_ONCE: SourceRule.NOT_SENT_AGAIN,
}


class SourceError(ValueError):
    """A source's declaration can't be used. The message names the field, its value and the way out."""


class Source(BaseModel):
    """One kind of source. A child sets ``kind`` to a ``Literal`` of its own, with that as its default."""

    # What a field of a secret refuses is shown by no error (``secret``).
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: The record's columns as (name, Arrow type by name), fixed per kind of source (docs/how-to/sources).
    columns: ClassVar[tuple[tuple[str, str], ...]]
    #: Its receiver, as ``module:Class``; loaded where one is made, and its broker's client with it.
    receiver_class: ClassVar[str] = ""
    #: The extra of our package that its receivers need, where the agent runs; None where they need none.
    needs_extra: ClassVar[str | None] = None
    if TYPE_CHECKING:
        #: A kind that has several has a field of this name, with the values that it takes (``guarantees``).
        guarantee: ClassVar[Guarantee]

    kind: str

    @property
    def source_rule(self) -> SourceRule:
        """Return what senders do with records that were not acknowledged. The guarantee implies it for most kinds."""
        return _RULES[Guarantee(self.guarantee)]

    @classmethod
    def guarantees(cls) -> tuple[Guarantee, ...]:
        """What its declarations can have; first what they have unless they say otherwise."""
        field = cls.model_fields.get("guarantee")
        if field is None:
            return (cls.guarantee,)
        default = Guarantee(field.default)
        return (default, *(found for value in get_args(field.annotation) if (found := Guarantee(value)) != default))

    @property
    def address(self) -> str:
        """Where the records come from, for people; never a secret."""
        return self.kind

    @property
    def one_receiver(self) -> str | None:
        """Why this declaration is for one receiver alone, and the way out; None where several share its records out."""
        return None

    @property
    def is_listener(self) -> bool:
        """Whether it waits for senders at an address of its own.

        Such a receiver is never moved unasked (docs/how-to/several-hosts.md).
        """
        return getattr(self, "listen", None) is not None
