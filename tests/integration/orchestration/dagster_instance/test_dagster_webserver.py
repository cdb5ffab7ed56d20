"""Attack Dagster's webserver and code server as they run in `forebay up`: from a web page, and from another account."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from forebay.cli.instance.dagster_home import code_server_socket, webserver_token, write_dagster_home
from orchestration.dagster_instance.dagster_client import DagsterClient, LaunchRefusedError
from orchestration.dagster_instance.http_connections import MOST_CONNECTIONS
from orchestration.declarations.settings import Settings
from tests.support.machine.another_account import run_as_nobody
from tests.support.machine.held_ports import held_port
from tests.support.machine.state_directory import state_directory
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

START_SECONDS = 240.0
QUERY = json.dumps({"query": "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"})
DEFINITIONS = "import dagster as dg\n\n@dg.asset\ndef one() -> None: ...\n\ndefs = dg.Definitions(assets=[one])\n"


@dataclass(frozen=True)
class Servers:
    """A webserver, the code server that it asks, and the token."""

    port: int
    code_server: Path
    token: str | None
    webserver: subprocess.Popen[bytes]

    def ask(
        self, method: str = "POST", path: str = "/graphql", headers: Mapping[str, str] | None = None, body: str = QUERY
    ) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body if method == "POST" else None, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def own(self) -> dict[str, str]:
        return {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    started = subprocess.Popen([sys.executable, "-m", *command], env=kept | environment)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            # A server of Dagster's, which sometimes does not end by itself; that ours does is tested elsewhere.
            started.kill()
            started.wait(60)


def connects(family: int, address: object) -> bool:
    with socket.socket(family) as connection:
        return connection.connect_ex(address) == 0  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Start both servers with a token, in a directory that other accounts may pass through."""
    with state_directory() as state, ExitStack() as stack:
        home = state / "dagster"
        code_server = stack.enter_context(code_server_socket(home))
        workspace = write_dagster_home(home, code_server=code_server)
        token = webserver_token(Settings(home=state, dagster_token=None), home)
        assert token is not None
        (home / "dagster.yaml").write_text('{"telemetry": {"enabled": false}}', encoding="utf-8")
        (state / "defs.py").write_text(DEFINITIONS, encoding="utf-8")
        port = stack.enter_context(held_port())
        here = {"DAGSTER_HOME": str(home), "FOREBAY_DAGSTER_TOKEN": token}
        stack.enter_context(
            process(
                *("dagster", "api", "grpc", "--python-file", str(state / "defs.py")),
                *("--socket", str(code_server), "--location-name", "forebay"),
                **here,
            )
        )
        eventually(
            lambda: connects(socket.AF_UNIX, str(code_server)), "the code server", seconds=START_SECONDS, step=0.1
        )
        webserver = stack.enter_context(
            process(
                *(
                    "orchestration.dagster_instance.dagster_webserver",
                    "--port",
                    str(port),
                    "--workspace",
                    str(workspace),
                ),
                **here,
            )
        )
        eventually(
            lambda: connects(socket.AF_INET, ("127.0.0.1", port)), "the webserver", seconds=START_SECONDS, step=0.1
        )
        yield Servers(port, code_server, token, webserver)
        webserver.send_signal(signal.SIGTERM)
        assert webserver.wait(60) == 0


def test_the_owner_reaches_the_code_through_both(servers: Servers) -> None:
    status, body = servers.ask(headers=servers.own())
    assert (status, json.loads(body)) == (
        200,
        {"data": {"repositoriesOrError": {"nodes": [{"name": "__repository__"}]}}},
    )
    assert DagsterClient(f"http://127.0.0.1:{servers.port}", token=servers.token).batch_sensors() == {}
    with pytest.raises(LaunchRefusedError, match=r"HTTP 401.*FOREBAY_DAGSTER_TOKEN"):
        DagsterClient(f"http://127.0.0.1:{servers.port}").batch_sensors()


def test_a_link_opens_the_pages_in_a_browser(servers: Servers) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", servers.port, timeout=60)) as connection:
        connection.request("GET", f"/?token={servers.token}", headers={"Accept": "text/html"})
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].partition(";")[0]
    status, page = servers.ask("GET", "/", {"Cookie": cookie})
    assert status == 200
    assert "<html" in page
    same = {"Origin": f"http://127.0.0.1:{servers.port}", "Sec-Fetch-Site": "same-origin"}
    assert servers.ask(headers=same | {"Cookie": cookie, "Content-Type": "application/json"})[0] == 200


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {"Host": "evil.example:3000"}),
        (403, {"Origin": "https://evil.example"}),
        (403, {"Sec-Fetch-Site": "cross-site"}),
        (415, {"Content-Type": "text/plain; x=application/json"}),
        (401, {"Authorization": "Bearer guessed"}),
        (401, {"Authorization": ""}),
    ],
)
def test_what_a_web_page_or_a_stranger_sends_is_refused(servers: Servers, status: int, headers: dict[str, str]) -> None:
    assert servers.ask(headers=servers.own() | headers)[0] == status


@pytest.mark.parametrize(
    "target",
    ["/logs/%00", "/logs/%FC", "/logs/a", "/logs//", "/logs/..", "/download_debug/none", "/download_debug/%00"],
)
def test_what_is_no_name_is_no_fault(servers: Servers, target: str) -> None:
    own = {name: value for name, value in servers.own().items() if name != "Content-Type"}
    assert servers.ask("GET", target, own)[0] in {400, 404}


def test_a_websocket_needs_the_same(servers: Servers) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "x" * 22 + "==",
        "Sec-WebSocket-Version": "13",
    }
    token = {"Authorization": f"Bearer {servers.token}"}
    assert servers.ask("GET", headers=upgrade)[0] == 403
    assert servers.ask("GET", headers=upgrade | token | {"Origin": "https://evil.example"})[0] == 403
    head = "".join(f"{name}: {value}\r\n" for name, value in (upgrade | token).items())
    with socket.create_connection(("127.0.0.1", servers.port), timeout=60) as connection:
        connection.sendall(f"GET /graphql HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        assert connection.recv(1024).startswith(b"HTTP/1.1 101 ")


def test_silent_connections_are_closed_and_keep_nobody_out_and_a_websocket_stays(servers: Servers) -> None:
    upgrade = (
        "GET /graphql HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Key: {'x' * 22}==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {servers.token}\r\n\r\n"
    )
    with ExitStack() as stack:
        websocket = stack.enter_context(socket.create_connection(("127.0.0.1", servers.port), timeout=60))
        websocket.sendall(upgrade.encode())
        assert websocket.recv(1024).startswith(b"HTTP/1.1 101 ")
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", servers.port), timeout=60))
            for _ in range(4 * MOST_CONNECTIONS)
        ]
        assert servers.ask(headers=servers.own())[0] == 200
        # The last one is closed when its time is over, and by then the WebSocket was open for longer than that.
        for one in silent:
            with suppress(ConnectionError):
                assert one.recv(1) == b""
        websocket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            websocket.recv(1024)


def test_another_account_reaches_neither_the_code_server_nor_the_token(servers: Servers) -> None:
    said = run_as_nobody(
        """
def attempt(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__

def connect():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        return "connected"

def status():
    asking = http.client.HTTPConnection("127.0.0.1", int(sys.argv[3]), timeout=30)
    asking.request("POST", "/graphql", sys.argv[4], {"Content-Type": "application/json"})
    return asking.getresponse().status

print(json.dumps([
    attempt(connect),
    attempt(lambda: os.listdir(os.path.dirname(sys.argv[1]))),
    attempt(lambda: open(sys.argv[2]).read()),
    attempt(status),
]))
""",
        str(servers.code_server),
        str(servers.code_server.parents[1] / "token"),
        str(servers.port),
        QUERY,
    )
    assert json.loads(said) == ["PermissionError", "PermissionError", "PermissionError", 401]
