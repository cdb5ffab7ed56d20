"""Run the audit as a program, against a stand-in for OSV: what it says, and its exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from release.audit import main
from release.bundled_programs import installed_version, problems, read_bundled_programs
from release.lock_file import locked_packages
from tests.support.polling import joined
from tracker_store.server.embedded_postgres import _BINARIES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
_MODIFIED = "2026-01-01T00:00:00Z"


@contextmanager
def service(vulnerable: str | None, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """Answer as OSV does; one package is vulnerable. Yield the address and the requests."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            asked.append((self.path, queries))
            known = {"vulns": [{"id": "X-1", "modified": _MODIFIED}]}
            self.answer({"results": [known if one["package"]["name"] == vulnerable else {} for one in queries]})

        def do_GET(self) -> None:
            self.answer({"id": self.path.rpartition("/")[2], "modified": _MODIFIED})

        def answer(self, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            del arguments

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            joined(thread)


def audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "release.audit", *arguments],
        cwd=ROOT,
        # uv asks PyPI, too: whether a project has been archived. Here that fails at once, which uv leaves out.
        env={"PATH": "/usr/bin:/bin", "UV_HTTP_RETRIES": "0", "HTTPS_PROXY": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_all_packages_are_asked_about_in_one_request() -> None:
    with service(vulnerable=None) as (address, asked):
        done = audit("--service", address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "known vulnerabilities: none"
    [(path, queries)] = asked
    assert path == "/v1/querybatch"
    assert {(one["package"]["ecosystem"], one["package"]["name"], one["version"]) for one in queries} == {
        ("PyPI", package["name"], package["version"]) for package in locked_packages(ROOT / "uv.lock")
    }


def test_a_known_vulnerability_fails_the_audit() -> None:
    with service(vulnerable="alembic") as (address, _):
        done = audit("--service", address)
    assert done.returncode == 1
    assert "alembic" in done.stdout
    assert "X-1" in done.stdout
    assert done.stdout.splitlines()[-1] == "known vulnerabilities: FOUND"


def test_without_the_service_it_says_not_checked_and_has_a_code_of_its_own() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        done = audit("--service", f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert done.returncode == 3
    assert "known vulnerabilities: NOT CHECKED" in done.stdout
    assert "none" not in done.stdout


def test_an_answer_that_is_no_answer_is_not_checked() -> None:
    with service(vulnerable=None, status=500) as (address, _):
        assert audit("--service", address).returncode == 3


def test_a_problem_fails_the_audit_whatever_else_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("release.lock_file.problems", lambda _: ["one 1.0 has no file"])
    monkeypatch.setattr("release.audit.known_vulnerabilities", lambda _: (None, ""))
    assert main([]) == 1
    assert "PROBLEM: one 1.0 has no file" in capsys.readouterr().out


def test_the_list_of_bundled_programs_is_what_is_installed_and_what_the_server_uses() -> None:
    programs = read_bundled_programs()
    assert problems(programs, locked_packages(ROOT / "uv.lock")) == []
    folders = {one.command[0].split("/")[0] for one in programs if one.name == "PostgreSQL"}
    assert folders == set(_BINARIES.values())
    assert {one.name for one in programs} == {"PostgreSQL", "OpenJDK"}


@pytest.mark.parametrize("index", range(len(read_bundled_programs())))
def test_each_bundled_program_prints_its_version(index: int) -> None:
    program = read_bundled_programs()[index]
    assert installed_version(program) == program.version
