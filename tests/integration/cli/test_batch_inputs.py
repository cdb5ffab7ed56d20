"""Test what `forebay batches show` says about the sources' positions that a batch read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log
from tracker_store.blocks.blocks import AddOutcome, OffsetLink, open_partition
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from pathlib import Path

T1 = NOON + INTERVAL


@pytest.fixture
def log(connection: sa.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return make_log(connection, receivers=1)


def receive(log: Log, *links: OffsetLink) -> None:
    """Register a block with these links, and allocate it to the batch of T1."""
    [receiver_id] = log.receiver_ids
    claim = claim_anew(log.connection, receiver_id)
    for source, partition, start in {(link.source, link.partition, link.from_offset) for link in links[:1]}:
        open_partition(log.connection, receiver_id=receiver_id, source=source, partition=partition, start_offset=start)
    made = replace(block(claim, claim.sequence + 1), links=links)
    assert add(log.connection, made).outcome is AddOutcome.ADDED
    log.connection.execute(
        sa.text("UPDATE forebay.blocks SET added_at = :at WHERE receiver_id = :r"),
        {"at": NOON + timedelta(seconds=1), "r": receiver_id},
    )
    log.tracker.allocate_blocks_to_batch(T1)


def show(*options: str) -> str:
    shown = CliRunner().invoke(app, ["batches", "show", "words", f"{T1:%Y-%m-%dT%H:%M:%SZ}", *options])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_batches_show_names_the_ranges_and_what_the_source_lost(log: Log) -> None:
    receive(
        log,
        OffsetLink("orders", "0", 0, 100, 110),
        OffsetLink("orders", "0", 0, 110, 1125, kind=LinkKind.LOST),
        OffsetLink("orders", "0", 0, 1125, 1130),
    )
    assert "  lines: orders 0: 100 to 1129, 1,030 positions, 1,015 of them lost by the source\n" in show()
    answer = json.loads(show("--json"))["inputs"]
    assert answer["ranges"] == [
        {
            "stream": "lines",
            "source": "orders",
            "partition": "0",
            "generation": 0,
            "from_offset": 100,
            "to_offset": 1130,
            "lost": 1015,
        }
    ]
    assert (answer["known"], answer["total"], answer["no_positions"]) == (True, 1, [])


def test_batches_show_names_the_streams_without_positions(log: Log) -> None:
    receive(log)
    assert "Read from its sources:\n  lines: no positions\n" in show()
    assert json.loads(show("--json"))["inputs"]["no_positions"] == ["lines"]
