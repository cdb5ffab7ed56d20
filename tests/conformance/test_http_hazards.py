"""Hazards that only HTTP has: keys across take-overs and receivers, and requests answered before they were safe."""

from __future__ import annotations

import http.client
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from forebay.testing.receiver_processes import DEADLINE_SECONDS, eventually
from forebay.testing.sources import proxied, stop
from receiver_runtime.receivers.http.declaration import Http

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.testing.source_rig import SourceRig

JSON = {"Content-Type": "application/json"}


def port_of(rig: SourceRig, number: int = 0, *, after: int = 0) -> int:
    """Return the port of a receiver's newest process, once `after` earlier processes have listened too."""

    def said() -> list[str]:
        return [message for _, message, _ in rig.events(number) if message.startswith("listening on ")]

    eventually(lambda: len(said()) > after, "listening")
    return int(said()[-1].rpartition(":")[2])


def post(port: int, body: bytes, *, path: str = "/v1/s0", **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    try:
        connection.request(
            "POST", path, body, JSON | {name.replace("_", "-"): value for name, value in headers.items()}
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def bodies(rig: SourceRig) -> list[bytes]:
    return sorted(row["body"] for row in rig.rows())


def test_a_key_deduplicates_after_a_kill_and_across_receivers(make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"), receivers=2)
    first = rig.start(0)
    assert post(port_of(rig), b"[1, 2]", idempotency_key="k") == (200, {"records": 2, "duplicates": 0})
    first.kill()
    first.wait(60)
    again = rig.start(0)
    other = rig.start(1)
    assert post(port_of(rig, after=1), b"[1, 2]", idempotency_key="k") == (200, {"records": 0, "duplicates": 2})
    assert post(port_of(rig, 1), b"[1, 2]", idempotency_key="k") == (200, {"records": 0, "duplicates": 2})
    # A path of another stream is refused.
    assert post(port_of(rig, 1), b"1", path="/v1/s1")[0] == 404
    assert bodies(rig) == [b"1", b"2"]
    stop(again)
    stop(other)


@pytest.mark.parametrize("ack", ["buffered", "registered"])
def test_salvage_registers_answered_records_and_leaves_the_others_to_the_sender(
    make_rig: Callable[..., SourceRig], database_url: str, ack: str
) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"))
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        port = port_of(rig)
        assert post(port, b'"before"')[0] == 200
        proxy.away = True
        proxy.cut()
        statuses: list[int] = []

        def send() -> None:
            try:
                statuses.append(post(port, b'"held"', path=f"/v1/s0?ack={ack}")[0])
            except OSError:
                return

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        eventually(lambda: rig.stored_frames() == 2, "a stored block that is not registered")
        # The block may be stored before the answer is written.
        eventually(lambda: statuses or ack == "registered", "the answer of what is only to be buffered")
        process.kill()
        process.wait(60)
        sender.join(DEADLINE_SECONDS)
    assert rig.registered() == 1
    second = rig.start()
    port = port_of(rig, after=1)
    if ack == "buffered":
        assert statuses == [202]
        assert rig.said("1 blocks, 1 records registered")
        assert bodies(rig) == [b'"before"', b'"held"']
    else:
        assert statuses == []
        assert rig.said("1 blocks, 1 records left to the sender")
        assert bodies(rig) == [b'"before"']
        assert post(port, b'"held"')[0] == 200
        assert bodies(rig) == [b'"before"', b'"held"']
    assert rig.failed_checks() == []
    stop(second)
