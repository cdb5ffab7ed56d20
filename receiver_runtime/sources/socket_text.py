"""Lines of text from a TCP server (the original's ``socketTextStream``, X01)."""

from __future__ import annotations

import codecs
import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from receiver_runtime.sources.base import Source, SourceRule
from receiver_runtime.sources.units import parse_bytes, parse_duration

# Encodings in which a delimiter's byte can stand for nothing but the delimiter.
_ENCODINGS = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[ru]")


class SocketText(Source):
    r"""Connects to a TCP server and reads text records that end with a delimiter; one column, ``value: string``.

    What happens to input that is no good is in ``docs/reference/bad-input.md``. A socket's sender sends nothing
    again, so what is in flight when the connection breaks is lost, as in the original.

    Args:
        host: name or address of the server.
        port: 1 to 65535.
        delimiter: one ASCII character; a ``\\r`` before a ``\\n`` goes with it.
        encoding: utf-8, ascii, or a one-byte encoding such as latin-1 or cp1252. Stored as UTF-8.
        max_record_bytes: a longer record becomes a dead letter. Without the delimiter; ``"1MiB"`` or a number.
        connect_timeout: how long one attempt to connect may take; ``"10s"`` or seconds.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (("value", "string"),)
    source_rule: ClassVar[SourceRule] = SourceRule.NOT_SENT_AGAIN

    kind: Literal["socket_text"] = "socket_text"
    host: str
    port: Annotated[int, Field(ge=1, le=65535)]
    delimiter: str = "\n"
    encoding: str = "utf-8"
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)] = 2**20
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 10.0

    @property
    def address(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if not host or "/" in host or any(c.isspace() for c in host):
            raise ValueError(f"{host!r} is no host: give a name or an address alone, as '127.0.0.1' (the port apart)")
        return host

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str) -> str:
        if len(delimiter) != 1 or not delimiter.isascii():
            raise ValueError(f"{delimiter!r} is no delimiter: give one ASCII character, as '\\n'")
        return delimiter

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        try:
            name = codecs.lookup(encoding).name
        except LookupError:
            name = ""
        if not _ENCODINGS.fullmatch(name):
            raise ValueError(
                f"{encoding!r} can't be cut at single bytes: use utf-8, ascii, or a one-byte encoding "
                "(iso8859-*, cp125*, koi8-r, koi8-u), or convert at the sender"
            )
        return name
