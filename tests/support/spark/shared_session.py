"""One Spark session for all tests of a process that need an ordinary one: a start costs seconds, a reset milliseconds.

A test that needs a session with settings of its own, or none, uses the fixture `no_shared_session`: it ends this one,
and the next test that needs it starts it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import how_ended, spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class SharedSession:
    """The session of this process, on two threads of this machine."""

    def __init__(self, home: Path) -> None:
        """Keep the FOREBAY_HOME of the session; nothing is started here."""
        self._home = home
        self._session: SparkSession | None = None
        self._configuration: dict[str, str] = {}
        self._shown = ""

    def get(self) -> SparkSession:
        """Return the session, started if it is not running."""
        # A test's own code may stop the session of its process.
        if self._session is None or how_ended(self._session) is not None:
            settings = Settings(home=self._home, spark_master="local[2]")
            self._session = spark_session(settings, application="tests")
            self._configuration = dict(self._session.conf.getAll)
            java: Any = self._session._jsparkSession
            self._shown = str(java.conf().getAll().toString())
        return self._session

    def reset(self) -> None:
        """Undo what a test has changed: SQL configuration, temporary views, cached tables; stop its queries."""
        session = self._session
        if session is None or how_ended(session) is not None:
            return
        for query in session.streams.active:
            query.stop()
        # PySpark's own listTables and getAll cost 25 ms of processor time each, and a reset follows each test.
        java: Any = session._jsparkSession
        java.sessionState().catalog().clearTempTables()
        session.catalog.clearCache()
        if java.conf().getAll().toString() == self._shown:
            return
        found = dict(session.conf.getAll)
        for key in found.keys() - self._configuration.keys():
            session.conf.unset(key)
        for key, value in self._configuration.items():
            if found.get(key) != value:
                session.conf.set(key, value)

    def stop(self) -> None:
        """End the session, if it runs. The JVM stays, and the next session of this process uses it."""
        if self._session is not None:
            self._session.stop()
            self._session = None
