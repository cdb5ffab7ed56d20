"""Test the page on sending: its code and commands run on a real server, and its tables name what there is."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import forebay.client
from forebay import Stream
from forebay.client import SenderLimits
from tests.support.commands.run_program import run_program
from tests.unit.receiver_runtime.receivers.http.http_client import listening

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "sending.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def table(heading: str) -> list[list[str]]:
    text = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]


def test_its_code_and_commands_send_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    declaration, code = blocks("python")
    names: dict[str, object] = {}
    exec(declaration, names)
    stream = names["orders"]
    assert isinstance(stream, Stream)
    (tmp_path / "orders.jsonl").write_text('{"item": "bread"}\n{"item": "salt"}\n')
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with listening(tmp_path / "blocks", **stream.source.model_dump(include={"body", "key_from"})) as made:
        exec(code.replace("127.0.0.1:8080", f"127.0.0.1:{made.port}"), {})
        said = [
            run_program(
                ["bash", "-euo", "pipefail", "-c", command.replace("127.0.0.1:8080", f"127.0.0.1:{made.port}")],
                env=environment,
                cwd=tmp_path,
                check=True,
            )
            for command in blocks("sh")
        ]
        made.rig.stop()
        assert sorted(json.loads(body)["item"] for body in made.bodies() if b"item" in body) == [
            "bread",
            "milk",
            "salt",
            "tea",
        ]
        assert [json.loads(body) for body in made.bodies() if b"line" in body] == [
            {"line": "GET / 200"},
            {"line": "GET /tea 404"},
        ]
    assert len(said) == 3
    assert "2 lines taken, 2 registered" in said[0].stderr
    assert "2 lines skipped" in said[1].stderr
    assert "0 lines taken, 2 by earlier runs" in said[1].stderr
    assert json.loads(said[2].stdout)["registered"] == 2


def test_its_tables_name_each_error_and_limits_that_there_are() -> None:
    errors = {row[0].strip("`") for row in table("Errors")} - {"error"}
    assert errors == {name for name in forebay.client.__all__ if name.endswith("Error")} - {"SendError"}
    limits = set(re.findall(r"SenderLimits\((\w+)=", PAGE)) | {"full_timeout", "fsync_interval"}
    assert limits <= set(SenderLimits.__slots__)
    assert f"After {SenderLimits().refused} of" in PAGE
    assert f"`full_timeout` ({SenderLimits().full_timeout:g} s)" in PAGE.replace("\n", " ")
    assert SenderLimits().spool_bytes == 2**30


@pytest.mark.parametrize("choice", ["resend", "discard"])
def test_its_choices_are_those_of_the_code(choice: str) -> None:
    assert f'`on_mismatch="{choice}"`' in PAGE
