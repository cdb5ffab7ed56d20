"""Test the page: its declaration is valid, and its commands get the answers that it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.receiver_runtime.receivers.http.protocol_page import rows_of_page


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
def test_its_commands_get_the_answers_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_TOKEN", "abc")
    rows = rows_of_page(Path(__file__).parents[1] / "README.md", tmp_path)
    assert [row["body"] for row in rows] == [b'{"order": 7}', b"tea is out", b"line 1", b"line 2"]
