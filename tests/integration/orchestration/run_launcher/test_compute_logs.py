"""Test the compute logs of a Forebay instance: Dagster's files, without its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
from dagster._core.storage.compute_log_manager import ComputeIOType

from orchestration.run_launcher.compute_logs import FileComputeLogManager

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KEY = ["run", "compute_logs", "abcdefgh"]


def test_the_output_of_a_run_and_its_children_is_in_its_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled():
        manager = FileComputeLogManager.from_config_value(None, {"base_dir": str(tmp_path)})
        assert type(manager) is FileComputeLogManager
        before = psutil.Process().children()
        with manager.capture_logs(KEY):
            os.write(sys.stdout.fileno(), b"from Python\n")
            subprocess.run(["sh", "-c", "echo from a child; echo and its error >&2"], check=True, timeout=120)
            # Dagster's own manager would have started four processes.
            assert set(psutil.Process().children()) <= set(before)
            assert not manager.is_capture_complete(KEY)
        assert manager.is_capture_complete(KEY)
        out = manager.get_log_data_for_type(KEY, ComputeIOType.STDOUT)[0]
        error = manager.get_log_data_for_type(KEY, ComputeIOType.STDERR)[0]
    assert out == b"from Python\nfrom a child\n"
    assert error == b"and its error\n"
