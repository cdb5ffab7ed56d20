"""Write the Dagster instance of `forebay up` at each start: its dagster.yaml and workspace.yaml.

Dagster's tables are in a separate schema of the driver log's database. This module never changes an instance that it
has not created.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import connect, create_engine, psycopg2_url
from tracker_store.connection.pooler import unpooled_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestration.declarations.settings import Settings

DAGSTER_SCHEMA = "dagster"
DATABASE_VARIABLE = "FOREBAY_DAGSTER_DATABASE_URL"
LOCATION = "forebay"
URL_FILE = "url"
TOKEN_FILE = "token"  # noqa: S105  a name
_TOKEN_BYTES = 24
# The longest path of a Unix socket, in bytes: 103 on macOS, 107 on Linux. Longer ones can't be bound.
_LONGEST_SOCKET_PATH = 103
# Days for which Dagster keeps ticks. A tick without a batch (skipped) comes every few seconds; the others are few.
SKIPPED_TICK_DAYS = 1
TICK_DAYS = 7


def dagster_database_url(database_url: str) -> str:
    """Return the URL of the driver log's database, with Dagster's own schema as the search path.

    Raises DriverLogError if it leads to a pooler: Dagster has no way to say what it is.
    """
    direct = unpooled_url(database_url, "Dagster's storage")
    url = psycopg2_url(direct).update_query_dict({"options": f"-csearch_path={DAGSTER_SCHEMA}"})
    return url.render_as_string(hide_password=False)


_TAKE_OVER_SCHEMA = """
DO $do$
DECLARE
    relation record;
BEGIN
    ALTER SCHEMA {schema} OWNER TO {owner};
    -- A sequence of a column follows its table.
    FOR relation IN
        SELECT c.oid::regclass AS name
        FROM pg_class c
        WHERE c.relnamespace = '{schema}'::regnamespace
            AND c.relkind IN ('r', 'p', 'v', 'm')
            AND c.relowner <> '{owner}'::regrole
    LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO {owner}', relation.name);
    END LOOP;
END
$do$"""


def ensure_dagster_schema(database_url: str, *, owner: str | None = None) -> None:
    """Create Dagster's schema if it is missing; give it, and the tables in it, to the role `owner`.

    Dagster creates and migrates its tables itself, so the role that it connects as must own them.
    """
    engine = create_engine(database_url, application_name="forebay up", pool_size=1)
    with connect(engine) as connection:
        connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {DAGSTER_SCHEMA}"))
        if owner is not None:
            statement = _TAKE_OVER_SCHEMA.format(schema=DAGSTER_SCHEMA, owner=owner)
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    engine.dispose()


@contextmanager
def code_server_socket(directory: Path) -> Iterator[Path]:
    """Return where the code server of the instance in `directory` listens; nobody else can reach its directory.

    Whoever reaches a code server can shut it down, and run code in it. The socket is below `directory`, or in a
    temporary directory where that path would be too long for a socket.
    """
    place = directory / "code_server"
    if len(os.fsencode(place / "socket")) <= _LONGEST_SOCKET_PATH:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)
        yield place / "socket"
        return
    with tempfile.TemporaryDirectory(prefix="forebay-") as temporary:
        yield Path(temporary) / "socket"


def webserver_token(settings: Settings, directory: Path) -> str | None:
    """Return the token that the instance's webserver demands; None if FOREBAY_DAGSTER_TOKEN is off.

    If the settings name none, it is the one in `directory`, which is made when it is missing: so links and cookies work
    after a restart.
    """
    if settings.dagster_token is not None:
        return settings.webserver_token
    token = kept_token(directory)
    if token is None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        # Made for the owner only, whatever the umask; whole, or not there.
        descriptor, new = tempfile.mkstemp(dir=directory, prefix=f"{TOKEN_FILE}.")
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token)
        Path(new).replace(directory / TOKEN_FILE)
    return token


def kept_token(directory: Path) -> str | None:
    """Return the token that `webserver_token` made in `directory`, or None."""
    try:
        return (directory / TOKEN_FILE).read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def write_dagster_home(directory: Path, *, code_server: Path, own_definitions: bool = False) -> Path:
    """Write both files into `directory` (DAGSTER_HOME) and return the workspace's path.

    Args:
        directory: is made if it is missing.
        code_server: its socket.
        own_definitions: whether the project has assets of its own, which may have conditions and freshness policies.
    """
    directory.mkdir(parents=True, exist_ok=True)
    days = {"skipped": SKIPPED_TICK_DAYS, "success": TICK_DAYS, "failure": TICK_DAYS, "started": TICK_DAYS}
    instance = {
        # The URL holds a password: write the variable's name, and not its value.
        "storage": {
            "custom": {
                "module": "orchestration.dagster_instance.dagster_storage",
                "class": "PooledPostgresStorage",
                "config": {"postgres_url": {"env": DATABASE_VARIABLE}},
            }
        },
        # Launches runs at once: the batch sensor controls the order and concurrency of batches.
        "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
        # Batch runs go to the agent's batch drivers, every other run to a child of its code server.
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
        # No asset of Forebay is materialized by a condition or has a freshness policy: without these two, Dagster's
        # daemon looks for such assets every few seconds, and finds none.
        "auto_materialize": {"enabled": own_definitions, "use_sensors": own_definitions},
        "freshness": {"enabled": own_definitions},
        "telemetry": {"enabled": False},
        # An operator who opens the UI wants the batches, not a dialogue.
        "nux": {"enabled": False},
    }
    workspace = {"load_from": [{"grpc_server": {"socket": str(code_server), "location_name": LOCATION}}]}
    # JSON is YAML.
    (directory / "dagster.yaml").write_text(json.dumps(instance, indent=2), encoding="utf-8")
    path = directory / "workspace.yaml"
    path.write_text(json.dumps(workspace, indent=2), encoding="utf-8")
    return path
