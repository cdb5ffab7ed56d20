"""Test the page on HTTP: its declarations are valid, its commands get the answers it shows, its tables are complete."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forebay import Stream
from receiver_runtime.receivers.http.declaration import Http
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sources" / "http.md"

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the blocks of the matching languages, in order."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(name, text) for name, text in found if re.fullmatch(language, name)]


def table(heading: str) -> Sequence[Sequence[str]]:
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]


def declared(example: str, folder: Path) -> Stream:
    names: dict[str, object] = {"__file__": str(folder / "pipelines.py")}
    exec(example, names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    return stream


def run(command: str, folder: Path, **environment: str) -> list[dict[str, object]]:
    """Run a command and return its answers."""
    made = run_program(
        ["bash", "-euo", "pipefail", "-c", command], env={**os.environ, **environment}, cwd=folder, check=True
    )
    return [json.loads(text) for text in re.findall(r"\{.*?\}", made.stdout)]


def test_its_commands_get_the_answers_that_it_shows(tmp_path: Path) -> None:
    stream = declared(blocks("python")[0][1], tmp_path)
    assert isinstance(stream.source, Http)
    asked = 0
    answers: list[dict[str, object]] = []
    with listening(tmp_path / "blocks") as made:
        for language, text in blocks("sh|json answer"):
            if language == "sh" and "127.0.0.1:8080" in text:
                command = text.replace("127.0.0.1:8080", f"127.0.0.1:{made.port}")
                answers = run(command, tmp_path)
                assert len(answers) == command.count("curl")
                asked += len(answers)
            elif language == "json answer":
                expected = json.loads(text)
                if expected["duplicates"]:
                    # The same request again.
                    answers = run(command, tmp_path)
                assert answers == [expected]
        assert asked >= 6
        made.rig.stop()
        assert b'{"item": "tea", "pieces": 2}' in made.bodies()


def test_its_certificate_and_token_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYMENTS_TOKEN", "a-token")
    [make, send] = [text for _, text in blocks("sh") if "receiver.pem" in text]
    run(make, tmp_path)
    source = declared(blocks("python")[1][1], tmp_path).source
    assert isinstance(source, Http)
    with listening(tmp_path / "blocks", stream_name="payments", tls=source.tls, tokens=source.tokens) as made:
        command = send.replace("8443", str(made.port))
        assert run(command, tmp_path) == [{"records": 1, "duplicates": 0}]
        with pytest.raises(subprocess.CalledProcessError):
            run(command, tmp_path, PAYMENTS_TOKEN="another")
        assert made.bodies() == [b'{"amount": 12}']


def test_its_balanced_stream_is_one_per_host(tmp_path: Path) -> None:
    stream = declared(blocks("python")[2][1], tmp_path)
    assert stream.receivers == "per_host"
    assert stream.source.is_listener


def test_its_statements_run(connection: sa.Connection) -> None:
    make_log(connection, stream="orders")
    for _, statement in blocks("sql"):
        assert connection.execute(sa.text(statement)).all() == []


def test_its_tables_name_every_column_and_every_field() -> None:
    columns = [row[0].strip("`") for row in table("What is a record") if row[0].strip("`") in dict(Http.columns)]
    assert columns == [name for name, _ in Http.columns]
    fields = {row[0].strip("`"): row[1].strip("`") for row in table("Fields")}
    wanted = {name: field for name, field in Http.model_fields.items() if name != "kind"}
    assert sorted(fields) == sorted(wanted)
    for name, field in wanted.items():
        if fields[name] != "required":
            assert ast.literal_eval(fields[name]) == field.default
