"""Test `forebay dead-letters`: sums, newest rows, and the bytes of a row as text that obeys no terminal."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tests.support.driver_log.log import make_log
from tests.support.driver_log.stored_letters import Letters
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture(autouse=True)
def _environment(database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def letters(engine: sa.Engine) -> Iterator[list[Letters]]:
    """Return the letters of two receivers."""
    with connect(engine) as connection:
        log = make_log(connection, receivers=2)
        both = [Letters(connection, Settings().block_store_roots, receiver_id) for receiver_id in log.receiver_ids]
        yield both
        for one in both:
            one.close()


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *arguments])


def answer(*arguments: str) -> list[dict[str, Any]]:
    done = forebay("list", "--json", *arguments)
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)["dead_letters"]
    return rows


def test_letters_are_summed_by_receiver_and_reason(letters: list[Letters]) -> None:
    first, second = letters
    first.add(DeadLetterReason.INVALID_ENCODING, [b"one", b"two"])
    newest = first.add(DeadLetterReason.INVALID_ENCODING, [b"three"], dropped=7)
    first.add(DeadLetterReason.TRUNCATED, [b"4"])
    other = second.add(DeadLetterReason.INVALID_ENCODING, [b"five"])
    sums = answer()
    assert [
        (row["stream"], row["ordinal"], row["reason"], row["rows"], row["letters"], row["bytes"]) for row in sums
    ] == [
        ("lines", 1, "invalid_encoding", 2, 3, 11),
        ("lines", 1, "truncated", 1, 1, 1),
        ("lines", 2, "invalid_encoding", 1, 1, 4),
    ]
    assert (sums[0]["dropped"], sums[0]["dropped_bytes"], sums[0]["newest_id"]) == (7, 70, newest)
    assert answer("lines/2") == answer("lines/2", "--reason", "invalid_encoding") == sums[2:]
    assert answer("lines", "--reason", "truncated") == sums[1:2]
    assert answer("lines/2", "--reason", "truncated") == []
    unknown = forebay("list", "other")
    assert (unknown.exit_code, "'other' is not in the driver log" in unknown.output) == (1, True)
    assert [row["id"] for row in answer("-n", "1")] == [other]
    assert [row["letters"] for row in answer("lines/1", "-n", "2")] == [1, 1]
    for shown in (forebay("list").stdout, forebay("list", "-n", "5").stdout):
        assert "invalid_encoding" in shown
        assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("stream", ["orders_from_shop", "departures_by_carrier_and_origin_of_each_hour"])
def test_a_long_name_is_shown_whole_at_80_columns(letters: list[Letters], engine: sa.Engine, stream: str) -> None:
    with connect(engine) as connection:
        connection.execute(sa.text("UPDATE forebay.streams SET name = :name"), {"name": stream})
        connection.execute(sa.text("UPDATE forebay.receivers SET ordinal = 12 WHERE ordinal = 2"))
    newest = letters[1].add(DeadLetterReason.INVALID_ENCODING, [b"x" * 1_234], dropped=12_345)
    for shown in (forebay("list").stdout, forebay("list", "-n", "5").stdout):
        for cell in (f"{stream}/12", "invalid_encoding", "1,234", str(newest)):
            assert cell in shown
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= 80


def test_without_letters_the_list_says_so(letters: list[Letters]) -> None:
    assert "none" in forebay("list").stdout
    assert answer() == []
    assert forebay("list", "lines/x").exit_code == 2


def test_records_are_shown_as_text_that_obeys_no_terminal(letters: list[Letters]) -> None:
    found = [b"stra\xdfe", b"\x1b[2Jgone\n", b"x" * 3_000]
    number = str(letters[0].add(DeadLetterReason.INVALID_ENCODING, found))
    done = forebay("show", number)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "1: stra\\xdfe",
        "2: \\u001b[2Jgone\\n",
        f"3: {'x' * 2_000} … and 1,000 bytes (--all shows them)",
    ]
    assert "lines/1, invalid_encoding" in done.stderr
    assert forebay("show", number, "--letter", "3", "--all").stdout == f"3: {'x' * 3_000}\n"
    told = json.loads(forebay("show", number, "--json").stdout)
    assert [b64decode(one["base64"]) for one in told["records"]] == found
    assert (told["stream"], told["ordinal"], told["reason"]) == ("lines", 1, "invalid_encoding")
    assert forebay("show", number, "--letter", "4").exit_code == 1
    done = forebay("show", "987654")
    assert done.exit_code == 1
    assert "There is no dead letter 987654" in done.stderr
