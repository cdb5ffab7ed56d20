"""Define the type of a field that takes several names, or a single one."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_several)]
