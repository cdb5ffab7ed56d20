"""What every kind of source declares: a leaf that imports no broker's client and nothing of ours.

A ``Source`` is a declaration: it can be compared, stored as JSON and read back. It never opens a connection; the
receiver of its kind does (``receiver_runtime.receivers``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class SourceRule(StrEnum):
    """May the sender send records again that were not acknowledged? Written into each segment, for salvage."""

    NOT_SENT_AGAIN = "not_sent_again"
    SENT_AGAIN = "sent_again"
    OFFSETS = "offsets"


class SourceError(ValueError):
    """A source's declaration can't be used. The message names the field, its value and the way out."""


class Source(BaseModel):
    """One kind of source. A child sets ``kind`` to a ``Literal`` of its own, with that as its default."""

    # What a field of a secret refuses is shown by no error (``secret``).
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: The record's columns as (name, Arrow type by name), fixed per kind of source (design §5).
    columns: ClassVar[tuple[tuple[str, str], ...]]
    source_rule: ClassVar[SourceRule]

    kind: str

    @property
    def address(self) -> str:
        """Where the records come from, for people; never a secret."""
        return self.kind

    @property
    def is_listener(self) -> bool:
        """Whether it waits for senders at an address of its own; such a receiver is never moved unasked (design §5)."""
        return getattr(self, "listen", None) is not None
