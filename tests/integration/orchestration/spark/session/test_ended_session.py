"""Check that a session that has ended is recognised; the shared one starts again for the next test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import WarmSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_session_that_a_run_stopped_is_recognised(session: SparkSession) -> None:
    warm = WarmSession(Settings(), application="tests")
    assert warm.session is session
    assert warm.ended() is None
    session.stop()
    assert warm.ended() == "its Spark session was stopped"
