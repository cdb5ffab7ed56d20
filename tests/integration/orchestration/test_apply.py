"""`apply`: what it shows, what it writes, what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.apply import apply, difference, is_applied
from tracker_store.engine import connect
from tracker_store.errors import StrandingChangeError
from tracker_store.pipelines import get_pipeline, list_streams
from tracker_store.receivers import placements
from tracker_store.schema import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    with connect(engine) as made:
        yield made


def declare(*, receivers: int = 1, interval: str = "10s", port: int = 9999, stream: str = "lines") -> Pipeline:
    lines = Stream(stream, SocketText(host="127.0.0.1", port=port), receivers=receivers)
    pipeline = Pipeline("words", interval=interval)
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


def test_what_is_new_is_written_once(connection: sa.Connection) -> None:
    changes = apply(connection, [declare(receivers=2)])
    assert [(change.kind, change.name, change.action) for change in changes] == [
        ("stream", "lines", "add"),
        ("pipeline", "words", "add"),
    ]
    assert len(placements(connection)) == 2
    assert apply(connection, [declare(receivers=2)]) == []
    assert (list_streams(connection)[0].version, get_pipeline(connection, "words").version) == (1, 1)


def test_a_change_is_shown_key_by_key_and_raises_the_version(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    [change] = difference(connection, [declare(interval="5s")])
    assert change.details == (("interval_ms", 10_000, 5_000),)
    assert not is_applied(connection, declare(interval="5s"))
    apply(connection, [declare(interval="5s")])
    assert get_pipeline(connection, "words").version == 2
    assert is_applied(connection, declare(interval="5s"))


def test_showing_the_difference_writes_nothing(connection: sa.Connection) -> None:
    assert len(difference(connection, [declare()])) == 2
    assert list_streams(connection) == []


def test_a_changed_stream_takes_its_receivers_to_a_new_assignment(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    [before] = placements(connection)
    apply(connection, [declare(port=9998)])
    [after] = placements(connection)
    assert (after.state, after.assignment) == (ReceiverState.INACTIVE, before.assignment + 1)


def test_a_change_that_would_strand_blocks_is_refused_before_anything_is_written(
    connection: sa.Connection,
) -> None:
    apply(connection, [declare(receivers=2)])
    with pytest.raises(StrandingChangeError, match=r"2 receivers.*receivers=1"):
        apply(connection, [declare(receivers=1, interval="5s")])
    with pytest.raises(StrandingChangeError, match="no longer reads lines"):
        apply(connection, [declare(stream="others")])
    assert is_applied(connection, declare(receivers=2))


def test_a_new_pipeline_begins_with_the_next_boundary(connection: sa.Connection) -> None:
    apply(connection, [declare(interval="10s")])
    assert get_pipeline(connection, "words").last_batch_time.timestamp() % 10 == 0
