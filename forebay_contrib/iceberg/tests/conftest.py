"""Close the connections of SQL catalogs that tests open again."""

from __future__ import annotations

from functools import partial

import pytest
import sqlalchemy as sa
from pyiceberg.catalog import sql


@pytest.fixture(autouse=True)
def _no_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no connection in a pool: a table that a test holds connects again after the sink has closed the catalog."""
    monkeypatch.setattr(sql, "create_engine", partial(sa.create_engine, poolclass=sa.NullPool))
