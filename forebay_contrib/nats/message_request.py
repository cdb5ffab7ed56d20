"""Request messages of a durable consumer, one request at a time.

This module owns what is open of the newest request, and how large its messages may be. It must never wait for an
answer: the reader does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from forebay_contrib.nats.client import NatsError

if TYPE_CHECKING:
    from nats.aio.client import Client

    from forebay_contrib.nats.declaration import NatsJetStream

REQUEST_SECONDS: Final = 1.0  # how long a request is open
# Bytes of a message, at most, besides what the server counts as its payload.
_ENVELOPE_BYTES = 64 * 1024


class MessageRequest:
    """Hold the newest request. Only the event loop's thread uses it.

    Args:
        largest: bytes that a request may bring, at least.
    """

    def __init__(self, client: Client, source: NatsJetStream, *, largest: int) -> None:
        self._client = client
        self._source = source
        self._largest = largest
        self._asked = 0
        self._most_bytes = 0
        #: How many messages it may still bring; the reader counts them.
        self.left = 0

    async def ask(self, inbox: str, most: int) -> None:
        """Request at most this many messages; they come to the inbox."""
        self.left = self._asked = most
        # The first messages of a request for many may be large: always leave room for one of the largest size.
        self._most_bytes = max(self._most_bytes, self._largest, self._client.max_payload + _ENVELOPE_BYTES)
        request = {"batch": most, "expires": int(REQUEST_SECONDS * 1e9), "max_bytes": self._most_bytes}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._source.stream}.{self._source.durable}"
        await self._client.publish(subject, json.dumps(request).encode(), reply=inbox)

    def end(self, status: str, said: str) -> NatsError | None:
        """Note the server's status message, which ends the request; return an error if no message will come."""
        came, self.left = self._asked - self.left, 0
        # 404 and 408: there are no messages; 409: the request is over, for example by a change of leaders.
        if status == "503":
            return NatsError(f"there is no consumer {self._source.durable!r} of {self._source.stream!r} now")
        if "Exceeds MaxBytes" in said and not came:
            # The message was stored when the server's limit for payloads was higher.
            self._most_bytes *= 2
        elif status not in ("404", "408", "409") or "Deleted" in said or "Exceeded MaxRequest" in said:
            return NatsError(f"{status} {said}".strip() or "the server refused to deliver messages")
        return None
