"""Stand in for Dagster's webserver, for tests of what requests a replay. Real instances are in test_replay_job.py."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.support.polling import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

SENSOR = {
    "name": "words_batches",
    "tags": [{"key": "forebay/declaration", "value": "abc"}],
    "sensorState": {"status": "RUNNING"},
}


class ReplayingDagster(ThreadingHTTPServer):
    """It has the pipeline `words`, launches each run that it is asked for, and remembers it: run1, run2, …"""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.launched: list[dict[str, Any]] = []
        self.sensors = [SENSOR]
        self.is_running = True
        self.answers = True
        # How many launches find the code server gone, because it restarts.
        self.without_code = 0
        # A launch sets the one, and takes as long as the other is not set.
        self.launching = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "BatchSensors" in request["query"]:
            node = {"name": "__repository__", "location": {"name": "forebay"}, "sensors": self.sensors}
            return {"repositoriesOrError": {"__typename": "RepositoryConnection", "nodes": [node]}}
        if "UnfinishedRuns" in request["query"] or "RunsWithTags" in request["query"]:
            also_ended = "RunsWithTags" in request["query"]
            found = [
                {"runId": f"run{number}", "status": "STARTED", "stats": {"startTime": 1.0}}
                for number, params in enumerate(self.launched, start=1)
                if (self.is_running or also_ended)
                and all(tag in params["executionMetadata"]["tags"] for tag in request["variables"]["tags"])
            ]
            return {"runsOrError": {"__typename": "Runs", "results": found[:1]}}
        if self.without_code:
            self.without_code -= 1
            return {"launchRun": {"__typename": "PythonError", "message": "DagsterUserCodeUnreachableError: gone"}}
        self.launching.set()
        self.goes_on.wait(60)
        self.launched.append(request["variables"]["params"])
        return {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": f"run{len(self.launched)}"}}}


class _Handler(BaseHTTPRequestHandler):
    server: ReplayingDagster

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = self.server.answer(request)
        body = json.dumps({"data": data}).encode() if self.server.answers else b"no JSON"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def replaying_dagster() -> Iterator[ReplayingDagster]:
    """Serve on a free port of loopback."""
    with ReplayingDagster() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            joined(thread)
