"""Test dead letters of a typed stream: why they do not fit, and a replay that stores what fits by now exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.testing.receiver_processes import eventually
from tests.integration.receiver_runtime.typed_rig import Orders
from tests.support.receivers.block_keys import key_file
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result

# Each ends the process, in a replay alone: before its block is registered, and before its row says so.
_DEATHS = {
    "before the block is registered": (
        "import os, receiver_runtime.block_path.block_path as m; m.BlockWriter.push = lambda *a, **k: os._exit(9)"
    ),
    "before the row is marked": (
        "import os, receiver_runtime.reporting.receiver_driver_log as m; "
        "m.end_letter_replay = lambda *a, **k: os._exit(9)"
    ),
}


def forebay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *map(str, arguments)])


def shown(*arguments: object) -> dict[str, Any]:
    done = forebay(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def orders(database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    rig = Orders.begun(database_url, home)
    try:
        yield rig
    finally:
        rig.close()


def _letter(orders: Orders) -> int:
    [(number,)] = orders.execute("SELECT id FROM forebay.dead_letters")
    return int(number)


def test_tap_shows_the_columns(orders: Orders) -> None:
    eventually(lambda: orders.records() == 1, "the record")
    done = CliRunner().invoke(app, ["tap", "lines", "--no-follow"])
    assert done.exit_code == 0, done.output
    [record] = map(json.loads, done.stdout.splitlines())
    assert (record["item"], record["pieces"], record["_path"]) == ("tea", 2, "/v1/lines")
    assert "body" not in record


def test_a_letter_says_why_it_does_not_fit_and_that_it_fits_by_now(orders: Orders) -> None:
    number = _letter(orders)
    text = forebay("show", number).output
    assert "Expected `int | null`, got `float` - at `$.pieces`" in text
    assert "fits by now" not in text
    records = shown("show", number)["records"]
    assert [record["fits"] for record in records] == [False, False, False]
    assert "$.item" in records[2]["why"]
    refused = forebay("replay", number)
    assert (refused.exit_code, "none of 3 record(s) fits" in refused.stderr) == (1, True)
    orders.declare("item STRING, pieces BIGINT")
    assert [record["fits"] for record in shown("show", number)["records"]] == [True, False, True]
    assert "it fits by now" in forebay("show", number, "--letter", 1).output
    dry = shown("replay", number, "--dry-run")
    assert [left["letter"] for left in dry["dead_letters"][0]["left"]] == [2]


@pytest.mark.parametrize("death", ["", *_DEATHS])
def test_what_fits_by_now_is_stored_once_and_the_rest_stays(orders: Orders, death: str) -> None:
    number = _letter(orders)
    orders.declare("item STRING, pieces BIGINT")
    with orders.tracker(first=_DEATHS.get(death, "")) as placed:
        if death:
            # Nothing waits for this process: it dies in the replay.
            orders.execute("UPDATE forebay.dead_letters SET replay_wanted = true")
            orders.execute("UPDATE forebay.receivers SET assignment = assignment + 1")
        else:
            [done] = shown("replay", number)["dead_letters"]
            assert (done["records"], [left["letter"] for left in done["left"]]) == (2, [2])
    if death:
        assert placed[0].wait(60) == 9
        with orders.tracker():
            assert shown("replay", number)["dead_letters"][0]["left"] == [
                {"letter": 2, "why": "Expected `int | null`, got `float` - at `$.pieces`"}
            ]
    assert sorted(map(str, orders.values())) == ["None", "None", "tea"]
    assert "it is in a block" in forebay("show", number, "--letter", 3).output
    refused = forebay("replay", number)
    assert (refused.exit_code, "none of 1 record(s) fits" in refused.stderr) == (1, True)
    orders.declare("item STRING")
    with orders.tracker():
        assert shown("replay", number)["dead_letters"][0]["left"] == []
    assert sorted(map(str, orders.values())) == ["None", "None", "pot", "tea"]
    [(replayed_to,)] = orders.execute("SELECT replayed_to FROM forebay.dead_letters")
    assert (replayed_to, forebay("replay", number).exit_code) == ("lines", 1)


def test_letters_from_before_a_rotation_of_the_block_key_are_parsed_again(
    database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (key_file(tmp_path / "keys" / name) for name in ("old", "new"))
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", new)
    monkeypatch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", old)
    orders = Orders.begun(database_url, home, block_keys=(old,))
    try:
        orders.block_keys = (new, old)
        orders.declare("item STRING, pieces BIGINT")
        with orders.tracker():
            assert shown("replay", _letter(orders))["dead_letters"][0]["records"] == 2
    finally:
        orders.close()


def test_letters_that_can_not_be_read_keep_no_receiver_from_its_start(orders: Orders) -> None:
    [(path,)] = orders.execute(
        "SELECT s.path FROM forebay.dead_letters d JOIN forebay.log_segments s ON s.id = d.segment_id"
    )
    Path(orders.block_store, path).unlink()
    orders.execute("UPDATE forebay.dead_letters SET replay_wanted = true")
    with orders.tracker():
        orders.execute("UPDATE forebay.receivers SET assignment = assignment + 1")
    eventually(lambda: ReceiverEventKind.ERROR in orders.events(), "the event")
    orders.listening()
    [(wanted, left, replayed_at)] = orders.execute(
        "SELECT replay_wanted, left_records, replayed_at FROM forebay.dead_letters"
    )
    assert (wanted, left, replayed_at, orders.records()) == (False, None, None, 1)
