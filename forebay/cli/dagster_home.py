"""The Dagster instance of `forebay up`: its dagster.yaml and workspace.yaml, which are written at each start.

Dagster's tables are in a separate schema of the driver log's database. This module never changes an instance that it
has not created.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import connect, create_engine, psycopg2_url

if TYPE_CHECKING:
    from pathlib import Path

DAGSTER_SCHEMA = "dagster"
DATABASE_VARIABLE = "FOREBAY_DAGSTER_DATABASE_URL"
LOCATION = "forebay"
URL_FILE = "url"
# Days for which Dagster keeps ticks. A tick without a batch (skipped) comes every few seconds; the others are few.
SKIPPED_TICK_DAYS = 1
TICK_DAYS = 7


def dagster_database_url(database_url: str) -> str:
    """Return the URL of the driver log's database, with Dagster's own schema as the search path."""
    url = psycopg2_url(database_url).update_query_dict({"options": f"-csearch_path={DAGSTER_SCHEMA}"})
    return url.render_as_string(hide_password=False)


def ensure_dagster_schema(database_url: str) -> None:
    """Create Dagster's schema if it is missing."""
    engine = create_engine(database_url, application_name="forebay up", pool_size=1)
    with connect(engine) as connection:
        connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {DAGSTER_SCHEMA}"))
    engine.dispose()


def write_dagster_home(directory: Path, *, code_server_port: int) -> Path:
    """Write both files into `directory` (DAGSTER_HOME); returns the workspace's path."""
    directory.mkdir(parents=True, exist_ok=True)
    days = {"skipped": SKIPPED_TICK_DAYS, "success": TICK_DAYS, "failure": TICK_DAYS, "started": TICK_DAYS}
    instance = {
        # The URL holds a password: write the variable's name, and not its value.
        "storage": {
            "custom": {
                "module": "orchestration.dagster_storage",
                "class": "PooledPostgresStorage",
                "config": {"postgres_url": {"env": DATABASE_VARIABLE}},
            }
        },
        # Launches runs at once: the batch sensor controls the order and concurrency of batches.
        "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
        # Batch runs go to the agent's batch drivers, every other run to Dagster's default launcher.
        "run_launcher": {"module": "orchestration.run_launcher.launcher", "class": "BatchRunLauncher"},
        # At Dagster's default place, but written without the four processes that Dagster starts for each run.
        "compute_logs": {
            "module": "orchestration.run_launcher.compute_logs",
            "class": "FileComputeLogManager",
            "config": {"base_dir": str(directory / "storage")},
        },
        # A batch sensor blocks its thread until its boundary (batch_sensor.py): no sensor may wait for a free thread.
        "sensors": {"use_threads": True, "num_workers": 32},
        "run_monitoring": {"enabled": True, "start_timeout_seconds": 300, "poll_interval_seconds": 5},
        "retention": {
            "sensor": {"purge_after_days": days},
            "schedule": {"purge_after_days": days},
        },
        "telemetry": {"enabled": False},
        # An operator who opens the UI wants the batches, not a dialogue.
        "nux": {"enabled": False},
    }
    workspace = {
        "load_from": [{"grpc_server": {"host": "127.0.0.1", "port": code_server_port, "location_name": LOCATION}}]
    }
    # JSON is YAML.
    (directory / "dagster.yaml").write_text(json.dumps(instance, indent=2), encoding="utf-8")
    path = directory / "workspace.yaml"
    path.write_text(json.dumps(workspace, indent=2), encoding="utf-8")
    return path
