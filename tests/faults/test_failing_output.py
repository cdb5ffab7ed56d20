"""A running system of which one output fails: the other one and what is below it go on, and a replay completes it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay.cli.instance.dagster_home import DATABASE_VARIABLE, dagster_database_url
from tests.support.commands.run_program import run_program
from tests.support.machine.state_directory import state_directory
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import running_system
from tracker_store.connection.engine import connect
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from datetime import datetime

    from tests.support.systems.running_system import RunningSystem

pytestmark = [
    pytest.mark.systems,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning"),
]

PIPELINE = Path(__file__).with_name("failing_output_pipeline.py")
SEEN, CHECKED = dg.AssetKey(["numbered", "seen"]), dg.AssetKey(["numbered", "checked"])
# Seconds in which a batch is run or the observation sensor, which ticks every half minute, has reported it.
REPORTED_SECONDS = 240.0


def commits(system: RunningSystem, time: datetime) -> dict[str, int]:
    """Return the attempt that committed each output of a batch."""
    with connect(system.engine) as connection:
        rows = connection.execute(
            sa.text("SELECT output, attempt FROM forebay.output_commits WHERE batch_time = :time"), {"time": time}
        ).all()
    return {row.output: row.attempt for row in rows}


def materialized(instance: dg.DagsterInstance, key: dg.AssetKey, time: datetime) -> list[int]:
    """Return the attempts with which Dagster has an output of a batch, each materialization once."""
    records = instance.fetch_materializations(key, limit=1000).records
    return [
        int(str(made.metadata["attempt"].value))
        for record in records
        if (made := record.asset_materialization) is not None and made.metadata["batch_time"].value == time.isoformat()
    ]


def files_of(home: Path, time: datetime) -> dict[str, int]:
    """Return the published files of a batch of `seen`, with the times of their last change."""
    [directory] = (home / "output").glob(f"date=*/hour=*/batch_time={time:%Y%m%dT%H%M%S}Z")
    return {file.name: file.stat().st_mtime_ns for file in directory.glob("*.parquet")}


def test_m02_a_failing_output_holds_up_neither_another_nor_the_assets_below_it() -> None:
    soon = dg.AutomationCondition.eager().without(~dg.AutomationCondition.any_deps_in_progress())
    ran: list[str] = []

    @dg.asset(deps=[SEEN], automation_condition=soon)
    def below() -> None:
        ran.append("below")

    defs = dg.Definitions(assets=[dg.AssetSpec(SEEN), dg.AssetSpec(CHECKED), below])
    with state_directory() as home, NumberedSource() as source:
        module = home / "failing_output_pipeline.py"
        shutil.copy(PIPELINE, module)
        with running_system(home, source, str(module)) as system:
            os.environ[DATABASE_VARIABLE] = dagster_database_url(EmbeddedPostgres(home / "postgres").url())
            instance = dg.DagsterInstance.from_config(str(home / "dagster"))
            system.receive(500)
            system.settle()
            (home / "fail").touch()
            before = dg.evaluate_automation_conditions(defs=defs, instance=instance)
            system.receive(500)
            time = system.until(
                "the other output is committed in an attempt in which the first has failed",
                lambda: next(
                    (
                        row.batch_time
                        for row in system.batches()
                        if row.state in ("FAILED", "QUARANTINED") and commits(system, row.batch_time) == {"seen": 1}
                    ),
                    None,
                ),
                REPORTED_SECONDS,
            )
            system.until("Dagster has it", lambda: materialized(instance, SEEN, time) == [1])
            after = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=before.cursor)
            assert after.get_num_requested(dg.AssetKey("below")) == 1
            assert dg.materialize([below], instance=instance).success
            assert ran == ["below"]

            [reason] = system.until(
                "the batch is quarantined",
                lambda: [
                    row.reason for row in system.batches() if row.batch_time == time and row.state == "QUARANTINED"
                ],
                REPORTED_SECONDS,
            )
            assert reason.startswith(
                "partially committed (only seen): 1 of 2 outputs failed: checked: ValueError: the file is there"
            )
            assert commits(system, time) == {"seen": 1}
            # The second attempt's run was to make only the other one, so lineage does not show this one as failed.
            [planned] = [run for run in runs_of(instance, time) if run.tags["forebay/attempt"] == "2"]
            assert planned.asset_selection == {CHECKED}
            was_written = files_of(home, time)
            (home / "fail").unlink()
            shown = forebay(home, "batches", "show", "numbered", f"{time:%Y-%m-%dT%H:%M:%SZ}")
            assert "This batch is partially committed: seen committed; checked not." in shown.stdout, shown.stderr
            system.until("an observation says so", lambda: is_observed(instance, time), REPORTED_SECONDS)

            quarantined = [row.batch_time for row in system.batches() if row.state == "QUARANTINED"]
            system.until(
                "the replay has completed them", lambda: are_replayed(system, home, quarantined), REPORTED_SECONDS
            )
            done = commits(system, time)
            assert (done["seen"], done["checked"] > 2) == (1, True)
            assert files_of(home, time) == was_written
            calls = (home / "calls").read_text(encoding="utf-8").splitlines()
            assert [call for call in calls if call.startswith(time.isoformat())] == [f"{time.isoformat()} 1"]
            assert materialized(instance, SEEN, time) == [1]
            assert materialized(instance, CHECKED, time) == [done["checked"]]

            system.settle()
            system.check_every_number_came_out_once()
            outputs = [
                sorted(
                    ds.dataset(directory, partitioning="hive", format="parquet")
                    .to_table(["number"])["number"]
                    .to_pylist()
                )
                for directory in (home / "output", home / "output-checked")
            ]
            assert outputs[0] == outputs[1]
            instance.dispose()


def runs_of(instance: dg.DagsterInstance, time: datetime) -> Sequence[dg.DagsterRun]:
    """Return the runs of a batch's attempts."""
    return instance.get_runs(filters=dg.RunsFilter(tags={"forebay/batch_time": time.isoformat()}))


def are_replayed(system: RunningSystem, home: Path, times: Sequence[datetime]) -> bool:
    """Ask for a replay of quarantined batches unless they are completed: a busy webserver may not answer in time."""
    if all(row.state == "COMPLETED" for row in system.batches() if row.batch_time in times):
        return True
    between = ("--from", min(times).isoformat(), "--to", max(times).isoformat())
    asked = forebay(home, "batches", "replay", "numbered", "--failed-outputs-only", *between)
    # Or the replay that was asked for before has completed them meanwhile.
    expected = ("There was no answer", "is QUARANTINED and had records")
    assert asked.returncode == 0 or any(text in asked.stdout for text in expected), asked.stdout + asked.stderr
    return False


def forebay(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as an operator of this home does."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    return run_program(
        [sys.executable, "-m", "forebay.cli", *arguments],
        env=environment | {"FOREBAY_HOME": str(home), "COLUMNS": "300"},
        timeout=600,
    )


def is_observed(instance: dg.DagsterInstance, time: datetime) -> bool:
    """Tell whether the quarantined batch is reported as committed in part. Failed attempts are observed beside it."""
    records = instance.fetch_observations(dg.AssetKey(["numbered", "batches"]), limit=100).records
    found = [made.metadata for record in records if (made := record.asset_observation) is not None]
    return any(
        made["batch_time"].value == time.isoformat() and made["partially_committed"].value is True
        for made in found
        if "partially_committed" in made
    )
