"""Test what `forebay status` reports about Spark's size (O04)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import INTERVAL, make_log
from tracker_store.batches import batches
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.scaling import record_scaling, scaling_decision
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_batches(engine: sa.Engine, parts: Sequence[float]) -> None:
    """Add batches of the last minute that took these parts of their interval, and one that failed and took long."""
    with connect(engine) as connection:
        log = make_log(connection)
        now = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": now - 5 * INTERVAL})
        for number, part in enumerate([*parts, 100.0]):
            time = now - (4 - number) * INTERVAL
            log.add_at(log.receiver_ids[0], time - timedelta(seconds=1))
            log.tracker.allocate_blocks_to_batch(time)
            at = {"pipeline_id": log.pipeline_id, "batch_time": time, "attempt": 1, "run_id": "run"}
            batches.claim_attempt(connection, **at, process_id=1)
            if part > 10:
                batches.fail_attempt(connection, **at, error="no", max_attempts=1, pauses=[timedelta(0)])
            else:
                batches.complete_batch(connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=1, outputs=[])
            connection.execute(
                sa.text("UPDATE forebay.batch_attempts SET started_at = :at WHERE batch_time = :t"),
                {"at": time, "t": time},
            )
            connection.execute(
                sa.text("UPDATE forebay.batches SET completed_at = :at WHERE batch_time = :t AND state = 'COMPLETED'"),
                {"at": time + part * INTERVAL, "t": time},
            )


@pytest.mark.parametrize(
    ("parts", "ratio", "executors", "said"),
    [
        ([0.5, 0.7, 0.6], 0.6, 0, False),
        ([0.9, 2.3, 1.6], 1.6, 2, True),
        ([0.9, 2.3], 1.6, 2, False),
        ([0.1, 0.2, 0.15], 0.15, -1, False),
    ],
)
def test_o04_status_recommends_executors_by_how_long_batches_take(
    engine: sa.Engine,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    parts: Sequence[float],
    ratio: float,
    executors: int,
    *,
    said: bool,
) -> None:
    run_batches(engine, parts)
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    report = json.loads(CliRunner().invoke(app, ["status", "--within", "60", "--json"]).stdout)
    expected = {"pipeline": "words", "ratio": ratio, "batches": len(parts), "executors": executors}
    assert report["scaling"] == [expected]
    shown = CliRunner().invoke(app, ["status", "--within", "60"]).output
    assert ("by Spark Streaming's rule" in " ".join(shown.split())) == said


def test_a_decision_is_read_with_how_many_batches_ran_lately(engine: sa.Engine) -> None:
    run_batches(engine, [0.5, 0.7])
    with connect(engine) as connection:
        pipeline_id = get_pipeline(connection, "words").pipeline_id
        record_scaling(
            connection,
            pipeline_id=pipeline_id,
            ratio=0.6,
            batches=2,
            executors=1,
            batch_drivers=1,
            applied=False,
            reason="as before",
        )
        decision = scaling_decision(connection, "words")
        assert decision is not None
        assert decision.newest_batches == 2, "the failed one does not count"
        connection.execute(sa.text("UPDATE forebay.batches SET completed_at = completed_at - interval '4 minutes'"))
        decision = scaling_decision(connection, "words")
        assert decision is not None
        assert decision.newest_batches == 0
        connection.execute(
            sa.text("UPDATE forebay.scaling_decisions SET ratio = 300 / extract(epoch FROM CAST(:i AS interval)) / 10"),
            {"i": INTERVAL},
        )
        decision = scaling_decision(connection, "words")
        assert decision is not None
        assert decision.newest_batches == 2, "slow batches, of which few end in three minutes, count for longer"
