"""Declare a source of lines of text on a TCP connection (the original's ``socketTextStream``, X01)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, field_validator, model_validator

from receiver_runtime.receivers.sockets.tcp_source import TcpSource
from receiver_runtime.sources.fields.multiline import MultilineField  # noqa: TC001  pydantic evaluates it
from receiver_runtime.sources.fields.text_encoding import (
    LEAST_TRAIL_BYTE,
    check_byte_encoding,
    has_several_bytes,
    is_one_byte,
)

_MAX_DELIMITER_BYTES = 64
#: The prefix, in JSON, of a delimiter that is not ASCII text and is written in hexadecimal.
_HEX = "hex:"


def _parse_delimiter(value: object) -> object:
    if isinstance(value, str) and value.startswith(_HEX):
        return bytes.fromhex(value.removeprefix(_HEX))
    return value


def _write_delimiter(delimiter: str | bytes) -> str:
    """Return ASCII text as it is, other bytes in hex: a declaration is JSON, and Postgres takes no NUL in it."""
    data = delimiter if isinstance(delimiter, bytes) else delimiter.encode("ascii")
    if data.isascii() and b"\0" not in data and not data.startswith(_HEX.encode()):
        return data.decode("ascii")
    return _HEX + data.hex()


class SocketText(TcpSource):
    r"""Reads text records that each end with a delimiter; one column, ``value: string``.

    What happens to bad input is in ``docs/reference/bad-input.md``. The other arguments and the guarantee (at most
    once) are ``TcpSource``'s.

    Args:
        encoding: utf-8, ascii, a one-byte encoding such as latin-1 or cp1252, or shift_jis, euc_jp, euc_kr, cp949,
            big5, gbk, gb18030 and the like. Where it is utf-8, a stream's byte-order mark may name UTF-16 or UTF-32.
            Stored as UTF-8.
        delimiter: text, or any bytes; the stream is cut at it before it is decoded. A ``\\r`` before ``"\\n"`` is part
            of it. ``max_record_bytes`` does not count it.
        multiline: which lines of a connection belong together: ``"java"``, ``"python"`` or ``"go"`` joins those of
            stack traces, and ``Multiline(start=...)`` or ``Multiline(continuation=...)`` those of a pattern. A record
            ends with its connection at the latest. By default each line is a record.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (("value", "string"),)
    record_column: ClassVar[str] = "value"
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.sockets.text:SocketTextReceiver"

    kind: Literal["socket_text"] = "socket_text"
    encoding: str = "utf-8"
    delimiter: Annotated[
        str | bytes,
        BeforeValidator(_parse_delimiter),
        PlainSerializer(_write_delimiter, when_used="json"),
    ] = "\n"
    multiline: MultilineField | None = None

    @property
    def delimiter_bytes(self) -> bytes:
        """Return the delimiter's bytes in the stream."""
        return self.delimiter if isinstance(self.delimiter, bytes) else self.delimiter.encode("ascii")

    @property
    def one_byte(self) -> bool:
        """Return whether each byte of the encoding is a character."""
        return is_one_byte(self.encoding)

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        return check_byte_encoding(encoding)

    @field_validator("delimiter", mode="after")
    @classmethod
    def _check_delimiter(cls, delimiter: str | bytes, info: ValidationInfo) -> str | bytes:
        """Return ASCII text as text, and anything else as bytes, so that equal delimiters compare as equal."""
        data = delimiter
        if isinstance(data, str):
            try:
                data = data.encode(info.data.get("encoding", "utf-8"))
            except UnicodeEncodeError as error:
                raise ValueError(f"{delimiter!r} is no delimiter in this encoding: give bytes, as b'\\x1e'") from error
        if not 1 <= len(data) <= _MAX_DELIMITER_BYTES:
            raise ValueError(f"{delimiter!r} is no delimiter: give 1 to {_MAX_DELIMITER_BYTES} bytes, as '\\n'")
        return data.decode("ascii") if data.isascii() else data

    @model_validator(mode="after")
    def _check_delimiter_in_encoding(self) -> Self:
        if has_several_bytes(self.encoding) and max(self.delimiter_bytes) >= LEAST_TRAIL_BYTE:
            raise ValueError(
                f"delimiter: {self.delimiter!r} can be a part of a character in {self.encoding}: use control "
                "characters, as '\\n', a space, or one of !\"#$%&'()*+,-./"
            )
        return self
