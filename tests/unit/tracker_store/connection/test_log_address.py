"""Test what is said about where a driver log is: the place, and no secret."""

from __future__ import annotations

import pytest

from tracker_store.connection.log_address import address_of_log, libpq_url, password_of


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me:secret@db.example:6000/log", "database log on db.example, port 6000"),
        ("postgres://me:secret@db.example/log?pool_mode=session", "database log on db.example, port 5432"),
        (
            "postgresql+psycopg2://me:secret@/log?host=/run/pg&port=5433&requirepeer=me",
            "database log at the socket /run/pg/.s.PGSQL.5433",
        ),
        ("postgresql:///?dbname=log&host=a&host=b", "database log on b, port 5432"),
        ("postgresql://me@/", "database me on localhost, port 5432"),
    ],
)
def test_the_place_of_a_log(url: str, place: str) -> None:
    assert str(address_of_log(url)) == place


def test_the_url_for_psql_has_the_password_only_if_it_is_asked_for() -> None:
    url = "postgresql+psycopg2://me:se%2Fcret@/log?host=/run/pg&sslpassword=other&pool_mode=session&sslmode=require"
    assert libpq_url(url, with_password=False) == "postgresql://me@/log?host=%2Frun%2Fpg&sslmode=require"
    whole = libpq_url(url, with_password=True)
    assert whole.startswith("postgresql://me:se%2Fcret@/log?")
    assert "sslpassword=other" in whole
    assert password_of(url) == "se/cret"
    assert password_of("postgresql://h/log?password=x") == "x"
    assert "x" not in libpq_url("postgresql://h/log?password=x", with_password=False).removeprefix("postgresql")
    assert password_of("postgresql://h/log") is None
