"""Check that nothing that people or programs read has a secret of web hooks, or a signature that would be good."""

from __future__ import annotations

import base64
import http.client
import json
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay import ConsoleSink, Pipeline, Stream
from forebay.cli.main import app
from forebay.testing.receiver_processes import eventually
from forebay.testing.source_rig import SourceRig
from forebay_contrib.web_hooks.sns import Sns
from orchestration.declarations.apply import apply
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.sources.fields.verification import WEB_HOOKS
from receiver_runtime.sources.plugins import registered
from tests.conformance.test_http_hazards import port_of
from tests.integration.orchestration.test_tracker_http import ask as ask_page
from tests.integration.orchestration.test_tracker_http import serving
from tests.support.driver_log.all_rows import all_rows
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, Answer, listening
from tests.unit.receiver_runtime.receivers.signing import SECRET, SIGNED, TOKEN, signature_headers
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from receiver_runtime.sources.fields.hmac_signature import Hmac

SENDER = "a-token-of-a-sender"
# As they are, and in the forms in which code holds them.
HIDDEN = sorted(
    {
        form
        for secret in (SECRET, TOKEN, SENDER)
        for form in (
            secret.encode(),
            secret.encode().hex().encode(),
            base64.b64encode(secret.encode()).rstrip(b"="),
        )
    }
    | {base64.b64decode(SECRET), base64.b64decode(SECRET).hex().encode()}
)
BODIES = (b'{"id": 1}', b'{"id": 2}\n{"no": \n{"id": ""}')


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"A_HOOK": SECRET, "A_TOKEN": TOKEN, "A_SENDER": SENDER}.items():
        monkeypatch.setenv(name, value)


def source_of(declared: Hmac) -> Http:
    return Http(listen="127.0.0.1:0", verify=declared, tokens="env:A_SENDER", key_from="body:/id")


def sent(declared: Hmac, ask: Callable[[str, str, bytes, Mapping[str, str]], Answer]) -> tuple[list[bytes], set[bytes]]:
    """Send requests that are good, and all that is refused; return the answers, and the signatures that were good."""
    answers, good = [], set()
    token = {"Authorization": f"Bearer {SENDER}"}
    for body, kind in zip(BODIES, (JSON, LINES), strict=True):
        query, signature = signature_headers(declared, body)
        good.add(
            signature[declared.header][
                signature[declared.header].index(declared.prefix) + len(declared.prefix) :
            ].encode()
        )
        path = f"/v1/orders?{query}"
        answer = ask("POST", path, body, {**kind, **signature, **token})
        assert answer.status == 200, answer.body
        wrong = {**signature, declared.header: signature[declared.header][:-4] + "0000"}
        refused = [
            ask("POST", path, body, {**kind, **wrong, **token}),
            ask("POST", path, body + b" ", {**kind, **signature, **token}),
            ask("POST", path, body, {**kind, **token}),
            ask("POST", path, body, {**kind, **signature, "Authorization": f"Bearer x{SENDER[:-4]}"}),
        ]
        assert {one.status for one in refused} == {401}
        answers += [answer, *refused]
    answers += [
        ask("GET", "/v1/orders?hub.mode=subscribe&hub.verify_token=x&hub.challenge=c", b"", token),
        ask("GET", "/openapi.json", b"", token),
        ask("GET", "/ready", b"", {}),
    ]
    return [answer.body + json.dumps(dict(answer.headers)).encode() for answer in answers], good


def check_hidden(places: Mapping[str, bytes]) -> None:
    for place, content in places.items():
        assert content, place
        assert [secret for secret in HIDDEN if secret in content] == [], place


def test_each_way_to_verify_is_in_these_tests() -> None:
    # What SNS signs is checked by its certificate: it has no secret.
    assert set(SIGNED) - {"hmac"} | {"sns"} == set(registered(WEB_HOOKS))
    assert "env:" not in Sns(topics="arn:aws:sns:us-east-1:123456789012:a").model_dump_json()


@pytest.mark.parametrize("name", SIGNED)
def test_a_receiver_shows_no_secret(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with listening(tmp_path, **dict(source_of(SIGNED[name]))) as made:
        answers, good = sent(SIGNED[name], made.ask)
        eventually(lambda: len(made.rig.reporter.events) >= 4, "the events of what was refused")
        said = repr((made.rig.reporter.events, made.rig.reporter.reasons, made.rig.log))
    stored = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    assert BODIES[0] in stored
    captured = capfd.readouterr()
    places = {"answers": b"".join(answers), "reports": said.encode(), "files": stored}
    check_hidden(places)
    check_hidden({"logs": f"{captured.out}{captured.err}.".encode()})
    assert not [one for one in good if any(one in content for content in places.values())]


@pytest.fixture
def rig(database_url: str, tmp_path: Path) -> Iterator[SourceRig]:
    made = SourceRig.make(database_url, tmp_path / "rig", source_of(SIGNED["meta"]), stream="orders")
    yield made
    made.close()


def test_neither_the_driver_log_nor_pages_nor_commands_show_a_secret(
    rig: SourceRig, database_url: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    pipeline = Pipeline("hooks", interval="10s")
    for name, declared in SIGNED.items():
        stream = Stream(f"hooks_{name}", source_of(declared))
        pipeline.output(inputs=[stream], sink=ConsoleSink(), name=f"of_{name}")(lambda hooks: hooks)
    with connect(rig.engine) as connection:
        apply(connection, [pipeline])
    rig.start()
    port = port_of(rig)

    def ask(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request(method, path, body or None, dict(headers))
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers.items()), response.read())

    answers, good = sent(SIGNED["meta"], ask)
    eventually(lambda: rig.said("requests were refused"), "the events of what was refused")
    eventually(lambda: rig.dead_letters() == 2, "the dead letters")
    with connect(rig.engine) as connection:
        log = all_rows(connection)
    assert "env:A_HOOK" in log
    assert "requests were refused: 401 X-Hub-Signature-256" in log
    with serving(rig.engine, home) as url:
        paths = ("/status", "/status/pipelines/hooks", "/metrics", "/health", "/api/v1/applications")
        pages = "".join(ask_page(url, path).text for path in paths)
    runner = CliRunner()
    said = ""
    for command in ("status", "events", "receivers list", "streams list", "pipelines list", "dead-letters list"):
        for as_json in ([], ["--json"]):
            answer = runner.invoke(app, [*command.split(), *as_json])
            assert answer.exit_code == 0, answer.output
            said += answer.output
    stored = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    assert "requests were refused" in pages + said
    places = {
        "answers": b"".join(answers),
        "driver log": log.encode(),
        "pages": pages.encode(),
        "commands": said.encode(),
        "blocks, dead letters and logs": stored,
    }
    check_hidden(places)
    assert not [one for one in good if any(one in content for content in places.values())]
    assert os.environ["A_HOOK"] == SECRET
