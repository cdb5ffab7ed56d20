"""Define the result of parsing a request: its records, or why it is refused.

Knows neither a server nor a driver log: a parser is a function of a request's headers and its decompressed body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    import pyarrow as pa

    from receiver_runtime.block_store.frames.frame import DeadLetterReason

#: Rejected records of one request, at most. Each is stored and recorded before its sender is answered; more would take
#: longer than a sender waits.
MOST_REJECTED = 10_000

#: Characters of a refusal, which repeats what was sent: no sender makes answers of the size of its body.
LONGEST_DETAIL = 900

#: A request's headers: names in lower case, values as they came.
Headers = Sequence[tuple[bytes, bytes]]

#: What the server adds to the headers where a route has a path of its own: the path, decoded, and the query, as it
#: came. No sender can: a header's name has no colon.
TARGET_PATH = b":path"
TARGET_QUERY = b":query"


@dataclass(frozen=True, slots=True)
class PushedRecord:
    """One record. ``key`` identifies it in the stream, where its sender gives one.

    ``id`` is its sender's name for it, and need not be unique.
    """

    body: bytes | None
    content_type: str | None
    key: str | None = None
    id: str | None = None
    attributes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """Hold an invalid record of a request that is otherwise taken: its bytes and the reason.

    ``why`` is for its sender.
    """

    data: bytes
    reason: DeadLetterReason
    why: str


@dataclass(frozen=True, slots=True)
class Pushed:
    """Hold the records of one request, in its order."""

    records: Sequence[PushedRecord]
    rejected: Sequence[RejectedRecord] = field(default=())


@dataclass(frozen=True, slots=True)
class PushedRows:
    """Hold the rows of one request, with the columns of its receiver. ``key`` is that of the request, if it has one.

    ``keys`` has one for each row, where rows have keys of their own.
    """

    batch: pa.RecordBatch
    key: str | None = None
    rejected: Sequence[RejectedRecord] = field(default=())
    keys: Sequence[str | None] | None = None


class PushRefusedError(ValueError):
    """Refuse a request as a whole. The message names the thing, the value and how to fix it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(shortened(detail, LONGEST_DETAIL))
        self.status = status


def header(headers: Headers, name: bytes) -> str | None:
    """Return the value of a header, or None.

    Raises:
        PushRefusedError: the header came more than once.
    """
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        raise PushRefusedError(400, f"the header {name.decode()} came {len(found)} times: send it once")
    return found[0].decode("latin-1").strip() if found else None


def header_text(value: bytes) -> str:
    """Return a header's value as text: UTF-8, or Latin-1, which HTTP's headers once were and senders in use send."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


@lru_cache(maxsize=256)
def media_type(content_type: str | None) -> tuple[str, str | None]:
    """Return a Content-Type as (media type, charset), both in lower case."""
    kind, *parameters = (content_type or "").split(";")
    charset = None
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip('"').lower()
    return kind.strip().lower(), charset
