"""Kill `forebay send` while it sends a file: the same command with --resume sends each line once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.polling import eventually
from tests.support.servers.channel_receiver import channel_receiver

if TYPE_CHECKING:
    from pathlib import Path

LINES = 20_000


def test_a_killed_command_goes_on_with_the_same_file(tmp_path: Path) -> None:
    wanted = [b'{"n":%d}' % number for number in range(LINES)]
    (tmp_path / "lines").write_bytes(b"\n\n".join(wanted))
    with channel_receiver() as receiver:
        options = ["--channel", "a", "--spool", "spool", "--json"]
        command = [sys.executable, "-m", "forebay.cli", "send", receiver.url, *options]
        # It reads as much as is written, so it is killed within the file.
        first = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert first.stdin is not None
        first.stdin.write(b"\n\n".join(wanted[:7_000]) + b'\n{"n":7')
        first.stdin.flush()
        eventually(lambda: len(receiver.channels.get("a", [])) >= 6_000, "a part of the lines")
        first.kill()
        first.communicate(timeout=60)
        # Without --resume it would take the lines twice.
        unasked = subprocess.run(
            [*command, "--from", "lines"], cwd=tmp_path, capture_output=True, timeout=120, check=False
        )
        assert unasked.returncode == 1
        assert b"--resume" in unasked.stderr
        again = subprocess.run(
            [*command, "--resume", "--from", "lines"], cwd=tmp_path, capture_output=True, timeout=120, check=True
        )
        assert receiver.channels["a"] == wanted
    said = json.loads(again.stdout)
    assert 6_000 <= said["passed"] <= 7_000
    assert (said["spool_taken"], said["spool_registered"], said["waiting"]) == (LINES, LINES, 0)
