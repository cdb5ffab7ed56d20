"""Name the table that a PostgresSink's declaration writes to, as libpq reads the URL. Connects to nothing."""

from __future__ import annotations

import getpass
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from orchestration.declarations.sink import Place, TableAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

_POSTGRES_PORT = 5432
_PORT = re.compile(r":\d+$")


def table_place(declaration: Mapping[str, Any]) -> Place:
    """Return the place of a declaration: two references to equal secrets, or two names of one server, are two."""
    url, table = declaration["url"], declaration["table"]
    return Place(("postgres", *_database(url), table), f"table {table} of {url}")


def table_address(url: str, schema: str, table: str) -> TableAddress:
    """Return the table's whole name and its database's URI, without a user; a reference to a URL hides both."""
    database = _database(url)
    if database == (url,):
        return TableAddress(f"{schema}.{table}")
    servers, name = database
    return TableAddress(f"{name}.{schema}.{table}", f"postgresql://{servers}/{name}")


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
