"""Write the same compute logs as Dagster, but without extra processes, for runs that take less than a second.

Dagster's local manager starts four processes for each run, which also copy the run's output to the output of the
process that it runs in; that costs more than a small batch. In a Forebay instance nothing reads that copy.
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
    """Compute log manager with the same files at the same paths as Dagster's, written without another process."""

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Build the manager; called by Dagster with the configuration in dagster.yaml."""
        return cls(inst_data=inst_data, **config_value)

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Generator[CapturedLogContext, None, None]:
        """Redirect the output of this process and its children to the run's files, while entered."""
        paths = [
            self.get_captured_local_path(log_key, IO_TYPE_EXTENSION[kind])
            for kind in (ComputeIOType.STDOUT, ComputeIOType.STDERR)
        ]
        for path in paths:
            ensure_file(path)
        with redirect_to_file(sys.stdout, paths[0]), redirect_to_file(sys.stderr, paths[1]):
            yield CapturedLogContext(log_key)
        touch_file(self.complete_artifact_path(log_key))  # type: ignore[no-untyped-call]
