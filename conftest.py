"""Fixtures for all tests, those of `forebay_contrib` among them.

Unused ones cost nothing: the server is started with the first database, Spark with the first session.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.machine.state_directory import state_directory
from tests.support.machine.written_modules import forget_written_modules
from tests.support.postgres.server_directory import server_directory
from tests.support.searches import default_examples, is_whole
from tests.support.spark.class_archive import use_class_archive
from tests.support.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from forebay.testing.postgres import TestServer
    from tests.integration.orchestration.target_database import Target
    from tests.support.driver_log.log import Log
    from tests.support.spark.shared_session import SharedSession


# So that a failure shows the values that differ.
pytest.register_assert_rewrite("forebay.testing.sinks", "tests.support.sinks")
# An example may take long on a busy machine, and so may drawing it. One state of the code has one result: only searches
# draw other examples each time.
settings.register_profile(
    "forebay",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not is_whole(),
    max_examples=default_examples(),
)
settings.load_profile("forebay")


def pytest_configure(config: pytest.Config) -> None:
    # Where rich is installed, structlog draws the values of all frames, which takes a third of a second for each error.
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])
    use_class_archive()
    config.pluginmanager.register(Watchdog())


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of each later garbage collection: it stays until the process ends."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def process_settings() -> Iterator[None]:
    """Undo what a test has set for all of its process: the log, the umask, and where and what it imports."""
    log, umask = structlog.get_config(), os.umask(0o022)
    os.umask(umask)
    modules, path = frozenset(sys.modules), list(sys.path)
    yield
    structlog.configure(**log)
    os.umask(umask)
    sys.path[:] = path
    forget_written_modules(modules)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[TestServer]:
    """Start the embedded Postgres of this run, without a database of ours."""
    # Unit tests load no database driver.
    from forebay.testing.postgres import TestServer  # noqa: PLC0415
    from tests.support.postgres.server import embedded_server  # noqa: PLC0415

    with server_directory() as directory:
        if "FOREBAY_TEST_POSTGRES_BINARIES" in os.environ:
            # Programs before Postgres 16 change their directory and back: their account must reach it by its path.
            directory.chmod(0o711)
        server = TestServer(embedded_server(directory / "postgres"))
        with server.process:
            yield server


@pytest.fixture
def database_url(postgres_server: TestServer) -> Iterator[str]:
    """Make a new database with the newest migration; return its URL."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """Make an engine on a new database, as the product makes it."""
    import tracker_store.connection.engine  # noqa: PLC0415 - as above

    made = tracker_store.connection.engine.create_engine(database_url, application_name="tests", pool_size=10)
    yield made
    made.dispose()


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    from tracker_store.connection.engine import connect  # noqa: PLC0415 - as above

    with connect(engine) as made:
        yield made


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Make a driver log with one pipeline, one stream and one receiver."""
    from tests.support.driver_log.log import make_log  # noqa: PLC0415 - as above

    return make_log(connection)


@pytest.fixture
def home() -> Iterator[Path]:
    """Make an empty FOREBAY_HOME."""
    with state_directory() as directory:
        yield directory


@pytest.fixture(scope="session")
def shared_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSession]:
    """Return the holder of this process's session."""
    from tests.support.spark.shared_session import SharedSession  # noqa: PLC0415  most tests load no Spark

    made = SharedSession(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()


@pytest.fixture
def session(shared_session: SharedSession) -> Iterator[SparkSession]:
    """Return the shared session, without what another test has changed in it."""
    yield shared_session.get()
    shared_session.reset()


@pytest.fixture(scope="module")
def no_shared_session(shared_session: SharedSession) -> None:
    """End the shared session, for a module whose sessions have settings of their own."""
    shared_session.stop()


@pytest.fixture
def target(postgres_server: TestServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """Return a user's database that sinks write to, named by TARGET_URL."""
    from tests.integration.orchestration.target_database import Target  # noqa: PLC0415  as above

    with postgres_server.database(migrated=False) as url:
        made = Target(url)
        monkeypatch.setenv("TARGET_URL", made.url)
        yield made
