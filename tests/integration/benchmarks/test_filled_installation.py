"""Check that the log that the load model is measured on keeps every promise, and that clean-up finds nothing in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from benchmarks.filled_installation import fill
from benchmarks.scale_model import Shape
from orchestration.tracker.cleaner import Cleaner
from tracker_store.checks import check_data

if TYPE_CHECKING:
    from benchmarks.filled_installation import FilledInstallation

SHAPE = Shape(receivers=40, streams=4, pipelines=2, days=2, interval=7_200, receivers_per_process=16)


@pytest.fixture
def filled(engine: sa.Engine) -> FilledInstallation:
    # Of the server, only the engine is used.
    return fill(Mock(engine=engine), SHAPE, lambda _step, _part: None)


def test_every_promise_holds(filled: FilledInstallation) -> None:
    with filled.server.engine.connect() as connection:
        assert [result for result in check_data(connection) if not result.passed] == []


def test_it_has_the_rows_of_its_shape(filled: FilledInstallation) -> None:
    with filled.server.engine.connect() as connection:
        counts = {
            table: connection.execute(sa.text(f"SELECT count(*) FROM forebay.{table}")).scalar_one()
            for table in ("receivers", "streams", "pipelines", "batches", "batch_allocations")
        }
        last = connection.execute(sa.text("SELECT max(batch_time) FROM forebay.batches")).scalar_one()
    assert counts == {
        "receivers": 40,
        "streams": 4,
        "pipelines": 3,
        "batches": 2 * 24,
        "batch_allocations": SHAPE.allocations,
    }
    assert timedelta(0) < datetime.now(UTC) - last < timedelta(minutes=10)


def test_clean_up_has_nothing_to_take(filled: FilledInstallation) -> None:
    cleaner = Cleaner(Mock(side_effect=AssertionError("no file is deleted")), history=timedelta(days=60))
    with filled.server.engine.connect() as connection:
        report = cleaner.cleanup_old_batches(connection, datetime.now(UTC))
    assert (report.blocks, report.segments, report.history) == (0, 0, 0)


def test_a_further_block_of_each_receiver_continues_its_chain(filled: FilledInstallation) -> None:
    count = sa.text("SELECT count(*) FROM forebay.blocks")
    with filled.server.engine.connect() as connection:
        before = connection.execute(count).scalar_one()
        filled.add_a_block_each(connection, filled.wide_pipeline)
        assert connection.execute(count).scalar_one() == before + SHAPE.receivers
        assert [result for result in check_data(connection) if not result.passed] == []
