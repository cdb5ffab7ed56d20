"""Compute logs as Dagster's own, for an instance in which a run takes less than a second.

Dagster's local manager starts four processes for each run, which copy what the run writes to the output of the process
that it runs in, too; that costs more than a small batch. In a Forebay instance nobody reads that copy.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from dagster._core.execution.compute_logs import redirect_to_file
from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
from dagster._core.storage.local_compute_log_manager import IO_TYPE_EXTENSION, LocalComputeLogManager
from dagster._utils import ensure_file, touch_file

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from dagster._serdes import ConfigurableClassData


class FileComputeLogManager(LocalComputeLogManager):
    """The same files at the same places, written without any process beside."""

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Made by Dagster from dagster.yaml."""
        return cls(inst_data=inst_data, **config_value)

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Generator[CapturedLogContext, None, None]:
        """While entered, what this process and its children write goes to the run's files."""
        paths = [
            self.get_captured_local_path(log_key, IO_TYPE_EXTENSION[kind])
            for kind in (ComputeIOType.STDOUT, ComputeIOType.STDERR)
        ]
        for path in paths:
            ensure_file(path)
        with redirect_to_file(sys.stdout, paths[0]), redirect_to_file(sys.stderr, paths[1]):
            yield CapturedLogContext(log_key)
        touch_file(self.complete_artifact_path(log_key))  # type: ignore[no-untyped-call]
