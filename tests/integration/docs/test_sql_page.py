"""Run each statement of docs/how-to/sql.md, as an operator, on a driver log with known content."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.support.driver_log.eventful_log import COMPLETED, QUARANTINED, RUNNING, make_eventful_log
from tests.support.driver_log.log import wait_until_told
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "sql.md").read_text(encoding="utf-8")
_QUESTION = re.compile(r"^### (?P<question>.+?)\n(?P<answer>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_STATEMENT = re.compile(r"^```sql\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
REFUSED = "connection refused by 127.0.0.1:9999"
CAST = "[CAST_INVALID_INPUT] 'x' is no number"

#: The columns of each answer that are known: every row of the answer, in order.
ANSWERS: dict[str, list[dict[str, object]]] = {
    "Which receivers do not receive, and why?": [
        {"stream": "lines", "ordinal": 2, "state": "FAILED", "reason": REFUSED, "last_error": REFUSED}
    ],
    "Which pipelines complete nothing while blocks wait?": [
        {"pipeline": "words", "state": "RUNNING", "waiting_records": 10, "last_completed_time": COMPLETED}
    ],
    "Which batches failed for good, and why?": [
        {"pipeline": "words", "batch_time": QUARANTINED, "reason": CAST, "run_id": "run-2"}
    ],
    "How many batches are in each state?": [
        {"state": "COMPLETED", "batches": 1, "newest": COMPLETED},
        {"state": "QUARANTINED", "batches": 1, "newest": QUARANTINED},
        {"state": "RUNNING", "batches": 1, "newest": RUNNING},
    ],
    "Which errors did receivers report?": [
        {"stream": "lines", "ordinal": 2, "kind": "receiver_failed", "message": REFUSED},
        {"stream": "lines", "ordinal": 2, "kind": "receiver_error", "message": REFUSED},
    ],
    "Which receivers got records that could not be processed?": [{"stream": "lines", "ordinal": 1, "dead_letters": 1}],
    "How much is stored without compression?": [{"stream": "lines", "percent": None, "not_compressed": "0 bytes"}],
    "How far behind is each pipeline?": [{"pipeline": "words", "stream": "lines", "waiting_records": 10}],
    "How long do batches take, compared with their interval?": [
        {
            "batch_interval": timedelta(seconds=10),
            "records": 10,
            "median_processing": timedelta(seconds=2),
            "p95_scheduling_delay": timedelta(seconds=1),
        }
    ],
    "How many records did each stream receive, minute by minute?": [{"stream": "lines", "records": 50}],
    "Which streaming query holds blocks back?": [{"reader": "dashboard", "stream": "lines", "waiting_records": 50}],
    "On which host does each receiver run?": [
        {"ordinal": 1, "state": "ACTIVE", "agent": "h1", "host": "h1", "newest_sequence": 5},
        {"ordinal": 2, "state": "FAILED", "agent": None, "host": None, "newest_sequence": None},
    ],
    "Which tracker leads, and since when?": [{"term": 1, "leader": "h1:100"}],
    "Up to which position has each source been read, what was lost, and what has it that is not read?": [
        {"source": "orders", "partition": "0", "position": 155, "lost_records": 5, "source_position": 200, "unread": 45}
    ],
    "What uses the disk?": [
        {"ordinal": 1, "blocks": "500 bytes", "kept_for_quarantined": "200 bytes"},
        {"ordinal": 2, "blocks": "0 bytes", "kept_for_quarantined": "0 bytes"},
    ],
    "Which are the biggest blocks?": [
        {"sequence": 3, "records": 20, "size": "200 bytes"},
        {"records": 10},
        {"records": 10},
        {"records": 10},
    ],
    "What do quarantined batches keep?": [{"pipeline": "words", "batch_time": QUARANTINED, "blocks": 1, "records": 20}],
    "Which attempts did it have, and which Dagster runs?": [
        {"attempt": 1, "attempt_state": "FAILED", "run_id": "run-2", "host": "h1", "error": CAST}
    ],
    "Which source positions did it read?": [
        {"source": "orders", "partition": "0", "from_offset": 110, "last_offset": 134, "lost": 5}
    ],
    "Which batch read a position?": [{"batch_time": COMPLETED, "from_offset": 100, "last_offset": 109}],
    "Which blocks did it read, and where are they?": [
        {"stream": "lines", "ordinal": 1, "sequence": 3, "records": 20, "path": "receiver-1/1"}
    ],
    "Which batch has a block?": [{"batch_time": QUARANTINED, "records": 20}],
    "Which results does it have, and where?": [
        {"output": "counts", "state": "COMMITTED", "rows": 4, "location": "data/counts/attempt=1"}
    ],
    "Which version of its output's state did it make?": [
        {"output": "counts", "state_attempt": 1, "state_ordinal": 1, "state_changed": 4, "state_replay": None}
    ],
    "What is in force of each state, and how much is stored?": [
        {"pipeline": "words", "output": "counts", "batch_time": COMPLETED, "keys": 4, "versions": 1, "replay": None}
    ],
    "How far is event time, and which source holds the watermark back?": [
        {
            "output": "counts",
            "behind": timedelta(seconds=70),
            "late_total": 2,
            "slowest_source": "1",
            "behind_the_others": timedelta(seconds=9),
        }
    ],
    "What happened around that time?": [
        {"event": "epoch claimed", "whose": "lines/1"},
        {"event": "block added", "first_sequence": 2},
        {"event": "batch allocated", "whose": "words", "batch_time": COMPLETED},
        {"event": "block added", "first_sequence": 3},
        {"event": "block added", "first_sequence": 4},
        {"event": "block added", "first_sequence": 5},
    ],
    "Which process and pid owns a receiver?": [{"process": "receiver-1", "process_host": "h1", "pid": 101}],
}


def statements() -> Iterator[tuple[str, str]]:
    """Yield each question and its statement."""
    for question in _QUESTION.finditer(PAGE):
        for statement in _STATEMENT.finditer(question["answer"]):
            yield question["question"], statement["text"]


def rows(connection: sa.Connection, statement: str) -> Sequence[dict[str, Any]]:
    """Run a statement as an operator, in UTC."""
    connection.exec_driver_sql("SET ROLE forebay_operator")
    try:
        return [dict(row) for row in connection.exec_driver_sql(statement.replace("%", "%%")).mappings()]
    finally:
        connection.exec_driver_sql("RESET ROLE")


@pytest.fixture(scope="module")
def questions() -> dict[str, str]:
    found = list(statements())
    assert len(found) == len(dict(found)), "two statements under one question"
    return dict(found)


def test_each_statement_answers_its_question(engine: sa.Engine, questions: dict[str, str]) -> None:
    assert questions.keys() == ANSWERS.keys()
    wrong: list[str] = []
    with connect(engine) as connection:
        make_eventful_log(connection)
        wait_until_told(connection)
        for question, statement in questions.items():
            found = rows(connection, statement)
            expected = ANSWERS[question]
            known = [{name: row[name] for name in want} for row, want in zip(found, expected, strict=False)]
            if known != expected or len(found) != len(expected):
                wrong.append(f"{question}: {found}")
    assert wrong == []


def test_each_statement_reads_views_alone(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        views = set(connection.scalars(sa.text("SELECT viewname FROM pg_views WHERE schemaname = 'forebay'")).all())
    for question, statement in statements():
        read = set(re.findall(r"\bforebay\.(\w+)", statement))
        assert read, question
        assert read <= views | {"driver_log_between"}, question


def test_the_page_answers_at_least_twenty_questions() -> None:
    assert len(list(statements())) >= 20


def test_the_times_of_the_page_are_those_of_the_log() -> None:
    times = re.findall(r"batch_time = '([^']+)'", PAGE)
    assert {datetime.fromisoformat(time) for time in times} <= {COMPLETED, QUARANTINED, RUNNING}
