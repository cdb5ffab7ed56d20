"""Declare a GELF source: messages from any sender, over UDP in chunks, and over TCP with a NUL behind each.

Only the declaration and its checks; ``forebay_contrib.gelf.receiver`` opens the sockets. GELF over HTTP is a protocol
of the ``Http`` source (``forebay_contrib.gelf.protocol``).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from receiver_runtime.receivers.sockets.transport_source import TransportSource
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration


class Gelf(TransportSource):
    """Listens for messages in the Graylog Extended Log Format; one row per message, with its JSON as it was sent.

    **At most once.** GELF over UDP and TCP has no acknowledgements: a sender does not learn what has arrived, and sends
    nothing again. Over HTTP it has: ``Http(protocols="gelf")``.

    What is no message, or lacks what Graylog requires, is a dead letter; the rules are in
    ``forebay_contrib/gelf/README.md``. The other arguments are ``TransportSource``'s: where it listens, and its limits.

    Args:
        max_record_bytes: a longer message, after decompression, becomes a dead letter; ``"1MiB"`` or a number.
        chunk_timeout: how long to wait for all chunks of a message after its first one; then those that came become a
            dead letter. GELF says 5 seconds; ``"5s"`` or seconds.
        max_chunk_bytes: at most this many bytes of chunks wait for the rest of their messages, half of them of one
            peer; beyond that the oldest message is given up.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("received_at", "timestamp[us, tz=UTC]"),
        ("sender", "string"),
        ("value", "string"),
    )
    record_column: ClassVar[str] = "value"
    receiver_class: ClassVar[str] = "forebay_contrib.gelf.receiver:GelfReceiver"
    letter_judge: ClassVar[str] = "forebay_contrib.gelf.messages:judge_letters"

    kind: Literal["gelf"] = "gelf"
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=64 * 2**20)] = 2**20
    chunk_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=3600)] = 5.0
    max_chunk_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=2**18, le=2**30)] = 32 * 2**20
