"""Provide an allocated batch, to be run by a program in its own process on any Spark."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from tests.support.commands.run_program import run_program
from tests.support.driver_log.stored_lines import LineReceiver
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestration.declarations.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
LINES = 40


class AllocatedBatch:
    """A batch of `pipeline`, which has one receiver: 40 blocks of one line each, "all word0" to "all word39"."""

    def __init__(
        self, connection: sa.Connection, url: str, directory: Path, pipeline: Pipeline, *, block_key: str | None = None
    ) -> None:
        self._block_key = block_key
        self._settings = Settings(home=directory / "home", database_url=url)
        self._directory = directory
        apply(connection, [pipeline])
        [placement] = placements(connection)
        lines = LineReceiver(connection, self._settings.block_store_roots, placement.receiver_id, block_key=block_key)
        for number in range(LINES):
            lines.receive([f"all word{number}"])
        lines.close()
        row = get_pipeline(connection, pipeline.name)
        self._time: datetime = row.last_batch_time
        connection.execute(
            sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": self._time - timedelta(hours=1)}
        )
        connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :t"), {"t": self._time - timedelta(minutes=1)})
        ReceivedBlockTracker(connection, row.pipeline_id).allocate_blocks_to_batch(self._time)

    def run(
        self,
        program: str,
        output: Path,
        *,
        master: str,
        configuration: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Run `program`, a file in this folder, in its own process; return what it prints: the rows of each output."""
        done = run_program(
            [
                sys.executable,
                str(ROOT / "tests" / "integration" / "cluster" / program),
                str(output),
                self._time.isoformat(),
            ],
            env={
                **os.environ,
                **(environment or {}),
                "PYTHONPATH": str(ROOT),
                "FOREBAY_HOME": str(self._settings.home),
                "FOREBAY_DATABASE_URL": self._settings.require_database_url(),
                "FOREBAY_SPARK_MASTER": master,
                "FOREBAY_SPARK_CONFIGURATION": json.dumps(dict(configuration or {})),
                **({} if self._block_key is None else {"FOREBAY_BLOCK_KEY": self._block_key}),
            },
            cwd=self._directory,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        rows: list[int] = json.loads(done.stdout.splitlines()[-1])
        return rows
