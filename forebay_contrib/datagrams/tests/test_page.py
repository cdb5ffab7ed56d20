"""Test the page: what its sender sends arrives, and its statement runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.sources.source_registry import parse_source
from tests.support.driver_log.log import make_log
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually, reaches
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> Sequence[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_what_its_sender_sends_arrives(tmp_path: Path) -> None:
    [sender] = blocks("python sender")
    with rig(tmp_path, make_receiver(parse_source({"kind": "datagrams", "listen": "127.0.0.1:0"}))) as made:
        eventually(lambda: made.reporter.reasons, "listening")
        exec(sender.replace("9125", made.reporter.reasons[-1].rpartition(":")[2]), {})
        eventually(reaches(lambda: sum(block.records for block in made.log.chain(1)), 2))


def test_its_statement_runs(engine: sa.Engine) -> None:
    [statement] = blocks("sql")
    with connect(engine) as connection:
        make_log(connection, stream="lines")
        assert connection.execute(sa.text(statement)).all() == []
