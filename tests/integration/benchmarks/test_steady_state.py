"""Run the steady state at a tiny size: its log keeps every promise, clean-up keeps up, and every figure is there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.report import Report
from benchmarks.server import running_server
from benchmarks.steady_state import add_figures, growth_table, main
from benchmarks.steady_state_load import steady_state
from benchmarks.steady_state_model import TABLES, Feed, Load
from tracker_store.checks import check_data

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LOAD = Load(
    2,
    Feed("keys", 2, keys=10),
    Feed("links", 3, links=2),
    Feed("blocks", 4),
    key_window=20,
    block_retention=10,
    history=20,
    clean_up=10,
)


def test_it_keeps_every_promise_and_its_tables_small(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, steady_state(server, LOAD) as state:
        run = state.run(lambda _sample, _pace: None)
        rewritten = state.rewritten()
        with server.engine.connect() as connection:
            assert [result for result in check_data(connection) if not result.passed] == []
            kept = {
                table: connection.execute(sa.text(f"SELECT count(*) FROM forebay.{table}")).scalar_one()
                for table in ("blocks", "block_offsets", "record_keys")
            }
    expected = LOAD.expected_rows()
    # A marker and the newest block of each receiver stay, and so does each partition's newest link.
    assert 0 < kept["blocks"] <= expected["blocks"] + 2 * 9
    assert 0 < kept["block_offsets"] <= expected["block_offsets"] + 6
    assert 0 < kept["record_keys"] <= expected["record_keys"]
    assert {feed: spent.rows for feed, spent in run.added.items()} == {
        "keys": 120 * 5 * 2 * 10,
        "links": 120 * 5 * 3 * 2,
        "blocks": 120 * 5 * 4,
    }
    assert run.rows_left()["record_keys"] == kept["record_keys"]
    assert all(spent.cpu_seconds > 0 and spent.wal_bytes > 0 for spent in run.added.values())
    assert [sample.minute for sample in run.samples] == [1, 2]
    assert all(rewritten[table].size <= run.samples[-1].tables[table].size for table in TABLES)
    report = Report("steady_state", {})
    add_figures(report, run, LOAD, rewritten)
    assert {"record_keys: largest size, last third", "links: WAL of a block with its links"} <= {
        figure.name for figure in report.figures
    }
    assert growth_table(run.samples).row_count == 2


def test_the_command_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--keys", "400", "--links", "200", "--blocks", "100"]
    assert main(["--quick", "--minutes", "2", *rates, "--set", "record_keys.fillfactor=90", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["benchmark"] == "steady_state"
    assert "all: CPU of clean-up and vacuum" in {figure["name"] for figure in printed["figures"]}
