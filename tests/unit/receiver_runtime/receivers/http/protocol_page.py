"""Run the commands of a protocol's page against a receiver of the stream that it declares."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from forebay import Stream
from receiver_runtime.receivers.http.declaration import Http
from tests.support.commands.run_program import run_program
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = re.compile(r"^```(python|sh|json answer)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def rows_of_page(page: Path, root: Path) -> list[dict[str, Any]]:
    """Run the page's first declaration and its commands, compare the answers that it shows, and return the rows."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    exec(next(text for language, text in blocks if language == "python"), names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    source = stream.source
    assert isinstance(source, Http)
    fields: dict[str, Any] = source.model_dump(include={"protocols", "tokens", "headers"})
    port = source.listen.rpartition(":")[2]
    answer = ""
    with listening(root, stream_name=stream.name, **fields) as made:
        for language, text in blocks:
            if language == "sh":
                command = ["bash", "-euo", "pipefail", "-c", text.replace(f":{port}", f":{made.port}")]
                answer = run_program(command, env=dict(os.environ), cwd=root, check=True).stdout
            elif language == "json answer":
                assert json.loads(answer) == json.loads(text)
        return made.rows()
