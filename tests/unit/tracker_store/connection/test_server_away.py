"""Check what a migration says of a server that can't be reached: `forebay up` prints it as it is."""

from __future__ import annotations

import pytest

from tracker_store.connection.errors import DriverLogError
from tracker_store.install import migrate


def test_a_migration_says_in_one_line_where_nothing_answers() -> None:
    with pytest.raises(DriverLogError, match="port 1 failed") as raised:
        migrate.upgrade("postgresql://me:secret@127.0.0.1:1/d")
    said = str(raised.value)
    assert "\n" not in said
    assert "connections? Try again" in said
    assert "secret" not in said
