"""Receive what the Fluent loggers of npm, Go and PyPI send, each as its makers publish it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from forebay_contrib.fluent_forward.tests.built_senders import golang, javascript, python
from forebay_contrib.fluent_forward.tests.test_receiver import count, errors, listening, rows
from tests.support.commands.run_program import run_program
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.support import eventually, reaches

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.receiver_runtime.rig import Rig

# Installing and building takes minutes, once.
pytestmark = [pytest.mark.senders, pytest.mark.timeout(1800)]

RECORDS = 50


def check(made: Rig, *, tag: str = "app.log") -> None:
    eventually(reaches(lambda: count(made), RECORDS))
    found = rows(made)
    assert sorted(json.loads(row["record"])["n"] for row in found) == list(range(RECORDS))
    assert {(row["tag"], json.loads(row["record"])["text"]) for row in found} == {(tag, "ü")}
    times = {json.loads(row["record"])["n"]: row["time_unix_nano"] - 1_700_000_000 * 10**9 for row in found}
    # Python's is made of a float.
    assert all(abs(times[number] - number) < 1000 for number in range(RECORDS))
    assert errors(made) == []


def send_by_npm(**settings: Any) -> None:  # noqa: ANN401  of the program
    done = run_program([*javascript(), json.dumps({"records": RECORDS, **settings})], timeout=120)
    assert done.returncode == 0, done.stderr


MODES = ["Message", "Forward", "PackedForward", "CompressedPackedForward"]


@pytest.mark.parametrize(
    ("library", "mode"),
    [
        *(("@fluent-org/logger", mode) for mode in MODES),
        *(("fluent-logger", mode) for mode in MODES if mode != "Forward"),
    ],
)
@pytest.mark.parametrize("how", ["plain", "secured"])
def test_npms_loggers_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, mode: str, how: str
) -> None:
    monkeypatch.setenv("KEY", "sesame")
    monkeypatch.setenv("ANN", "secret")
    secured: dict[str, Any] = {}
    settings: dict[str, Any] = {"library": library, "mode": mode}
    if how == "secured":
        authority = Authority(tmp_path / "tls")
        issued = authority.issue("receiver")
        secured["tls"] = {"certificate_file": issued.certificate_file, "key_file": issued.key_file}
        secured["shared_key"] = "env:KEY"
        settings |= {"key": "sesame", "ca": authority.ca_file}
        if library == "@fluent-org/logger":
            secured["users"] = {"ann": "env:ANN"}
            settings |= {"user": "ann", "password": "secret"}
    with listening(tmp_path / "blocks", **secured) as (made, port):
        send_by_npm(port=port, **settings)
        # Each was acknowledged, so it is registered.
        assert count(made) == RECORDS
        check(made)


def test_a_logger_with_a_wrong_key_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sesame")
    with listening(tmp_path, shared_key="env:KEY") as (made, port):
        settings = {"library": "fluent-logger", "mode": "Message", "port": port, "key": "wrong", "records": 1}
        done = run_program([*javascript(), json.dumps(settings)], timeout=120)
        assert done.returncode != 0
        assert "shared_key mismatch" in done.stderr
        eventually(lambda: "a sender was refused" in errors(made), "the refusal")
        assert count(made) == 0


@pytest.mark.parametrize("network", ["tcp", "tls"])
@pytest.mark.parametrize("ack", ["true", "false"])
def test_gos_logger(tmp_path: Path, ack: str, network: str) -> None:
    issued = Authority(tmp_path / "tls").issue("receiver")
    tls = {"certificate_file": issued.certificate_file, "key_file": issued.key_file} if network == "tls" else None
    with listening(tmp_path / "blocks", tls=tls) as (made, port):
        done = run_program([*golang(), str(port), str(RECORDS), ack, network], timeout=120)
        assert done.returncode == 0, done.stderr
        if ack == "true":
            assert count(made) == RECORDS
        check(made)


def test_pythons_logger(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port):
        done = run_program([*python(), json.dumps({"port": port, "records": RECORDS})], timeout=120)
        assert done.returncode == 0, done.stderr
        check(made)
