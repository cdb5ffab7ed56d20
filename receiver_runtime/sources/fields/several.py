"""Define the types of fields that take several names or secrets, or a single one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from receiver_runtime.sources.fields.secret import Secret


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_several)]
#: Of a source that listens for datagrams, for connections, or for both at one port.
Transports = Annotated[tuple[Literal["udp", "tcp"], ...], BeforeValidator(_several)]


def _secrets(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


Secrets = Annotated[tuple[Secret, ...], BeforeValidator(_secrets)]
