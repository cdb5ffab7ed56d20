"""Check that two spellings of one database are one place, as libpq reads them, and that no URL is a traceback."""

from __future__ import annotations

import psycopg2.extensions
import pytest

from forebay import DeclarationError, EnvVar, PostgresSink


def key(url: str) -> tuple[str, ...]:
    return PostgresSink.place({"url": url, "table": "public.t"}).key


@pytest.mark.parametrize(
    "spellings",
    [
        [
            "postgresql://u@h/db",
            "postgresql://v@H:5432/db",
            "postgresql:///db?host=h",
            "postgresql://x/db?host=h&port=5432",
        ],
        ["postgresql://u@h:6000/db", "postgresql://u@h/db?port=6000"],
        ["postgresql://u@h/mydb", "postgresql://u@h/my%64b", "postgresql://h/x?dbname=mydb", "postgresql://mydb@h"],
        [
            "postgresql://u@h1:5432,h2:5433/db",
            "postgresql://h1,h2:5433/db",
            "postgresql:///db?host=h1,h2&port=5432,5433",
        ],
        ["postgresql://u@[::1]/db", "postgresql://u@[::1]:5432/db"],
        ["postgresql://h:99999/db"],
    ],
)
def test_the_spellings_of_one_database_are_one_place_and_differ_from_the_others(spellings: list[str]) -> None:
    for spelling in spellings:
        psycopg2.extensions.parse_dsn(spelling)
    assert len({key(spelling) for spelling in spellings}) == 1
    assert key(spellings[0]) != key("postgresql://u@h/other")


def test_other_servers_are_other_places() -> None:
    urls = ["postgresql://h/db", "postgresql://h:1/db", "postgresql://g/db", "postgresql://h/db?host=a", "env:URL"]
    assert len({key(url) for url in urls}) == len(urls)


@pytest.mark.parametrize("table", ['"Orders"', 'sales."Orders"', '"sales".orders'])
def test_a_table_quoted_as_in_sql_is_refused(table: str) -> None:
    """Its quotes would be part of its name: a new table beside the one that is meant."""
    with pytest.raises(DeclarationError, match="quoted as in SQL"):
        PostgresSink(EnvVar("TARGET_URL"), table)


@pytest.mark.parametrize("key", [["id", "id"], [1], ["id", None], [["id"]]])
def test_a_key_that_no_table_has_is_refused(key: list[str]) -> None:
    """Otherwise the first batch fails, which makes the table."""
    with pytest.raises(DeclarationError, match="give names of columns, and none twice"):
        PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key=key)
