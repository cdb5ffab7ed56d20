"""Test a Dagster instance that is not Forebay's: a project of its own, storage on Postgres, Dagster's own daemon.

Its dagster.yaml is that of docs/how-to/dagster.md, which is that of Dagster's own documentation.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster_postgres import PostgresRunStorage

from forebay.testing.cutting_proxy import CuttingProxy, through
from orchestration.declarations.apply import apply
from orchestration.declarations.modules import load_pipelines
from tests.support.commands.run_program import run_program
from tests.support.polling import eventually
from tests.support.spark.batch_rig import System
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.postgres import TestServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "dagster.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PROJECT = """\
import dagster as dg
import session


@dg.asset(required_resource_keys={"spark"})
def table() -> None: ...


defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[table],
        resources={"spark": dg.ResourceDefinition.hardcoded_resource("theirs"), "io_manager": dg.FilesystemIOManager()},
        executor=dg.multiprocess_executor,
    ),
    session.defs,
)
"""
WORKSPACE = "load_from: [{python_file: {relative_path: project.py, location_name: theirs}}]\n"


@pytest.fixture
def project(
    postgres_server: TestServer, database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Yield the project's directory, with the environment of its processes, and a database of its own for Dagster."""
    directory = home / "project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    for name in [name for name in os.environ if name.startswith(("DAGSTER_", "FOREBAY_"))]:
        monkeypatch.delenv(name)
    with postgres_server.database(migrated=False) as dagster_url, ExitStack() as stack:
        # A server of the user's is reached by TCP.
        proxy = stack.enter_context(closing(CuttingProxy(dagster_url)))
        url = sa.make_url(through(dagster_url, proxy.port))
        own = {**FILES, "project.py": PROJECT, "workspace.yaml": WORKSPACE}
        own["dagster.yaml"] = own["dagster.yaml"].replace("5432", str(url.port)) + "telemetry: {enabled: false}\n"
        for name in ("pipelines.py", "session.py", "project.py", "workspace.yaml", "dagster.yaml"):
            (directory / name).write_text(own[name], encoding="utf-8")
        environment = {
            "DAGSTER_HOME": str(directory),
            "DAGSTER_PG_USERNAME": str(url.username),
            "DAGSTER_PG_PASSWORD": str(url.password),
            "DAGSTER_PG_HOST": str(url.host),
            "DAGSTER_PG_DB": str(url.database),
            "FOREBAY_DATABASE_URL": database_url,
            "FOREBAY_HOME": str(home / "forebay"),
            "FOREBAY_SPARK_MASTER": "local[2]",
            "PYTHONPATH": str(ROOT),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield directory


@contextmanager
def daemon(project: Path) -> Iterator[None]:
    """Run Dagster's daemon, which starts a code server; end both."""
    log = project / "daemon.log"
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", "-w", "workspace.yaml"],
            cwd=project,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    except BaseException:
        sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
        raise
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait(60)


def test_a_batch_runs_in_an_instance_on_postgres_and_an_asset_below_it_uses_its_resource(
    project: Path, engine: sa.Engine, database_url: str
) -> None:
    [pipeline] = load_pipelines("pipelines.py")
    with connect(engine) as connection, dg.DagsterInstance.from_config(str(project)) as instance:
        assert isinstance(instance.run_storage, PostgresRunStorage)
        apply(connection, [pipeline])
        system = System(connection, database_url, Path(os.environ["FOREBAY_HOME"]), cast("Any", None))
        system.receive(["to be or not", "to be"])

        def states() -> list[str]:
            found = sa.text("SELECT state FROM forebay.batches WHERE records > 0")
            return list(connection.execute(found).scalars())

        def runs() -> list[str]:
            return [str(run.status.value) for run in instance.get_runs(dg.RunsFilter(job_name="word_count_batch"))]

        with daemon(project):
            eventually(lambda: states() == ["COMPLETED"], "the batch has completed", seconds=400, step=0.2)
            eventually(lambda: runs() == ["SUCCESS"], "Dagster has recorded its run", seconds=60, step=0.2)
        done = run_program(
            [sys.executable, "-m", "dagster", "asset", "materialize", "--select", "word_total", "-f", "project.py"],
            cwd=project,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        event = instance.get_latest_materialization_event(dg.AssetKey("word_total"))
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["words"].value == 6
