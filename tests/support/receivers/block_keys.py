"""Make keys of encrypted blocks for tests, and search everything that a system leaves behind for secrets."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

import sqlalchemy as sa

from receiver_runtime.block_store.frames.encryption import KEY_BYTES, BlockKey
from receiver_runtime.sources.fields.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def key_file(path: Path) -> str:
    """Write a new key to a file; return its reference."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{new_key()}\n")
    return f"file:{path}"


def new_key() -> str:
    """Return a new key as text."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def key_id(reference: str) -> str:
    """Return the id of the key that a reference names."""
    return BlockKey.read(Secret(reference)).key_id


def spellings(key: str) -> list[bytes]:
    """Return a key's bytes as they might be written somewhere."""
    secret = base64.b64decode(key)
    return [key.encode(), base64.urlsafe_b64encode(secret), secret, secret.hex().encode()]


def files_with(directory: Path, wanted: Sequence[bytes], *, except_for: Iterable[Path] = ()) -> list[str]:
    """Return each file below a directory that has one of these byte strings; a file that is gone has none."""
    left_out = {path.resolve() for path in except_for}
    found = []
    for path in directory.rglob("*"):
        if path.resolve() in left_out or not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        found += [f"{path}: {text!r}" for text in wanted if text in content]
    return found


def dump(connection: sa.Connection) -> bytes:
    """Return every row of every table of the database, the driver log's and Dagster's, as text."""
    tables = connection.execute(
        sa.text(
            "SELECT quote_ident(table_schema) || '.' || quote_ident(table_name) FROM information_schema.tables "
            "WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema')"
        )
    ).scalars()
    rows: list[str] = []
    for table in list(tables):
        rows += connection.exec_driver_sql(f"SELECT t::text FROM {table} t").scalars()
    # Bytes are shown in hexadecimal, where a text in them would hide.
    return "\n".join(rows).encode() + b"".join(_hexadecimal(row) for row in rows)


def _hexadecimal(row: str) -> bytes:
    found = b""
    for part in row.split("\\x")[1:]:
        digits = part[: len(part) - len(part.lstrip("0123456789abcdef"))]
        found += bytes.fromhex(digits[: len(digits) // 2 * 2])
    return found
