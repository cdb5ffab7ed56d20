"""Check followed files with Debian's logrotate: whatever its options, each line comes once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write

if TYPE_CHECKING:
    from tests.unit.receiver_runtime.receivers.files.files_rig import Reader

LOGROTATE = shutil.which("logrotate") or "/usr/sbin/logrotate"
HEADER = "time,host,value"

pytestmark = pytest.mark.skipif(not Path(LOGROTATE).exists(), reason="logrotate is not installed")

WAYS = [
    "create",
    "create compress",
    "create compress delaycompress",
    "create dateext compress",
    "nocreate nocompress",
    "copytruncate",
    "copytruncate compress",
    "copytruncate compress delaycompress",
    "copytruncate dateext",
]


class Rotation:
    """A directory of logs, and logrotate with its state."""

    def __init__(self, root: Path, way: str) -> None:
        self.logs = root / "logs"
        self.logs.mkdir()
        self._configuration = root / "logrotate.conf"
        own = f"{os.getuid()} {os.getgid()}"
        lines = [f"create 0640 {own}" if word == "create" else word for word in way.split()]
        self._options = ["rotate 20", "su root root" if os.getuid() == 0 else "", *lines]
        self._number = 0
        self._state = root / "state"

    def rotate(self) -> None:
        # With the date alone, two rotations on one day would have one name.
        self._number += 1
        options = "\n".join(self._options).replace("dateext", f"dateext\ndateformat .%Y%m%d-{self._number}")
        self._configuration.write_text(f'"{self.logs}/*.log" {{\n{options}\n}}\n')
        self._configuration.chmod(0o644)
        subprocess.run(
            [LOGROTATE, "--force", "--state", str(self._state), str(self._configuration)],
            check=True,
            capture_output=True,
            timeout=30,
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("looks", ["all the time", "in between", "after all"])
@pytest.mark.parametrize("header", [None, HEADER])
def test_each_line_comes_once(  # noqa: C901  writes, rotations and looks, in order
    tmp_path: Path, way: str, looks: str, header: str | None
) -> None:
    rotation = Rotation(tmp_path, way)
    log = Log()
    written: list[str] = []
    stays: Reader | None = None

    def look() -> None:
        nonlocal stays
        if looks == "after all":
            return
        if looks == "in between":
            # Use a new reader each time, as after a kill.
            follow(rotation.logs, log).run(8)
            return
        stays = stays or follow(rotation.logs, log)
        stays.run(8)

    for turn in range(4):
        for name in "ab":
            path = rotation.logs / f"{name}.log"
            if header is not None and not (path.exists() and path.stat().st_size):
                write(path, header)
            for part in range(2):
                lines = [f"{turn} {part} {name} {number}" for number in range(3 + 2 * turn)]
                write(path, *lines)
                written += lines
                # The second part is not read before it is rotated.
                if part == 0:
                    look()
        rotation.rotate()
        if turn % 2:
            look()
    follow(rotation.logs, log).run(10)
    follow(rotation.logs, log).run(10)
    values = [value for value in log.values if value != header]
    assert sorted(values) == sorted(written)
    assert log.lost() == 0
    if header is not None:
        assert log.values.count(header) == 8
