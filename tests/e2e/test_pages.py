"""Check in a real browser what an operator sees in the Dagster UI."""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay.cli.instance.dagster_home import DATABASE_VARIABLE, dagster_database_url
from tests.support.commands.run_program import run_program
from tracker_store.connection.engine import connect
from tracker_store.reports import status
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.e2e.pages import Pages
    from tests.support.systems.running_system import RunningSystem
    from tracker_store.reports.status import BatchStats

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def newest(system: RunningSystem, pipeline: str, state: str) -> BatchStats:
    with connect(system.engine) as connection:
        rows = status.batch_stats(connection, limit=1000)
    return next(row for row in rows if row.pipeline == pipeline and row.state == state and row.records)


def run_of(system: RunningSystem, pipeline: str, state: str) -> str:
    """Return the run of the newest attempt at such a batch."""
    batch = newest(system, pipeline, state)
    with connect(system.engine) as connection:
        run_id: str = connection.execute(
            sa.text("SELECT run_id FROM forebay.batch_stats WHERE pipeline = :pipeline AND batch_time = :time"),
            {"pipeline": pipeline, "time": batch.batch_time},
        ).scalar_one()
    return run_id


def test_the_graph_shows_streams_outputs_and_plots(pages: Pages) -> None:
    pages.open("/asset-groups?expanded=numbered%2Cbrittle%2Cforebay_streams")
    pages.shows("forebay_streams", "numbered", "brittle")
    pages.picture("asset-graph")


def materialized_at(system: RunningSystem, run_id: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return when the run materialized the batches of numbered, in milliseconds as a link to the event has it."""
    monkeypatch.setenv(DATABASE_VARIABLE, dagster_database_url(EmbeddedPostgres(system.home / "postgres").url()))
    with dg.DagsterInstance.from_config(str(system.home / "dagster")) as instance:
        [seconds] = [
            entry.timestamp
            for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
            if entry.dagster_event and entry.dagster_event.asset_key == dg.AssetKey(["numbered", "batches"])
        ]
    return math.ceil(seconds * 1000)


def test_batches_are_plotted(pages: Pages, system: RunningSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    # The newest event of all has no run, because the newest batches had no records.
    at = materialized_at(system, run_of(system, "numbered", "COMPLETED"), monkeypatch)
    pages.open(f"/assets/numbered/batches?view=events&time={at}")
    pages.shows("Materialized in run", "scheduling_delay_ms", "processing_time_ms", "total_delay_ms", "input_rate")
    pages.shows("FROM forebay.batch_blocks")
    pages.picture("batch")
    pages.open("/assets/numbered/batches?view=overview")
    pages.shows("total_delay_ms")
    pages.page.get_by_text("Plots", exact=True).click()
    pages.shows("scheduling_delay_ms", "input_rate")
    pages.picture("batch-plots")


def test_an_output_shows_its_rows_and_their_location(pages: Pages) -> None:
    pages.open("/assets/numbered/seen?view=overview")
    pages.shows("Each number that came in", "location", "input_rate")
    pages.picture("output")


def test_a_stream_is_observed(pages: Pages) -> None:
    pages.open("/assets/forebay/numbers?view=events")
    pages.shows("lag_records", "receivers_active", "ACTIVE")
    pages.picture("stream")


def test_a_check_says_that_a_batch_was_given_up(pages: Pages) -> None:
    pages.open("/assets/brittle/batches?view=checks&checkDetail=none_quarantined")
    pages.shows("none_quarantined", "forebay batches --pipeline brittle")
    pages.picture("check")


def test_the_sensor_says_what_it_waits_for(pages: Pages) -> None:
    pages.open("/locations/forebay/sensors/numbered_batches")
    pages.shows("numbered_batches", "Gives each interval's blocks to a batch of numbered")
    pages.picture("sensor")


def test_a_failed_batch_is_a_failed_run_with_its_reason_and_tags(pages: Pages, system: RunningSystem) -> None:
    pages.open("/runs?q=job%3Abrittle_batch")
    pages.shows("Failure", "forebay/batch_time: ", "forebay/attempt: 1", "forebay/pipeline: brittle")
    pages.picture("failed-batches")
    pages.open(f"/runs/{run_of(system, 'brittle', 'QUARANTINED')}")
    pages.shows("brittle_batch", "number 500 is no good")
    pages.picture("failed-batch")


def test_a_replay_is_a_run_of_its_own(pages: Pages, system: RunningSystem) -> None:
    batch = newest(system, "numbered", "COMPLETED")
    done = run_program(
        [
            *(sys.executable, "-m", "forebay.cli", "batches", "replay", "numbered"),
            *("--from", batch.batch_time.isoformat(), "--to", batch.batch_time.isoformat()),
        ],
        env=os.environ | {"FOREBAY_HOME": str(system.home)},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages.open("/runs?q=job%3Anumbered_replay")
    pages.shows("numbered_replay", "Success")
    pages.picture("replay")
    system.check_every_number_came_out_once()
