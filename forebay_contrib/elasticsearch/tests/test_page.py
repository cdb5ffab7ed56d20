"""Test the page: its declaration is valid, and its command gets the answer that it shows."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from forebay import Stream
from receiver_runtime.receivers.http.declaration import Http
from tests.support.commands.run_program import run_program
from tests.unit.receiver_runtime.receivers.http.http_client import listening

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
def test_its_command_gets_the_answer_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_TOKEN", "abc")
    [declaration], [command], [shown] = (
        re.findall(rf"^```{name}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        for name in ("python", "sh", "json answer")
    )
    names: dict[str, object] = {}
    exec(declaration, names)
    [source] = [value.source for value in names.values() if isinstance(value, Stream)]
    assert isinstance(source, Http)
    fields: dict[str, Any] = source.model_dump(include={"protocols", "tokens"})
    with listening(tmp_path, stream_name="logs", **fields) as made:
        run = ["bash", "-euo", "pipefail", "-c", command.replace(":9200", f":{made.port}")]
        answer = run_program(run, env=dict(os.environ), cwd=tmp_path, check=True).stdout
        assert json.loads(answer) == json.loads(shown)
        [row] = made.rows()
    assert row["body"] == b'{"message": "GET / 200"}'
