"""Check which requests reach Dagster's webserver: those of its own pages and of programs, and no others."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from orchestration.dagster_instance.webserver_access import WebserverAccess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Message, Receive, Scope, Send

HOST = "127.0.0.1:3000"
JSON = {"Content-Type": "application/json"}
TOKEN = "to/ken+1"
# What a browser sends for a page of another site.
CROSS = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}
LINK = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Accept": "text/html",
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str
    reached: bool


async def _ask(
    method: str, target: str, headers: list[tuple[str, str]], *, token: str | None, websocket: bool
) -> Answer:
    reached = False
    sent: list[Message] = []

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        nonlocal reached
        reached = True
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"dagster"})
        else:
            await send({"type": "websocket.accept"})

    async def receive() -> Message:
        return {"type": "websocket.connect"} if websocket else {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    path, _, query = target.partition("?")
    scope: Scope = {
        "type": "websocket" if websocket else "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    if not websocket:
        scope["method"] = method
    await WebserverAccess(app, token=token, port=3000)(scope, receive, send)
    if websocket:
        assert reached == (sent[0]["type"] == "websocket.accept")
        return Answer(101 if reached else 403, {}, sent[0].get("reason", ""), reached)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, sent[1].get("body", b"").decode(), reached)


def ask(
    method: str = "POST",
    target: str = "/graphql",
    headers: Mapping[str, str] = JSON,
    *,
    hosts: tuple[str, ...] = (HOST,),
    token: str | None = None,
    websocket: bool = False,
) -> Answer:
    given = [*(("Host", host) for host in hosts), *headers.items()]
    return asyncio.run(_ask(method, target, given, token=token, websocket=websocket))


@pytest.mark.parametrize("host", [HOST, "localhost:3000", "LocalHost", "[::1]:3000", "127.0.0.2"])
def test_programs_that_ask_this_machine_are_let_through(host: str) -> None:
    assert ask(hosts=(host,)).reached


@pytest.mark.parametrize(
    "host", ["evil.example:3000", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.2:3000", "", "[::1"]
)
def test_a_name_that_resolves_to_this_machine_is_refused(host: str) -> None:
    answer = ask("GET", "/", {}, hosts=(host,))
    assert (answer.status, answer.reached) == (403, False)
    assert "127.0.0.1 or localhost" in answer.body


@pytest.mark.parametrize("hosts", [(), (HOST, HOST), (HOST, "evil.example")])
def test_one_host_is_required(hosts: tuple[str, ...]) -> None:
    assert (ask(hosts=hosts).status, ask(hosts=hosts).reached) == (400, False)


@pytest.mark.parametrize(
    "headers",
    [
        JSON | CROSS,
        JSON | {"Origin": "https://evil.example"},
        JSON | {"Origin": "null"},
        # Another server on this machine, which another account may run.
        JSON | {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:8000"},
        JSON | {"Origin": "http://127.0.0.1:8000"},
        JSON | {"Origin": "http://localhost:3000"},
        JSON | LINK,
    ],
)
def test_other_pages_are_refused(headers: Mapping[str, str]) -> None:
    assert (ask(headers=headers).status, ask(headers=headers).reached) == (403, False)


@pytest.mark.parametrize("headers", [CROSS, LINK | {"Sec-Fetch-Dest": "iframe"}, LINK | {"Sec-Fetch-Mode": "no-cors"}])
def test_other_pages_can_neither_load_nor_frame_a_page(headers: Mapping[str, str]) -> None:
    assert ask("GET", "/runs", headers).status == 403


def test_links_and_own_pages_are_let_through() -> None:
    assert ask("GET", "/runs/abc", LINK).reached
    assert ask("GET", "/", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}).reached
    own = JSON | {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"}
    assert ask(headers=own).reached
    assert ask("GET", "/", {}).headers["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain; x=application/json",
        "text/plain",
        "application/json-seq",
        "application/json; x=y",
        "application/graphql",
        "application/x-www-form-urlencoded",
        "",
    ],
)
def test_other_content_types_are_refused(kind: str) -> None:
    for headers in ({"Content-Type": kind}, {}):
        answer = ask(headers=headers)
        assert (answer.status, answer.reached) == (415, False)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", 'application/json;charset="UTF-8"']
)
def test_json_is_taken(kind: str) -> None:
    assert ask(headers={"Content-Type": kind}).reached


def test_a_query_is_never_executed_by_get() -> None:
    assert ask("GET", "/graphql?query=mutation", {}).status == 405
    assert ask("GET", "/graphql?query=mutation", {"Accept": "application/json"}).status == 405
    assert ask("GET", "/graphql", {"Accept": "text/html"}).reached
    assert ask("DELETE", "/").status == 405
    assert ask("OPTIONS", "/graphql", {}).status == 405


def test_a_websocket_of_another_page_is_refused() -> None:
    assert ask(headers={}, websocket=True).reached
    assert ask(headers={"Origin": f"http://{HOST}"}, websocket=True).reached
    assert not ask(headers={"Origin": "https://evil.example"}, websocket=True).reached
    assert not ask(headers={}, hosts=("evil.example",), websocket=True).reached
    assert not ask(headers={}, websocket=True, token=TOKEN).reached


def test_a_token_is_demanded_and_a_link_with_it_sets_a_cookie() -> None:
    assert ask(token=TOKEN).status == 401
    assert ask("GET", "/", {}, token=TOKEN).status == 401
    assert ask("GET", "/server_info", {}, token=TOKEN).status == 401
    assert ask("GET", "/?token=wrong", {}, token=TOKEN).status == 401
    assert ask(headers=JSON | {"Authorization": "Bearer wrong"}, token=TOKEN).status == 401
    assert ask(headers=JSON | {"Authorization": f"Bearer {TOKEN}"}, token=TOKEN).reached
    link = ask("GET", f"/runs?a=1%202&token={quote(TOKEN, safe='')}&b=", LINK, token=TOKEN)
    assert (link.status, link.reached) == (303, False)
    assert link.headers["location"] == "/runs?a=1+2&b="
    assert link.headers["cache-control"] == "no-store"
    cookie, *attributes = link.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(attributes)
    assert TOKEN not in cookie
    for sent in (cookie, f"other=1; {cookie}", f"{cookie.partition('=')[0]}=stale; {cookie}"):
        assert ask(headers=JSON | {"Cookie": sent}, token=TOKEN).reached
    assert ask(headers={"Cookie": cookie}, websocket=True, token=TOKEN).reached
    # The cookie is no way round the other checks, and ends with the token.
    assert ask(headers=JSON | CROSS | {"Cookie": cookie}, token=TOKEN).status == 403
    assert ask(headers=JSON | {"Cookie": cookie}, token="another").status == 401


def test_a_link_leads_to_no_other_host() -> None:
    link = ask("GET", f"//evil.example/?token={quote(TOKEN, safe='')}", LINK, token=TOKEN)
    assert (link.status, link.headers["location"]) == (303, "/evil.example/")


def test_without_a_token_nobody_is_asked_for_one() -> None:
    assert ask("GET", "/?token=any", {}).reached


@pytest.mark.parametrize("target", ["/logs/%00", "/logs/%FC", "/runs/%ED%A0%80", "/?a=%00", "/graphql?%FF=1", "/%00"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_target_that_is_no_text_is_refused(method: str, target: str) -> None:
    answer = ask(method, target)
    assert (answer.status, answer.reached) == (400, False)


@pytest.mark.parametrize(("error", "status"), [(ValueError(), 404), (AttributeError(), 404), (OSError(), 500)])
@pytest.mark.parametrize("path", ["/logs/a", "/download_debug/a"])
def test_a_name_that_nothing_has_is_404_and_a_fault_stays_500(path: str, error: Exception, status: int) -> None:
    sent: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        # As Starlette does with an exception.
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"Internal Server Error"})
        raise error

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", HOST.encode())],
    }

    async def go() -> None:
        with contextlib.suppress(OSError):
            await WebserverAccess(app, token=None, port=3000)(scope, None, send)  # type: ignore[arg-type]

    asyncio.run(go())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == status
