"""Test the page: its declaration is valid, and its command gets the answer that it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.receiver_runtime.receivers.http.protocol_page import rows_of_page


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
def test_its_command_gets_the_answer_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_TOKEN", "abc")
    [row] = rows_of_page(Path(__file__).parents[1] / "README.md", tmp_path)
    assert row["body"] == b'{"message": "GET / 200"}'
