"""Find the kinds of records that installed packages register, and read stored declarations of them.

A kind is an entry point of the group ``forebay.records``: its name is the declarations' ``kind``, its value the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from receiver_runtime.sources import plugins
from receiver_runtime.sources.records.declared import GROUP, Records

if TYPE_CHECKING:
    from collections.abc import Mapping


class RecordsError(ValueError):
    """Correct the stream's ``records=``: it can't be used. The message names the field, its value and how to fix it."""


def parse_records(declaration: Mapping[str, Any]) -> Records:
    """Return what a declaration (``Records.model_dump(mode="json")``) describes. Raises RecordsError."""
    kind = declaration.get("kind")
    if not isinstance(kind, str) or kind not in plugins.registered(GROUP):
        known = ", ".join(plugins.registered(GROUP))
        raise RecordsError(f"records: {kind!r} is no kind of records: use one of {known}")
    try:
        return plugins.load(GROUP, kind, Records).model_validate(dict(declaration))
    except plugins.PluginError as error:
        raise RecordsError(f"records: {error}") from error
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, one['loc'])) or kind}: {one['msg']}" for one in error.errors())
        raise RecordsError(f"records: {found}: correct it") from error
