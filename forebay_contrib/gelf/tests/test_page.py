"""Test the page: its commands and its sender store rows, and its statements run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forebay import Stream
from forebay_contrib.gelf.declaration import Gelf
from receiver_runtime.process.receiver_registry import make_receiver
from tests.support.driver_log.log import make_log
from tests.unit.receiver_runtime.receivers.http.protocol_page import rows_of_page
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> Sequence[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
def test_its_commands_store_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_TOKEN", "abc")
    rows = rows_of_page(PAGE, tmp_path)
    assert [json.loads(row["body"])["short_message"] for row in rows] == ["tea is out", "line 1", "line 2"]


def test_its_sender_stores_a_row(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(blocks("python")[1], names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    assert isinstance(stream.source, Gelf)
    # Use the test's own port.
    source = stream.source.model_copy(update={"listen": "127.0.0.1:0", "transports": ("udp",)})
    [sender] = blocks("python sender")
    with rig(tmp_path, make_receiver(source)) as made:
        eventually(lambda: made.reporter.reasons, "listening")
        sent: dict[str, object] = {}
        exec(sender.replace("12201", made.reporter.reasons[-1].rpartition(":")[2]), sent)
        eventually(lambda: made.log.chain(1), "a block")
        item = made.log.chain(1)[0].handle
        [batch] = made.store.read_batches(made.rows.paths[item.segment_id], item.offset, item.length, item.crc32c)
    logger = sent["logger"]
    for handler in list(logger.handlers):  # type: ignore[attr-defined]
        logger.removeHandler(handler)  # type: ignore[attr-defined]
        handler.close()
    [row] = batch.to_pylist()
    assert json.loads(row["value"])["_shop"] == "tea"
    columns = re.findall(r"^\| `(\w+)` \| \w+[^|]* \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert columns[: len(row)] == list(row)


def test_its_statements_run(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        make_log(connection, stream="messages")
        for statement in blocks("sql"):
            assert connection.execute(sa.text(statement)).all() == []
