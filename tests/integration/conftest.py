"""Driver logs and block stores that batches run on, and a newer version of the schema."""

from __future__ import annotations

import inspect
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from tests.support.spark.batch_rig import System


@pytest.fixture
def system(connection: sa.Connection, database_url: str, tmp_path: Path, session: SparkSession) -> System:
    """Return a driver log and a block store, and a pipeline to run on them in the shared session."""
    from tests.support.spark.batch_rig import System  # noqa: PLC0415  as above

    return System(connection, database_url, tmp_path, session)


@pytest.fixture
def settings_in_environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the driver log and the home of `system` in the environment, for code that reads its settings there."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setenv("FOREBAY_SPARK_MASTER", "local[2]")


@pytest.fixture
def version_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Let this installation have one more migration; return its revision."""
    from tests.support.driver_log import next_migration  # noqa: PLC0415  most tests load no Alembic
    from tracker_store.install import migrate  # noqa: PLC0415

    migrations = tmp_path / "migrations"
    shutil.copytree(migrate._scripts(), migrations, ignore=shutil.ignore_patterns("__pycache__"))
    before = migrate.newest_revision()
    after = inspect.getsource(next_migration).replace("REVISION_BEFORE", before)
    (migrations / "versions" / "next.py").write_text(after, encoding="utf-8")
    monkeypatch.setattr(migrate, "_scripts", lambda: migrations)
    assert migrate.newest_revision() != before
    return migrate.newest_revision()
