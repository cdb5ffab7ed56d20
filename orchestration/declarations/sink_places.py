"""Find the place that a sink's declaration names, because two outputs at one place would replace each other's batches.

It uses only the declaration, which is also in the driver log: two references to equal secrets, or two names of one
server, are two places here. It must never access a target.
"""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_POSTGRES_PORT = 5432
_PORT = re.compile(r":\d+$")
# The options that identify a catalog; a SQL catalog has its own name in its tables.
_CATALOG = ("type", "uri", "warehouse")


@dataclass(frozen=True, slots=True)
class Place:
    """`key` is equal for sinks that write to one place; `shown` is for people."""

    key: tuple[str, ...]
    shown: str


def place_of(sink: Mapping[str, Any]) -> Place | None:
    """Return the place of a sink by its declaration; None for a sink without one (a function, the console)."""
    kind = sink.get("kind")
    if kind == "postgres":
        return Place((kind, *_database(sink["url"]), sink["table"]), f"table {sink['table']} of {sink['url']}")
    if kind == "iceberg":
        properties = sink["properties"]
        catalog = [str(properties.get(key, "")) for key in _CATALOG]
        if catalog[0] in ("", "sql") or not catalog[1]:
            catalog.append(sink["catalog"])
        return Place((kind, sink["table"], *catalog), f"Iceberg table {sink['table']} of catalog {sink['catalog']}")
    path = sink.get("path")
    if path is None:
        return None
    return Place(("files", _directory(path)), repr(path))


def _database(url: str) -> tuple[str, ...]:
    """Return the database that a URL names, without the user; a reference to a URL stands for itself."""
    parts = urlsplit(url)
    if not parts.netloc and not parts.path.startswith("/"):
        return (url,)
    # libpq takes several servers with commas between, and parameters in place of what is before them.
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    servers = (given.get("host") or unquote(parts.netloc.rpartition("@")[2])).lower().split(",")
    ports = given.get("port", "").split(",")
    named = [
        server if _PORT.search(server) else f"{server}:{ports[min(index, len(ports) - 1)] or _POSTGRES_PORT}"
        for index, server in enumerate(servers)
    ]
    user = given.get("user") or unquote(parts.netloc.rpartition("@")[0].partition(":")[0]) or getpass.getuser()
    return (",".join(named), given.get("dbname") or unquote(parts.path.strip("/")) or user)


def _directory(path: str) -> str:
    """Return the normal form of a path or URL, so that URL options and other spellings make no difference."""
    if "://" in path:
        return path.partition("?")[0].rstrip("/")
    return os.path.normpath(path) if path.startswith("/") else path
