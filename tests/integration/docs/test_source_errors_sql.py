"""Check that the statements of the how-tos on Redis, NATS and ZeroMQ run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.driver_log.log import make_log
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    import sqlalchemy as sa

CONTRIB = Path(__file__).parents[3] / "forebay_contrib"


@pytest.mark.parametrize(("kind", "stream"), [("redis", "orders"), ("nats", "orders"), ("zeromq", "prices")])
def test_its_statement_shows_the_streams_errors(engine: sa.Engine, kind: str, stream: str) -> None:
    text = (CONTRIB / kind / "README.md").read_text(encoding="utf-8")
    [statement] = re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with connect(engine) as connection:
        log = make_log(connection, stream=stream)
        report_event(
            connection,
            receiver_id=log.receiver_ids[0],
            epoch=1,
            kind=ReceiverEventKind.ERROR,
            message="12 entries",
            detail="d",
        )
        [row] = connection.exec_driver_sql(statement).all()
        assert tuple(row)[-2:] == ("12 entries", "d")
