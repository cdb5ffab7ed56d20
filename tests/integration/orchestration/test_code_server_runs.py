"""Test that a run ends in Dagster if its code server was replaced, with Dagster's run monitoring and a socket."""

from __future__ import annotations

import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import Mock

import dagster as dg
import grpc  # type: ignore[import-untyped]
import pytest
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.monitoring.run_monitoring import monitor_started_run
from dagster._grpc.__generated__.dagster_api_pb2 import GetCurrentRunsReply
from dagster._grpc.__generated__.dagster_api_pb2_grpc import DagsterApiServicer, add_DagsterApiServicer_to_server
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import serialize_value

from orchestration.batches.batch_schedule import FIRST_TAG, PIPELINE_TAG
from tests.support.machine.state_directory import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STARTED, FAILURE = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE
REPLAY = {PIPELINE_TAG: "words", FIRST_TAG: "2026-01-01T00:00:00+00:00"}


class CodeServer(DagsterApiServicer):
    """Says which runs are its children, as Dagster's code server does, and nothing else."""

    def __init__(self, *runs: str) -> None:
        self._runs = runs

    def GetCurrentRuns(self, request: object, context: object) -> GetCurrentRunsReply:  # noqa: N802  gRPC's
        said = GetCurrentRunsResult(current_runs=self._runs, serializable_error_info=None)
        return GetCurrentRunsReply(serialized_current_runs=serialize_value(said))


@contextmanager
def listening(place: Path, *runs: str) -> Iterator[None]:
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        add_DagsterApiServicer_to_server(CodeServer(*runs), server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{place}")
        server.start()
        yield
        server.stop(None).wait(10)


@contextmanager
def killed(place: Path) -> Iterator[None]:
    """Leave a socket's file behind, as a code server does that is killed."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
        yield
    place.unlink()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with state_directory() as made:
        yield made


@pytest.fixture(scope="module")
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    launcher = {"module": "orchestration.run_launcher.launcher", "class": "BatchRunLauncher"}
    overrides = {"run_launcher": launcher, "telemetry": {"enabled": False}}
    with dg.DagsterInstance.local_temp(str(home), overrides=overrides) as made:
        yield made


@pytest.mark.parametrize(
    ("job", "tags", "end"),
    [
        ("__ASSET_JOB", {}, FAILURE),
        ("__ASSET_JOB", REPLAY, FAILURE),
        # The batch sensor asks the driver log, and may request it again.
        ("words_replay", REPLAY, STARTED),
    ],
)
def test_a_run_whose_code_server_was_replaced_has_failed(
    instance: dg.DagsterInstance, home: Path, job: str, tags: dict[str, str], end: dg.DagsterRunStatus
) -> None:
    place = home / "socket"
    where = {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": str(place)})}

    def launched() -> dg.DagsterRun:
        return instance.add_run(dg.DagsterRun(job_name=job, status=STARTED, tags=tags | where))

    def status(run: dg.DagsterRun) -> dg.DagsterRunStatus:
        record = instance.get_run_record_by_id(run.run_id)
        assert record is not None
        monitor_started_run(instance, Mock(), record, logging.getLogger("test"))
        found = instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status

    run, other = launched(), launched()
    with listening(place, run.run_id, other.run_id):
        assert status(run) is STARTED
    with killed(place):
        assert status(run) is STARTED, "it may be about to end by itself"
    with listening(place, "another run"):
        assert status(run) is end
    assert status(other) is end, "as where `forebay up` has another socket after its next start"
    if end is FAILURE:
        [failed] = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        assert "(as after a change of the code), or killed" in str(failed.get_dagster_event().message)
