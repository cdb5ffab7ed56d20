"""Check signed requests at a server: who is refused, what is counted, and which bytes are signed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import time
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.http.app import HttpApp
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED
from receiver_runtime.receivers.http.requests.records import Plain
from receiver_runtime.receivers.http.requests.signatures import SignatureCheck
from receiver_runtime.receivers.http.routes import routes_of
from receiver_runtime.sources.fields.hmac_signature import Hmac
from receiver_runtime.sources.fields.secret import Secret
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, listening
from tests.unit.receiver_runtime.receivers.http.test_direct import Connection, request
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.unit.receiver_runtime.receivers.http.http_client import Listening

_SIGNED = Hmac(
    secrets=("env:A_HOOK", "env:AN_OLD_HOOK"),
    header="X-Signature",
    payload="{id}.{timestamp}.{body}",
    prefix="v1=",
    separator=",",
    id_from="header:X-Id",
    timestamp_from="signature:t",
)


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_HOOK", "a-secret")
    monkeypatch.setenv("AN_OLD_HOOK", "old-1\nold-2")


def signed(
    body: bytes, more: Mapping[str, str] = JSON, *, name: str = "1", ago: int = 0, secret: bytes = b"a-secret"
) -> dict[str, str]:
    at = int(time.time()) - ago
    digest = hmac.new(secret, b"%s.%d.%s" % (name.encode(), at, body), hashlib.sha256).hexdigest()
    return {**more, "X-Id": name, "X-Signature": f"t={at}, v1={'0' * 64}, v0=old, v1={digest}"}


def test_requests_are_taken_if_they_are_signed_and_counted_if_not(tmp_path: Path) -> None:
    body = b'{"a": 1}'
    with listening(tmp_path, verify=_SIGNED, key_from="header:x-id") as made:
        for secret in (b"a-secret", b"old-1", b"old-2"):
            name = secret.decode()
            assert made.post(body, signed(body, name=name, secret=secret)).json() == {"records": 1, "duplicates": 0}
        assert made.post(body, signed(body, name="old-1", ago=5)).json() == {"records": 0, "duplicates": 1}
        # A key of the standard's header means nothing here.
        assert made.post(body, signed(body, JSON | {"Idempotency-Key": "old-1"}, name="4")).json()["records"] == 1
        good = signed(body)
        for wrong, said in [
            (JSON, "X-Signature: there is none"),
            ({**good, "X-Signature": ""}, "X-Signature: there is none"),
            ({**good, "X-Signature": "v2=00"}, "it holds no signature that begins with 'v1='"),
            ({**good, "X-Signature": "v1=00"}, "it has 0 parts 't='"),
            ({**good, "X-Signature": good["X-Signature"] + ",t=1"}, "it has 2 parts 't='"),
            ({**good, "X-Signature": "t=now,v1=00"}, "'now' is no time"),
            ({name: value for name, value in good.items() if name != "X-Id"}, "X-Id: there is none"),
            ({**good, "X-Id": "2"}, "no signature there is good"),
            (signed(body, secret=b"another"), "no signature there is good"),
            (signed(b'{"a": 2}'), "no signature there is good"),
            (signed(body, ago=400), "s ago, tolerance is 300 s"),
            (signed(body, ago=-400), "s ahead, tolerance is 300 s"),
        ]:
            answer = made.post(body, wrong)
            assert (answer.status, answer.headers["content-type"]) == (401, "application/problem+json"), said
            assert said in answer.json()["detail"]
            assert answer.headers["www-authenticate"] == "Signature"
        eventually(lambda: "requests refused" in made.rig.reporter.reasons[-1], "the count")
        told = {message for _, message, _ in made.rig.reporter.events}
        assert {"requests were refused: 401 X-Signature", "requests were refused: 401 X-Id"} <= told
        assert made.bodies() == [body] * 4


def test_a_signed_request_needs_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpApp, "take", None)
    with listening(tmp_path, verify=_SIGNED, key_from="body:/id") as made, Connection(made) as connection:
        for body, more in ((b'{"id": "evt_1"}', JSON), (b'{"id": "evt_2"}\n' * 20, LINES)):
            head = "".join(f"{name}: {value}\r\n" for name, value in signed(body, more).items()).encode()
            for _ in range(2):
                # In one write: a head that comes alone is the application's.
                assert connection.ask(request(body, head)).startswith(b"HTTP/1.1 200 ")
        # A record that is there twice in a request is taken once, as one that was sent before.
        assert [row["id"] for row in made.rows()] == ["evt_1", "evt_2"]


@pytest.mark.parametrize("size", [10, 100_000, 2_000_000])
def test_bodies_of_any_size_are_checked_before_they_are_decompressed(tmp_path: Path, size: int) -> None:
    body = b"%0*d\n" % (size, 1)
    with listening(tmp_path, verify=_SIGNED, body="lines") as made:
        assert made.post(body, signed(body, LINES)).status == 200
        assert made.post(body, signed(body + b" ", LINES)).status == 401
        packed = gzip.compress(body)
        encoded = LINES | {"Content-Encoding": "gzip"}
        assert made.post(packed, signed(packed, encoded)).status == 200
        assert made.post(packed, signed(body, encoded)).status == 401
        # Not even looked at: these bytes are no gzip.
        assert made.post(b"no gzip", signed(body, encoded)).status == 401
        assert made.bodies() == [body.strip()] * 2


def test_a_body_is_not_read_if_its_head_is_not_signed(tmp_path: Path) -> None:
    with listening(tmp_path, verify=_SIGNED) as made:
        head = b"POST /v1/orders HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
        assert made.raw(head).startswith(b"HTTP/1.1 401 ")


def test_each_way_to_send_a_body_is_checked(tmp_path: Path) -> None:
    body = b'{"a": 1}'
    with listening(tmp_path, verify=_SIGNED, webhook_origins="hooks.example") as made:

        def ask(headers: Mapping[str, str], *, sent: bytes = body, more: str = "", query: str = "") -> int:
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + more
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (sent[:3], sent[3:])) + b"0\r\n\r\n"
            first = f"POST /v1/orders{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            found = made.raw(f"{first}{head}Transfer-Encoding: chunked\r\n\r\n".encode("latin-1") + chunks)
            return int(found.split(b" ")[1])

        good = signed(body)
        assert ask(good) == 200
        assert ask(good, query="?ack=buffered") == 202
        assert ask(good, sent=b'{"a": 2}') == 401
        assert ask(good, sent=b'{"a": 2}', query="?ack=buffered") == 401
        # Which of two counts is anyone's guess.
        assert ask(good, more=f"X-Signature: {good['X-Signature']}\r\n") == 400
        assert ask(good, more="X-Id: 1\r\n") == 400
        for signature in ("t=\xb2,v1=\xe9", "t=1700000000,v1=" + "\xff" * 64, "v1=," * 10_000):
            assert ask({**good, "X-Signature": signature}) in {400, 401}
        assert ask({**good, "X-Signature": "v1=00," * 100_000}) == 431
        assert made.ask("GET", "/v1/orders", headers=good).status == 405
        assert made.ask("HEAD", "/v1/orders", headers=good).status == 405
        # A question has no signature, and nothing is stored.
        permitted = made.ask("OPTIONS", "/v1/orders", headers={"WebHook-Request-Origin": "hooks.example"})
        assert (permitted.status, permitted.headers["webhook-allowed-origin"]) == (200, "hooks.example")
        assert made.post(body, signed(body, JSON | {"Origin": "https://evil.example"})).status == 403
        eventually(lambda: made.bodies() == [body] * 2, "the buffered record")


def test_no_secret_is_in_what_anyone_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
    key = base64.b64decode(text)
    monkeypatch.setenv("A_HOOK", f"whsec_{text}\n")
    verify = _SIGNED.model_copy(
        update={"secrets": (Secret("env:A_HOOK"),), "secret_encoding": "base64", "secret_prefix": "whsec_"}
    )
    body = b'{"a": 1}'
    good = signed(body, secret=key)
    seen = []
    with listening(tmp_path, verify=verify, headers=["X-Id"]) as made:
        source = Http(listen="127.0.0.1:0", verify=verify)
        seen += [repr(source), source.model_dump_json(), repr(SignatureCheck(verify)), f"{vars(source)}"]
        for headers in (
            good,
            JSON,
            {**good, "X-Id": "2"},
            signed(body, secret=b"another"),
            {**good, "X-Signature": ""},
        ):
            seen.append(f"{made.post(body, headers)}")
        seen.append(f"{made.ask('GET', '/openapi.json')}")
        eventually(lambda: "requests refused" in made.rig.reporter.reasons[-1], "the count")
        seen += [f"{made.rig.reporter.events}", f"{made.rig.reporter.reasons}", f"{made.rows()}"]
    seen += capfd.readouterr()
    at = good["X-Signature"].partition(",")[0].removeprefix("t=")
    # Nor is the signature that would have been good.
    wanted = hmac.new(key, f"2.{at}.{body.decode()}".encode(), hashlib.sha256).hexdigest()
    for secret in (text, key.decode(), key.hex(), text.rstrip("="), wanted):
        assert [what for what in seen if secret in what] == []
    # What was looked through has what it is about.
    assert "X-Signature" in seen[1]
    assert any("no signature there is good" in what for what in seen)


def test_tokens_and_signatures_are_both_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "a-token")
    with listening(tmp_path, verify=_SIGNED, tokens="env:A_TOKEN") as made:
        bearer = JSON | {"Authorization": "Bearer a-token"}
        assert made.post(b"1", signed(b"1")).headers["www-authenticate"] == "Bearer"
        assert made.post(b"1", bearer).headers["www-authenticate"] == "Signature"
        assert made.post(b"1", signed(b"1", bearer)).status == 200


def test_every_path_of_the_server_is_checked(tmp_path: Path) -> None:
    event = JSON | {"ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"}
    with listening(tmp_path, verify=_SIGNED, protocols=("cloudevents", "opentelemetry")) as made:
        assert made.post(b"1", event).status == 401
        assert made.post(b"{}", path="/v1/logs").status == 401
        assert made.post(b"1", signed(b"1", event)).status == 200
        assert made.ask("GET", "/ready").status == 200


def test_a_key_in_the_body_makes_retries_one_record(tmp_path: Path) -> None:
    body = b'{"id": "evt_1", "data": [1, 2]}'
    with listening(tmp_path, key_from="body:/id") as made:
        assert made.post(body).json() == {"records": 1, "duplicates": 0}
        packed = gzip.compress(body)
        assert made.post(packed, JSON | {"Content-Encoding": "gzip"}).json() == {"records": 0, "duplicates": 1}
        large = b'{"text": "%s", "id": "evt_2"}' % (b"x" * 300_000)
        assert made.post(large).json() == {"records": 1, "duplicates": 0}
        assert made.post(large).json() == {"records": 0, "duplicates": 1}
        # Without a key there, they are taken each time.
        assert [made.post(b'{"no": 1}').json()["records"] for _ in range(2)] == [1, 1]
        assert made.post(b'{"id": ""}').status == 400
        assert [row["id"] for row in made.rows()] == ["evt_1", "evt_2", None, None]
        answer = made.post(body, path="/v1/orders?ack=buffered")
        assert (answer.status, answer.json()["detail"][:8]) == (400, "body:/id")


def test_a_key_in_each_record_makes_one_record_of_those_that_are_sent_again(tmp_path: Path) -> None:
    with listening(tmp_path, key_from="body:/id") as made:
        assert made.post(b'[{"id": 1}, {"id": 2}, {"no": 0}]').json() == {"records": 3, "duplicates": 0}
        # In another array, as lines, or alone: a key is the record's, and not the request's.
        again = made.post(b'{"id": 2}\n{"id": 3}\n{"id": ""}\n', LINES).json()
        why = again.pop("first_dead_letter")
        assert again == {"records": 1, "duplicates": 1, "dead_letters": 1}
        assert why.startswith("record 3: body:/id: '' is no key")
        assert made.post(b'{"id": 3}').json() == {"records": 0, "duplicates": 1}
        assert [row["id"] for row in made.rows()] == ["1", "2", None, "3"]


def test_a_secret_that_changes_counts_from_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old\n", encoding="utf-8")
    verify = _SIGNED.model_copy(update={"secrets": (Secret(f"file:{file}"),)})

    def ask(made: Listening) -> list[int]:
        return [made.post(b"1", signed(b"1", secret=secret)).status for secret in (b"old", b"new")]

    with listening(tmp_path / "a", verify=verify) as made:
        assert ask(made) == [200, 401]
        file.write_text("new\nold\n", encoding="utf-8")
        assert ask(made) == [200, 401]
    with listening(tmp_path / "b", verify=verify) as made:
        assert ask(made) == [200, 200]


def test_a_key_in_a_form_makes_retries_one_record(tmp_path: Path) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with listening(tmp_path, key_from="form:MessageSid") as made:
        for body, counts in [
            (b"MessageSid=SM%2B1&Body=a", (1, 0)),
            (b"Body=b&MessageSid=SM%2B1", (0, 1)),
            # Without a key there, or with two, they are taken each time.
            *[
                (b"Body=c", (1, 0)),
                (b"Body=c", (1, 0)),
                (b"MessageSid=1&MessageSid=2", (1, 0)),
                (b"MessageSid=%ff", (1, 0)),
            ],
            (b"&" * 2000 + b"MessageSid=SM%2B1", (1, 0)),
        ]:
            found = made.post(body, form).json()
            assert (found["records"], found["duplicates"]) == counts, body[-30:]
        assert made.post(b"MessageSid=", form).status == 400
        assert [row["id"] for row in made.rows()] == ["SM+1", None, None, None, None, None]


def test_lines_that_are_cut_at_once_have_the_key_that_a_parser_finds() -> None:
    source = Http(listen="127.0.0.1:0", body="lines", key_from="body:/id")
    route = routes_of(source)[-1]
    body = b'{\n"id": "evt_1"%s\n}' % b"".join(b',\n"m%d": 1' % number for number in range(1000))
    parsed = route.parse([], body, source, UNLIMITED)
    assert isinstance(parsed, Plain)
    assert (len(parsed.bodies), parsed.key) == (1003, "evt_1")
    at_once = None if route.parse_at_once is None else route.parse_at_once([], body, source)
    assert at_once is None or at_once.key == "evt_1"


@pytest.mark.parametrize(("secret", "said"), [("no base64!", "is no base64"), ("\n \n", "there is no secret")])
def test_a_secret_that_can_not_be_used_is_the_receivers_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, said: str
) -> None:
    monkeypatch.setenv("A_HOOK", secret)
    verify = Hmac(secrets="env:A_HOOK", header="X-Signature", secret_encoding="base64")
    with rig(tmp_path / "blocks", make_receiver(Http(listen="127.0.0.1:0", verify=verify))) as made:
        eventually(lambda: any(said in detail for _, _, detail in made.reporter.events), "the reason")
        assert all("no base64!" not in f"{event}" for event in made.reporter.events)
