"""Declare a source of lines of text in UDP datagrams from any sender.

Only the declaration and its checks; ``forebay_contrib.datagrams.receiver`` opens the socket.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from receiver_runtime.sources.fields.tcp import Listen, parse_listen
from receiver_runtime.sources.fields.units import parse_bytes
from receiver_runtime.sources.source import Guarantee, Source


class Datagrams(Source):
    """Listens for UDP datagrams; one row per line of each, with its sender. A datagram may have one line or several.

    **At most once.** UDP has no acknowledgements: a sender does not learn what has arrived, and sends nothing again.

    A line that is not UTF-8 is a dead letter. Empty lines are left out.

    Args:
        listen: the address, as ``"0.0.0.0:8125"`` or ``"[::]:8125"``; port 0 takes any that is free.
        cut: ``"lines"`` makes a row of each line, without its line end; ``"whole"`` of each datagram, as it is.
        receive_buffer: how many bytes of unread datagrams the kernel is asked to keep. A datagram that arrives when
            the buffer is full is lost, counted and reported. Linux allows at most ``net.core.rmem_max``.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("received_at", "timestamp[us, tz=UTC]"),
        ("sender", "string"),
        ("value", "string"),
    )
    record_column: ClassVar[str] = "value"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE
    receiver_class: ClassVar[str] = "forebay_contrib.datagrams.receiver:DatagramReceiver"
    #: `forebay validate` tries its address by UDP.
    transports: ClassVar[tuple[str, ...]] = ("udp",)

    kind: Literal["datagrams"] = "datagrams"
    listen: Listen
    cut: Literal["lines", "whole"] = "lines"
    receive_buffer: Annotated[int, BeforeValidator(parse_bytes), Field(ge=2**12, le=2**30)] = 8 * 2**20

    @property
    def address(self) -> str:
        """Return where it listens."""
        return self.listen

    @property
    def listen_address(self) -> tuple[str, int]:
        """Return where it listens, as (host, port)."""
        return parse_listen(self.listen)
