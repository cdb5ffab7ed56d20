"""Check that a real receiver's HTTP server follows its OpenAPI document for any request. ``make brokers``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from receiver_runtime.receivers.http.declaration import Http

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.testing.source_rig import SourceRig

HERE = Path(__file__).parent
TOKEN = "no-secret"


@pytest.mark.brokers
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocols", "operations", "workers"),
    [
        (("cloudevents", "opentelemetry"), 5, 4),
        # With several workers, hypothesis meets a fault of CPython 3.11: "AST constructor recursion depth mismatch".
        (("elasticsearch", "splunk_hec", "loki", "prometheus"), 19, 1),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_server_follows_its_openapi_document(
    make_rig: Callable[..., SourceRig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    protocols: Sequence[str],
    operations: int,
    workers: int,
) -> None:
    monkeypatch.setenv("FUZZING_TOKEN", TOKEN)
    source = Http(
        listen="127.0.0.1:0",
        tokens=("env:FUZZING_TOKEN",),
        webhook_origins=("*",),
        protocols=tuple(protocols),
    )
    rig = make_rig(source)
    process = rig.start()
    eventually(lambda: rig.said("listening on"), "the receiver to listen")
    [address] = [message.rpartition(" ")[2] for _, message, _ in rig.events() if "listening on" in message]
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(HERE / "http_fuzzing.toml")),
            *("run", f"http://{address}/openapi.json", "--header", f"Authorization: Bearer {TOKEN}"),
            *("--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "1", "--workers", str(workers)),
            # How fast this machine makes up requests says nothing about the server.
            *("--suppress-health-check", "too_slow"),
            *("--request-timeout", "30", "--generation-database", "none", "--continue-on-failure", "--no-color"),
        ],
        env={**os.environ, "SCHEMATHESIS_HOOKS": "http_fuzzing_hooks", "PYTHONPATH": str(HERE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    assert f"{operations} selected / {operations} total" in done.stdout
    stop(process)
    assert rig.registered() > 100
    assert rig.failed_checks() == []
