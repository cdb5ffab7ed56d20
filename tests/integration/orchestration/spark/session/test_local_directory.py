"""Test sessions that follow each other in one JVM with a home each, which is removed after its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.settings import Settings
from orchestration.spark.session.local_directory import SOCKET_DIRECTORY
from orchestration.spark.session.session import spark_session
from tests.support.machine.state_directory import state_directory

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("no_shared_session")
def test_results_come_after_the_first_home_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark then makes no directory in the home by itself.
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    sockets = set()
    for _ in range(2):
        with state_directory() as home:
            session = spark_session(Settings(home=home, spark_master="local[1]"), application="tests")
            try:
                assert [row.id for row in session.range(1).collect()] == [0]
                sockets.add(session.sparkContext.getConf().get(SOCKET_DIRECTORY))
            finally:
                session.stop()
    # The JVM asks for its first one whatever a session names.
    assert len(sockets) == 1
