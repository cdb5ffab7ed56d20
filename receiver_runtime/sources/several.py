"""A field of several names, of which one may be given by itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_several)]
