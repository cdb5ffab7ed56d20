"""Check which errors of any command are faults of its settings, to be said in a line instead of a stack trace."""

from __future__ import annotations

import pytest

from forebay.cli.terminal.failures import settings_fault
from tracker_store.connection.engine import create_engine
from tracker_store.connection.errors import DriverLogError


@pytest.mark.parametrize("url", ["127.0.0.1:5432", "mysql://me:secret@h/d"])
def test_a_url_that_is_none_of_postgres_is_one(url: str) -> None:
    with pytest.raises(DriverLogError) as raised:
        create_engine(url, application_name="test")
    said = settings_fault(raised.value)
    assert said is not None
    assert said.startswith("FOREBAY_DATABASE_URL is ")
    assert "secret" not in said


def test_a_bug_is_none() -> None:
    assert settings_fault(ValueError("a bug")) is None
