"""Declare a WebSocket to read. It must load no client: the control plane reads declarations too."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from forebay.source import Guarantee, Secret, Several, Source, parse_bytes, parse_duration


class WebSocket(Source):
    """Reads the messages of a WebSocket; one row per message.

    Args:
        url: ``"ws://HOST/PATH"``, or ``"wss://…"``.
        greetings: messages to send at each start, such as a subscription.
        token: sent as ``Authorization: Bearer``; by reference (``"env:NAME"``, ``"file:/PATH"``).
        connect_timeout: how long one attempt to connect may take.
        max_record_bytes: a longer message becomes a dead letter.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (("value", "binary"), ("is_text", "bool"))
    record_column: ClassVar[str] = "value"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE
    receiver_class: ClassVar[str] = "forebay_websocket.receiver:WebSocketReceiver"

    kind: Literal["websocket"] = "websocket"
    url: str
    greetings: Several = ()
    token: Secret | None = None
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 10.0
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)] = 2**20

    @property
    def address(self) -> str:
        """Return the URL, for people."""
        return self.url

    @property
    def one_receiver(self) -> str | None:
        """Return why there may be only one receiver."""
        return "each receiver of a WebSocket would be sent every message: leave receivers out"

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("it is no URL of a WebSocket without a login: give 'wss://HOST/PATH', and token")
        return url
