"""Test what another account of the machine finds of a local Spark session: closed ports, and files it can't enter."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.machine.another_account import as_nobody

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A session as batches have it, with a job that shuffles, Python workers, and Spark's UI. Prints what it found.
_SESSION = """
import json, sys
from pyspark import SparkContext
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session

settings = Settings(spark_master="local[2]", spark_configuration=json.loads(sys.argv[1]))
session = spark_session(settings, application="tests")
squares = session.sparkContext.parallelize(range(100), 4).map(lambda n: (n % 3, n * n)).reduceByKey(lambda a, b: a + b)
configuration = dict(session.sparkContext.getConf().getAll())
print(json.dumps({
    "sum": sum(value for _, value in squares.collect()),
    "jvm": SparkContext._gateway.proc.pid,
    "driver_port": int(configuration["spark.driver.port"]),
    "local_directory": configuration["spark.local.dir"],
    "warehouse": configuration["spark.sql.warehouse.dir"],
    "secrets": [key for key in configuration if "secret" in key],
}), flush=True)
sys.stdin.read()
"""

# Sends one unauthenticated RPC, as any client of Spark's network library can, and prints the answer.
_ATTACK = """
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as connection:
    connection.sendall(bytes.fromhex(sys.argv[2]))
    connection.settimeout(60)
    answer = b""
    try:
        while data := connection.recv(4096):
            answer += data
            if b"Exception" in answer:
                break
    except OSError:
        pass
    sys.stdout.buffer.write(answer)
"""
_RPC_REQUEST = 3


def _rpc(body: bytes) -> bytes:
    message = struct.pack(">bqi", _RPC_REQUEST, 7, len(body)) + body
    return struct.pack(">q", len(message) + 8) + message


@pytest.fixture
def session(home: Path) -> Iterator[dict[str, Any]]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP")
    }
    with subprocess.Popen(
        [sys.executable, "-c", _SESSION, json.dumps({"spark.ui.enabled": "true", "spark.ui.port": "0"})],
        env={**environment, "FOREBAY_HOME": str(home), "FOREBAY_CLASS_ARCHIVE": "false"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_jobs_run_and_another_account_is_refused(session: dict[str, Any], home: Path) -> None:
    assert session["sum"] == sum(n * n for n in range(100))
    listening = [
        connection.laddr
        for connection in psutil.Process(session["jvm"]).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert session["driver_port"] in [address.port for address in listening]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert session["secrets"] == [], "it is in no setting, as settings are on the command line"
    assert session["local_directory"].startswith(f"{home}/spark/local/")
    # Spark would make `spark-warehouse` in the user's project.
    assert session["warehouse"].removeprefix("file:") == f"{home}/spark/warehouse"
    attack = as_nobody(_ATTACK, str(session["driver_port"]), _rpc(b"not authenticated").hex())
    answer = subprocess.run(attack, check=True, capture_output=True, timeout=180).stdout
    # With no authentication the body is taken for a serialized Java object.
    assert b"StreamCorruptedException" not in answer
    assert b"SASL" in answer or b"challenge" in answer or answer == b""
    look = as_nobody("os.listdir(sys.argv[1])", session["local_directory"])
    assert "PermissionError" in subprocess.run(look, check=False, capture_output=True, text=True, timeout=120).stderr
