"""Check the demo's pipeline module: importable with nothing running, it takes its address from the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, sys
from forebay.demo import pipeline as module
from orchestration.declarations.modules import load_pipelines
found = load_pipelines("forebay.demo.pipeline")
print(json.dumps({
    "loaded": sorted({"dagster", "pyspark"} & set(sys.modules)),
    "stream": module.flights.declaration(),
    "pipelines": {pipeline.name: pipeline.declaration() for pipeline in found},
}))
"""


def declared(**environment: str) -> dict[str, Any]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=inherited | environment,
        check=True,
        capture_output=True,
        timeout=60,
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_it_is_light_and_has_defaults() -> None:
    found = declared()
    assert found["loaded"] == []
    assert found["stream"]["source"]["host"] == "127.0.0.1"
    assert found["stream"]["source"]["port"] == 9999
    pipeline = found["pipelines"]["flights_by_carrier"]
    assert pipeline["interval_ms"] == 10_000
    assert pipeline["streams"] == ["flights"]
    assert list(pipeline["outputs"]) == ["departure_delays", "running_totals"]


def test_address_and_output_come_from_the_environment() -> None:
    found = declared(FOREBAY_DEMO_HOST="localhost", FOREBAY_DEMO_PORT="4711", FOREBAY_DEMO_OUTPUT="/srv/out")
    assert found["stream"]["source"]["host"] == "localhost"
    assert found["stream"]["source"]["port"] == 4711
    outputs = found["pipelines"]["flights_by_carrier"]["outputs"]
    for name in ("departure_delays", "running_totals"):
        assert f"/srv/out/{name}" in json.dumps(outputs[name]["sink"])


def test_the_output_lies_under_the_home_by_default() -> None:
    found = declared(FOREBAY_HOME="/srv/forebay")
    sink = found["pipelines"]["flights_by_carrier"]["outputs"]["departure_delays"]["sink"]
    assert "/srv/forebay/demo-output/flights_by_carrier" in json.dumps(sink)


def test_a_port_must_be_a_number() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        declared(FOREBAY_DEMO_PORT="nine")
