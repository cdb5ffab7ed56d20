"""Test that a run ends in Dagster if its code server was replaced, with Dagster's run monitoring and a socket."""

from __future__ import annotations

import json
import logging
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import Mock

import dagster as dg
import grpc  # type: ignore[import-untyped]
import pytest
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.monitoring.run_monitoring import monitor_started_run
from dagster._grpc.__generated__.dagster_api_pb2 import GetCurrentRunsReply
from dagster._grpc.__generated__.dagster_api_pb2_grpc import DagsterApiServicer, add_DagsterApiServicer_to_server
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import serialize_value

from orchestration.batches.batch_schedule import FIRST_TAG, PIPELINE_TAG
from orchestration.run_launcher.launcher import BatchRunLauncher
from tests.support.machine.state_directory import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPLAY = {PIPELINE_TAG: "words", FIRST_TAG: "2026-01-01T00:00:00+00:00"}
AFTER_A_RESTART, KNOWN, UNREADABLE = "after a restart", "known", "unreadable"
GONE = "(as after a change of the code), or killed"
CANT_TELL = "can't be asked"


class CodeServer(DagsterApiServicer):
    """Says which runs are its children, as Dagster's code server does, and nothing else."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def GetCurrentRuns(self, request: object, context: object) -> GetCurrentRunsReply:  # noqa: N802  gRPC's
        return GetCurrentRunsReply(serialized_current_runs=self._answer)


@contextmanager
def listening(home: Path, answer: str) -> Iterator[int]:
    """Yield the port of a code server that also listens at "socket"; a killed one has left "killed" behind."""
    with ThreadPoolExecutor(1) as threads, socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home / "killed"))
        server = grpc.server(threads)
        add_DagsterApiServicer_to_server(CodeServer(answer), server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{home / 'socket'}")
        port: int = server.add_insecure_port("localhost:0")
        server.start()
        yield port
        server.stop(None).wait(10)
    (home / "killed").unlink()


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
    ("server", "where", "job", "tags", "why"),
    [
        pytest.param(AFTER_A_RESTART, "socket", "__ASSET_JOB", {}, GONE, id="replaced"),
        pytest.param(AFTER_A_RESTART, "socket", "__ASSET_JOB", REPLAY, GONE, id="replaced, tags of a replay"),
        # The batch sensor asks the driver log, and may request it again.
        pytest.param(
            AFTER_A_RESTART, "socket", "words_replay", REPLAY, "the batch sensor", id="a replay that has begun"
        ),
        pytest.param(KNOWN, "socket", "__ASSET_JOB", {}, "", id="it runs"),
        pytest.param(AFTER_A_RESTART, "killed", "__ASSET_JOB", {}, CANT_TELL, id="it may be about to end by itself"),
        pytest.param(AFTER_A_RESTART, "missing", "__ASSET_JOB", {}, CANT_TELL, id="the socket may be there for others"),
        pytest.param(AFTER_A_RESTART, "port", "__ASSET_JOB", {}, "one of several", id="another may have it"),
        pytest.param(AFTER_A_RESTART, None, "__ASSET_JOB", {}, "no code server", id="launched by something else"),
        pytest.param(UNREADABLE, "socket", "__ASSET_JOB", {}, CANT_TELL, id="an answer of another version"),
    ],
)
def test_a_run_has_failed_only_if_its_code_server_was_replaced(
    instance: dg.DagsterInstance, home: Path, server: str, where: str | None, job: str, tags: dict[str, str], why: str
) -> None:
    run_id = str(uuid.uuid4())
    known = GetCurrentRunsResult(
        current_runs=[run_id] if server == KNOWN else ["another"], serializable_error_info=None
    )
    with listening(home, "{}" if server == UNREADABLE else serialize_value(known)) as port:
        place = {"port": port} if where == "port" else {"socket": str(home / str(where))}
        tag = {} if where is None else {GRPC_INFO_TAG: json.dumps({"host": "localhost", **place})}
        instance.add_run(
            dg.DagsterRun(job_name=job, run_id=run_id, status=dg.DagsterRunStatus.STARTED, tags=tags | tag)
        )
        record = instance.get_run_record_by_id(run_id)
        assert record is not None
        health = instance.run_launcher.check_run_worker_health(record.dagster_run)
        monitor_started_run(instance, Mock(), record, logging.getLogger("test"))
    assert health.status is (WorkerStatus.FAILED if why == GONE else WorkerStatus.RUNNING)
    assert why in (health.msg or "")
    failed = instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert [GONE in str(event.get_dagster_event().message) for event in failed] == [True] * (why == GONE)


def test_dagster_reads_the_socket_of_a_run_as_we_do(instance: dg.DagsterInstance) -> None:
    tag = {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": "/the/socket"})}
    run = instance.add_run(dg.DagsterRun(job_name="__ASSET_JOB", status=dg.DagsterRunStatus.STARTED, tags=tag))
    launcher = instance.run_launcher
    assert isinstance(launcher, BatchRunLauncher)
    assert isinstance(launcher._delegate, dg.DefaultRunLauncher)
    client = launcher._delegate._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]
    assert client.socket == "/the/socket"
