"""Reach a test's Postgres server through a TCP port in front of it, although it listens on a Unix socket alone."""

from __future__ import annotations

import socket

import sqlalchemy as sa

# What leads to a Unix socket, and to no other server.
_TO_SOCKET = ("host", "port", "requirepeer")


def connect_to(url: str) -> socket.socket:
    """Open a connection to the server of a URL, which names a host or the directory of a Unix socket."""
    target = sa.make_url(url)
    if target.host is not None:
        connection = socket.create_connection((target.host, target.port or 5432), timeout=60)
        connection.settimeout(None)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"{target.query['host']}/.s.PGSQL.{target.query['port']}")
    except BaseException:
        connection.close()
        raise
    return connection


def through(url: str, port: int) -> str:
    """Return the URL of the same database through a proxy on this port of 127.0.0.1."""
    target = sa.make_url(url).difference_update_query(_TO_SOCKET).set(host="127.0.0.1", port=port)
    return target.render_as_string(hide_password=False)
