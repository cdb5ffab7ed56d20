"""Check what a URL says about a pooler, and what is sent through one."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import make_url

from tracker_store.connection.engine import Prepared, psycopg2_url
from tracker_store.connection.errors import DriverLogError
from tracker_store.connection.pooler import (
    DIRECT_URL_VARIABLE,
    PoolMode,
    SessionSettings,
    direct_url,
    split_pool_mode,
    unpooled_url,
)

URL = "postgresql://me:secret@h/d"


@pytest.mark.parametrize("mode", PoolMode)
def test_the_mode_is_not_sent_to_the_server(mode: PoolMode) -> None:
    url, found = split_pool_mode(make_url(f"{URL}?host=a:1&pool_mode={mode}&host=b:2"))
    assert found is mode
    assert url.query == {"host": ("a:1", "b:2")}
    assert split_pool_mode(make_url(URL)) == (make_url(URL), None)


@pytest.mark.parametrize(
    ("url", "hosts", "port"),
    [
        ("postgresql://me@h1:5432,h2:5433/d?sslmode=require", "h1,h2", "5432,5433"),
        ("postgresql://me@h1,h2/d", "h1,h2", ","),
        ("postgresql://me@[::1]:5432,[::2]:5433/d", "::1,::2", "5432,5433"),
        ("postgresql://me@h1:5432/d", "h1", 5432),
    ],
)
def test_several_servers_are_read_as_libpq_does(url: str, hosts: str, port: object) -> None:
    [_, found] = psycopg2_url(url).get_dialect()().create_connect_args(psycopg2_url(url))
    assert (found["host"], found.get("port")) == (hosts, port)
    assert found["dbname"] == "d"


@pytest.mark.parametrize("url", ["nope", "postgresql://me:secret@h:x/d", "", "127.0.0.1:5432", "mysql://me:secret@h/d"])
def test_what_is_no_url_says_how_to_write_one_without_its_secret(url: str) -> None:
    with pytest.raises(DriverLogError, match="Write postgresql://USER@HOST:PORT/DATABASE") as raised:
        psycopg2_url(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("wrong", ["pool_mode=statement", "pool_mode=session&pool_mode=transaction"])
def test_what_is_no_mode_is_refused(wrong: str) -> None:
    with pytest.raises(DriverLogError, match="is no mode"):
        split_pool_mode(make_url(f"{URL}?{wrong}"))


def test_what_needs_a_session_has_the_direct_url(monkeypatch: pytest.MonkeyPatch) -> None:
    session, transaction, direct = f"{URL}?pool_mode=session", f"{URL}?pool_mode=transaction", "postgresql://h2/d"
    monkeypatch.delenv(DIRECT_URL_VARIABLE, raising=False)
    assert direct_url(URL, "a lock") == unpooled_url(URL, "a lock") == URL
    # A session that a client keeps is its own.
    assert direct_url(session, "a lock") == session
    for asked, url in ((direct_url, transaction), (unpooled_url, session)):
        with pytest.raises(DriverLogError, match=f"a lock needs .*{DIRECT_URL_VARIABLE}") as raised:
            asked(url, "a lock")
        assert "secret" not in str(raised.value)
    monkeypatch.setenv(DIRECT_URL_VARIABLE, direct)
    assert direct_url(URL, "a lock") == URL, "the embedded server has no pooler"
    for pooled in (session, transaction):
        assert direct_url(pooled, "a lock") == unpooled_url(pooled, "a lock") == direct
    monkeypatch.setenv(DIRECT_URL_VARIABLE, session)
    with pytest.raises(DriverLogError, match="without a pooler"):
        unpooled_url(transaction, "a lock")


def test_start_up_options_quote_spaces() -> None:
    options = SessionSettings("30s", "10s", "10s").start_up_options()
    assert r"-c default_transaction_isolation=read\ committed" in options
    assert "search_path" not in options
    assert "-c search_path=public" in SessionSettings("30s", "10s", "10s", "public").start_up_options()


def test_an_unprepared_statement_has_the_types_of_the_prepared_one() -> None:
    """Check this because a bare number is an integer: the server may find another function, or none."""
    statement = Prepared("p", "forebay.add", "outcome", ("bigint", "text"))
    assert statement.preparation == "PREPARE p (bigint, text) AS SELECT outcome FROM forebay.add($1, $2)"
    assert statement.execution(["7", "%s"]) == "EXECUTE p(7, %s)"
    assert statement.unprepared(["7", "%s"]) == "SELECT outcome FROM forebay.add(CAST(7 AS bigint), CAST(%s AS text))"
