"""A batch run is killed by SIGKILL at every step of its PostgresSink; the next attempt leaves each row once (M02)."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.apply import apply
from orchestration.settings import Settings
from orchestration.spark.sinks.sink import Step
from tests.integration.orchestration import killed_batch_run
from tests.integration.orchestration.target_database import Target
from tracker_store import batches
from tracker_store.engine import connect
from tracker_store.outputs import commits_of_batch
from tracker_store.pipelines import get_pipeline
from tracker_store.schema import BatchState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestration.spark.sinks.postgres import Mode
    from tests.postgres import TestServer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def target(postgres_server: TestServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with postgres_server.database(migrated=False) as url:
        made = Target(url)
        monkeypatch.setenv("TARGET_URL", made.url)
        yield made


@pytest.mark.parametrize(
    ("step", "mode"),
    [
        *((step, "append") for step in (*Step, killed_batch_run.PUBLISHING)),
        (Step.STAGED, "merge"),
        (Step.COMMITTED, "merge"),
        (Step.COMMITTED, "overwrite"),
    ],
)
def test_point_27_each_row_once_whichever_step_a_kill_hits(
    engine: sa.Engine, database_url: str, target: Target, tmp_path: Path, step: str, mode: Mode
) -> None:
    settings = Settings(home=tmp_path, database_url=database_url)
    with connect(engine) as connection:
        apply(connection, [killed_batch_run.declare(mode)])
        pipeline = get_pipeline(connection, "words")
        time = pipeline.last_batch_time + timedelta(hours=1)
        connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, "
                "bytes, blocks) VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)"
            ),
            {"p": pipeline.pipeline_id, "t": time},
        )
        died = subprocess.run(
            [
                sys.executable,
                "-m",
                killed_batch_run.__name__,
                str(tmp_path),
                database_url,
                time.isoformat(),
                "1",
                mode,
                str(step),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        # As the tracker does, when the process's heartbeat stands still.
        batches.fail_attempt(
            connection,
            pipeline_id=pipeline.pipeline_id,
            batch_time=time,
            attempt=1,
            run_id="run1",
            error="killed",
            max_attempts=3,
            retry_after=timedelta(0),
        )
        killed_batch_run.run(settings, time, 2, mode=mode)
        batch = batches.get_batch(connection, pipeline.pipeline_id, time)
        assert batch is not None
        assert batch.state is BatchState.COMPLETED
        [commit] = commits_of_batch(connection, pipeline.pipeline_id, time)
    assert target.counts() == killed_batch_run.WRITTEN
    took_over = step in (Step.COMMITTED, Step.SWEPT, killed_batch_run.PUBLISHING)
    assert target.commits() == [(time, 1 if took_over else 2, 3)]
    assert (commit.attempt, commit.rows, commit.location) == (
        1 if step == killed_batch_run.PUBLISHING else 2,
        3,
        "public.counts",
    )
