"""Test the page on syslog: its declarations are valid, the messages of its logger arrive, and its statements run."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forebay import Stream
from forebay_contrib.syslog.declaration import Syslog
from receiver_runtime.process.receiver_registry import make_receiver
from tests.support.driver_log.log import make_log
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def table(heading: str) -> Sequence[Sequence[str]]:
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]


def declared(example: str) -> Stream:
    names: dict[str, object] = {}
    exec(example, names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    return stream


@pytest.mark.skipif(shutil.which("logger") is None, reason="util-linux's logger is not here")
def test_the_messages_of_its_logger_arrive(tmp_path: Path) -> None:
    first, traces, secured = map(declared, blocks("python"))
    assert isinstance(first.source, Syslog)
    assert isinstance(traces.source, Syslog)
    assert traces.source.multiline is not None
    assert isinstance(secured.source, Syslog)
    # Use the test's own port.
    source = first.source.model_copy(update={"listen": "127.0.0.1:0", "transports": ("tcp",)})
    [command] = blocks("console")
    with rig(tmp_path, make_receiver(source)) as made:
        eventually(lambda: made.reporter.reasons, "listening")
        port = made.reporter.reasons[-1].rpartition(":")[2]
        subprocess.run(shlex.split(command.removeprefix("$ ").replace("5514", port)), check=True, timeout=120)
        eventually(lambda: made.log.chain(1), "a block")
        item = made.log.chain(1)[0].handle
        [batch] = made.store.read_batches(made.rows.paths[item.segment_id], item.offset, item.length, item.crc32c)
    [row] = batch.to_pylist()
    assert (row["app_name"], row["message"], row["parse_error"]) == ("my-app", "hello from logger", None)


def test_its_statements_run(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        make_log(connection, stream="logs")
        for statement in blocks("sql"):
            assert connection.execute(sa.text(statement)).all() == []


def test_its_tables_name_every_column_and_every_field() -> None:
    columns = [name for row in table("Columns") for name in re.findall(r"`(\w+)`", row[0])]
    assert columns == [name for name, _ in Syslog.columns]
    fields = {row[0].strip("`"): row[1].strip("`") for row in table("Fields")}
    wanted = {name: field for name, field in Syslog.model_fields.items() if name != "kind"}
    assert list(fields) == list(wanted)
    for name, field in wanted.items():
        if fields[name] != "required":
            assert ast.literal_eval(fields[name]) == field.default
