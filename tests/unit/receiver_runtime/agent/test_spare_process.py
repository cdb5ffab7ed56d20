"""Check the one line that a spare process waits for."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from receiver_runtime.agent.spare_process import encode_begin
from receiver_runtime.process.process_control import ControlledRun, encode

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import os
import sys
from receiver_runtime.agent.spare_process import wait_for_work
begin = wait_for_work(0)
print(begin.receivers if begin else "gone", flush=True)
print(os.read(0, 1000), file=sys.stderr)
"""


def run(said: bytes) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], input=said, capture_output=True, check=False, timeout=60)
    return done.returncode, (done.stdout + done.stderr).decode()


def test_it_writes_to_its_receivers_log_and_leaves_the_following_lines_unread(tmp_path: Path) -> None:
    log_file = tmp_path / "a folder" / "receiver-12.log"
    log_file.parent.mkdir()
    log_file.write_text("what was there before\n")
    next_line = encode(ControlledRun(14, 1))
    assert run(encode_begin([(12, 3), (13, 4)], log_file) + next_line) == (0, "")
    assert log_file.read_text() == f"what was there before\n[(12, 3), (13, 4)]\n{next_line!r}\n"


def test_without_an_agent_it_does_nothing() -> None:
    assert run(b"") == (0, "gone\nb''\n")
    assert run(b"begin 12:3 /no") == (0, "gone\nb''\n")


def test_an_unexpected_line_is_an_error_that_shows_it() -> None:
    code, said = run(b"run 12 3\n")
    assert code == 1
    assert "'run 12 3' is no line that a spare process knows" in said
