"""Test the page on channels: its commands get the answers that it shows, and its statements run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sources" / "channels.md"


def blocks(language: str) -> Sequence[tuple[str, str]]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(name, text) for name, text in found if re.fullmatch(language, name)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")
def test_its_commands_get_the_answers_that_it_shows(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(blocks("python")[0][1], names)
    shown = [one for one in blocks("sh|sh refused|json answer") if "forebay channels" not in one[1]]
    assert len(shown) == 8
    with listening(tmp_path / "blocks", stream_name="readings") as made:
        for (_, command), (language, answer) in zip(shown[::2], shown[1::2], strict=True):
            assert language == "json answer"
            text = command.replace("127.0.0.1:8080", f"127.0.0.1:{made.port}")
            told = run_program(["bash", "-euo", "pipefail", "-c", text], cwd=tmp_path, check=True).stdout
            assert json.loads(told) == json.loads(answer)
        made.rig.stop()
        assert made.bodies() == [b'{"kwh": %s}' % kwh for kwh in (b"1.2", b"1.4", b"1.5", b"1.7")]


def test_its_statements_and_its_listing_run(
    connection: sa.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(connection, stream="readings")
    connection.execute(
        sa.text(
            "INSERT INTO forebay.channels (stream_id, sender, channel, position, receiver_id) "
            "VALUES (:stream, '', 'meter-7', 4, :receiver)"
        ),
        {"stream": log.stream_id, "receiver": log.receiver_ids[0]},
    )
    [(_, statement)] = blocks("sql")
    [row] = connection.execute(sa.text(statement)).all()
    assert (row.channel, row.sender, row.position, row.receiver) == ("meter-7", "", 4, 1)
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    [text] = [text for _, text in blocks("sh") if "forebay channels" in text]
    listed = [CliRunner().invoke(app, command.split()[1:], catch_exceptions=False) for command in text.splitlines()]
    assert "meter-7" in listed[0].stdout
    [found] = json.loads(listed[1].stdout)["channels"]
    assert (found["channel"], found["position"], found["sender"]) == ("meter-7", 4, "")
