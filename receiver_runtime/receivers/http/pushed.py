"""What a parser of requests makes of one: its records, or why it is refused.

Knows neither a server nor a driver log: a parser is a function of a request's headers and its body, decompressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from receiver_runtime.block_store.frame import DeadLetterReason

#: Of a request. Each is stored and recorded before its sender is answered: more would take longer than it waits.
MOST_REJECTED = 10_000

#: Of a request: names in lower case, values as they came.
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class PushedRecord:
    """One record; ``key`` tells it from every other record of the stream, where the sender says how.

    ``id`` is what its sender calls it, and need not be a key.
    """

    body: bytes | None
    content_type: str | None
    key: str | None = None
    id: str | None = None
    attributes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record of a request that is otherwise taken: what there is of it, and why not; ``why`` is for its sender."""

    data: bytes
    reason: DeadLetterReason
    why: str


@dataclass(frozen=True, slots=True)
class Pushed:
    """The records of one request, in its order."""

    records: Sequence[PushedRecord]
    rejected: Sequence[RejectedRecord] = field(default=())


class PushRefusedError(ValueError):
    """A request that can't be taken, as a whole. The message names the thing, the value and the way out."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def header(headers: Headers, name: bytes) -> str | None:
    """The header of that name.

    Raises:
        PushRefusedError: it is there twice.
    """
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        raise PushRefusedError(400, f"the header {name.decode()} came {len(found)} times: send it once")
    return found[0].decode("latin-1").strip() if found else None


def media_type(content_type: str | None) -> tuple[str, str | None]:
    """A Content-Type as (media type in lower case, charset in lower case)."""
    kind, *parameters = (content_type or "").split(";")
    charset = None
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip('"').lower()
    return kind.strip().lower(), charset
