"""Test `forebay blocks list`: the newest blocks of a stream or a receiver, and no markers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from orchestration.declarations.settings import Settings
from tests.support.driver_log.log import make_log
from tests.support.driver_log.stored_lines import LineReceiver
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa
    from typer.testing import Result


@pytest.fixture(autouse=True)
def _stored(engine: sa.Engine, database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two receivers: the first has blocks 2 and 3, the second has block 2; 1 is the marker of each."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    with connect(engine) as connection:
        log = make_log(connection, receivers=2)
        first, second = (LineReceiver(connection, Settings().block_store_roots, one) for one in log.receiver_ids)
        first.receive(["a1", "a2", "a3"])
        second.receive(["b1"])
        first.receive(["a4"])
        yield
        first.close()
        second.close()


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["blocks", *arguments], env={"COLUMNS": "200"})


def listed(*arguments: str) -> list[dict[str, Any]]:
    done = forebay("list", *arguments, "--json")
    assert done.exit_code == 0, done.output
    blocks: list[dict[str, Any]] = json.loads(done.stdout)["blocks"]
    return blocks


def places(*arguments: str) -> list[tuple[str, int, int]]:
    return [(block["receiver"], block["sequence"], block["records"]) for block in listed(*arguments)]


def test_the_newest_blocks_come_in_the_order_in_which_they_were_added() -> None:
    assert places("lines") == [("lines/1", 2, 3), ("lines/2", 2, 1), ("lines/1", 3, 1)]
    assert places("lines", "-n", "1") == [("lines/1", 3, 1)]
    assert places("lines/2") == [("lines/2", 2, 1)]


def test_a_listed_block_can_be_printed_by_its_receiver_and_number() -> None:
    [block] = listed("lines/2")
    done = forebay("records", block["receiver"], str(block["sequence"]))
    assert json.loads(done.stdout)["value"] == "b1"
    words = forebay("list", "lines/2").stdout.split()
    assert words[words.index("lines/2") + 1] == str(block["sequence"])
    assert (Settings().home / "blocks" / block["segment"]).is_file()


def test_an_unknown_stream_is_named() -> None:
    done = forebay("list", "nothing")
    assert done.exit_code == 1
    assert "receiver 'nothing'" in done.output
