"""Check the disks of `make chaos`: in their own mount namespace they are full, read-only and missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

IN_NAMESPACE = textwrap.dedent(
    """
    import errno, os, sys
    from pathlib import Path
    from tests.chaos.disks import Disk, is_possible, make_read_only, unmount

    def refused(path):
        try:
            path.write_bytes(b"0" * 8192)
        except OSError as error:
            return errno.errorcode[error.errno]
        return "written"

    assert is_possible()
    root = Path(sys.argv[1])
    disk, point = Disk(root / "disk", "4m"), root / "point"
    disk.mount(point, "data")
    said = [refused(point / "before")]
    disk.fill()
    said.append(refused(point / "while full"))
    (point / "before").unlink()
    disk.keep_full()
    said.append(refused(point / "while kept full"))
    disk.free()
    said.append(refused(point / "after"))
    with (point / "open").open("ab", buffering=0) as file:
        make_read_only(point, disk, "data")
        said.append(refused(point / "while read-only"))
        unmount(point)
        said.append(str(sorted(path.name for path in point.iterdir())))
        disk.mount(point, "data")
        said.append(refused(point / "again"))
        file.write(b"still")
    said.append(str((point / "open").read_bytes()))
    print(*said, sep="\\n")
    """
)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="it takes root to mount")
def test_disk_is_filled_made_read_only_removed_and_restored(tmp_path: Path) -> None:
    said = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", IN_NAMESPACE, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "CHAOS_NAMESPACE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in said.stderr or "permission denied" in said.stderr.lower():
        pytest.skip(f"mounts are not allowed here: {said.stderr}")
    assert said.stdout.splitlines() == [
        "written",
        "ENOSPC",
        "ENOSPC",
        "written",
        "EROFS",
        "[]",
        "written",
        "b'still'",
    ], said.stderr
    assert not os.path.ismount(tmp_path / "point"), "a mount got out of its namespace"
