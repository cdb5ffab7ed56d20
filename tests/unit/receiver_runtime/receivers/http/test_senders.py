"""Check that one sender can't pass for another: its pages, its host, its tokens and its idempotency keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, Listening, listening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = {"Content-Type": "text/plain"}
EVENT = {**JSON, "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """Run a server without tokens, which takes nothing in these tests except what each says."""
    with listening(tmp_path_factory.mktemp("http"), webhook_origins=["hooks.example", "app.example:8443"]) as made:
        yield made


def bearer(token: str, key: str | None = None) -> dict[str, str]:
    return {**JSON, "Authorization": f"Bearer {token}"} | ({} if key is None else {"Idempotency-Key": key})


@pytest.mark.parametrize("path", ["/v1/orders", "/health", "/ready", "/openapi.json", "/none"])
@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: a\r\n", b"Host: a\r\nHost: b\r\n"])
def test_a_request_has_one_host(one: Listening, path: str, hosts: bytes) -> None:
    before = len(one.bodies())
    method = b"POST" if path == "/v1/orders" else b"GET"
    found = one.raw(b"%s %s HTTP/1.1\r\n%sContent-Length: 1\r\n\r\n1" % (method, path.encode(), hosts))
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"Host: it came" in found
    assert b"connection: close" in found
    assert len(one.bodies()) == before


def test_http_1_0_needs_no_host(one: Listening) -> None:
    assert one.raw(b"GET /ready HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1", "file://", "evil.example", ""]
)
def test_a_page_of_another_site_is_refused(one: Listening, origin: str) -> None:
    before = len(one.bodies())
    answer = one.post(b"1", TEXT | {"Origin": origin})
    assert answer.status == 403
    assert "set tokens, or name the site in webhook_origins" in answer.json()["detail"]
    assert len(one.bodies()) == before


def test_a_name_that_resolves_to_this_machine_is_refused(one: Listening) -> None:
    """Check DNS rebinding: the page asks for its own name, which is this machine's address by now."""
    assert one.post(b"1", TEXT | {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}).status == 403


def test_named_sites_own_pages_and_programs_may_send(one: Listening) -> None:
    own = f"127.0.0.1:{one.port}"
    for origin in (f"http://{own}", "https://hooks.example", "https://APP.example:8443"):
        assert one.post(b"1", TEXT | {"Origin": origin}).status == 200, origin
    assert (
        one.post(b"1", TEXT | {"Origin": f"http://localhost:{one.port}", "Host": f"localhost:{one.port}"}).status == 200
    )
    # Behind a proxy a program asks for the proxy's name.
    assert one.post(b"1", TEXT | {"Host": "orders.example"}).status == 200


def test_a_source_for_other_machines_takes_pages_of_its_own_name(tmp_path: Path) -> None:
    with listening(tmp_path, listen="0.0.0.0:0") as made:
        own = {"Host": "orders.example", "Origin": "https://orders.example"}
        assert made.post(b"1", TEXT | own).status == 200
        assert made.post(b"1", TEXT | own | {"Origin": "https://evil.example"}).status == 403


def test_all_sites_may_send_if_the_source_says_so(tmp_path: Path) -> None:
    with listening(tmp_path, webhook_origins="*") as made:
        assert made.post(b"1", TEXT | {"Origin": "https://evil.example"}).status == 200


def test_where_there_are_tokens_the_token_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "a")
    with listening(tmp_path, tokens="env:A_TOKEN") as made:
        assert made.post(b"1", bearer("a") | {"Origin": "https://shop.example"}).status == 200
        assert made.post(b"1", JSON | {"Origin": "https://shop.example"}).status == 401


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    """Run a server of two senders, of which the second is changing its token."""
    monkeypatch.setenv("A_TOKEN", "a")
    (tmp_path / "token").write_text("b-new\n\nb-old\n")
    with listening(tmp_path / "blocks", tokens=["env:A_TOKEN", f"file:{tmp_path / 'token'}"]) as made:
        yield made


def test_a_sender_cant_use_up_the_keys_of_another(two: Listening) -> None:
    assert two.post(b"[1, 2]", bearer("a", "k")).json() == {"records": 2, "duplicates": 0}
    assert two.post(b"3", bearer("b-new", "k")).json() == {"records": 1, "duplicates": 0}
    assert two.post(b"[1, 2]", bearer("a", "k")).json() == {"records": 0, "duplicates": 2}
    assert two.bodies() == [b"1", b"2", b"3"]
    # What readers see is the sender's key.
    assert {row["id"] for row in two.rows()} == {"k"}
    for token in ("a", "b-new", "b-old"):
        answer = two.post(b"{}", EVENT | bearer(token)).json()
        assert answer["records"] == (token != "b-old"), token


def test_both_tokens_of_a_sender_share_its_keys(two: Listening) -> None:
    assert two.post(b"1", bearer("b-old", "k")).json() == {"records": 1, "duplicates": 0}
    assert two.post(b"1", bearer("b-new", "k")).json() == {"records": 0, "duplicates": 1}


def test_keys_that_were_registered_while_there_were_no_tokens_are_known(two: Listening, tmp_path: Path) -> None:
    with listening(tmp_path / "open") as without:
        assert without.post(b"[1, 2]", JSON | {"Idempotency-Key": "before"}).json() == {"records": 2, "duplicates": 0}
        assert without.post(b"{}", EVENT).json() == {"records": 1, "duplicates": 0}
        two.log.keys |= without.log.keys
    assert two.post(b"[1, 2]", bearer("a", "before")).json() == {"records": 0, "duplicates": 2}
    assert two.post(b"{}", EVENT | bearer("b-new")).json() == {"records": 0, "duplicates": 1}
    assert two.post(b"1", bearer("a", "after")).json() == {"records": 1, "duplicates": 0}
    assert two.post(b"1", bearer("a", "after")).json() == {"records": 0, "duplicates": 1}
    assert two.bodies() == [b"1"]


def test_dead_letters_of_a_known_request_are_not_stored_again(two: Listening) -> None:
    two.log.keys.add("before")
    for key, records in (("before", 0), ("k", 1), ("k", 0)):
        answer = two.post(b"1\n{", LINES | bearer("a", key) | LINES).json()
        assert (answer["records"], answer["dead_letters"]) == (records, 1)
    assert len(two.rig.rows.dead_letters) == 1


def test_a_secret_without_a_token_is_reported(tmp_path: Path) -> None:
    from receiver_runtime.process.receiver_registry import make_receiver  # noqa: PLC0415
    from receiver_runtime.receivers.http.declaration import Http  # noqa: PLC0415
    from tests.unit.receiver_runtime.rig import rig  # noqa: PLC0415
    from tests.unit.receiver_runtime.support import eventually  # noqa: PLC0415

    (tmp_path / "token").write_text("\n \n")
    source = Http(listen="127.0.0.1:0", tokens=(f"file:{tmp_path / 'token'}",))
    with rig(tmp_path / "blocks", make_receiver(source)) as made:
        eventually(lambda: any("there is no token" in detail for _, _, detail in made.reporter.events), "the reason")
