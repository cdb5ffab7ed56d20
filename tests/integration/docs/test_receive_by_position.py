"""Test the section on positions of docs/how-to/custom-receiver.md: its receivers, killed again and again."""

from __future__ import annotations

import random
import re
import socket
import threading
from pathlib import Path

import pytest

from forebay import Stream
from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import hold_unregistered, proxied, stop
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.custom.declaration import CustomSource
from tests.conformance.source_rig import SourceRig
from tests.integration.docs.paged_orders import PagedOrders
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.memory_positions import MemoryPositions
from tests.unit.receiver_runtime.rig import rig as memory_rig
from tests.unit.receiver_runtime.support import MemoryBlockLog, reaches
from tracker_store.connection.engine import connect

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "custom-receiver.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("\n## 6. ") :]
KILLS = 4


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working directory with the section's two receivers in it."""
    orders, _, feed = blocks("python")
    (tmp_path / "my_orders.py").write_text(orders, encoding="utf-8")
    (tmp_path / "my_feed.py").write_text(feed, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def declared(url: str) -> CustomSource:
    """Return the source of the section's declaration, at this address."""
    names: dict[str, object] = {}
    exec(blocks("python")[1], names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    source = stream.source
    assert isinstance(source, CustomSource)
    assert source.options == {"url": "http://127.0.0.1:8080"}
    return source.model_copy(update={"options": {"url": url, "limit": 20}})


def test_s09_w01_each_order_comes_once_through_kills_and_an_api_that_stops(
    database_url: str, tmp_path: Path, package: Path
) -> None:
    """Kill the process at work, with unregistered blocks, and in a request; stop the API, and start it again."""
    assert package == Path.cwd()
    with held_port() as port, PagedOrders(port) as api, proxied(database_url) as (proxy, url):
        rig = SourceRig.make(database_url, tmp_path / "rig", declared(api.url))
        try:
            api.growing.set()
            chance = random.Random(16)
            for number in range(KILLS):
                process = rig.start(assignment=number + 1, database_url=url)
                most = rig.registered() + chance.randrange(50, 400)
                eventually(reaches(rig.registered, most), "records")
                if number % 2:
                    # A block is stored, its position is not registered, and the process that knows it dies.
                    hold_unregistered(rig, proxy)
                process.kill()
                process.wait(60)
                proxy.away = False
            api.stop()
            process = rig.start(assignment=KILLS + 1, database_url=url)
            eventually(lambda: rig.said("reading failed") and rig.said("Connection refused"), "what is wrong")
            assert rig.states() == ["ACTIVE"]
            registered = rig.registered()
            api.start()
            eventually(reaches(rig.registered, registered + 100), "records of the API that is back")
            api.answers.clear()
            requests = api.requests
            eventually(lambda: api.requests > requests, "a request without an answer")
            process.kill()
            process.wait(60)
            api.answers.set()
            api.growing.clear()
            process = rig.start(assignment=KILLS + 2, database_url=url)
            eventually(lambda: rig.registered() == api.newest, "all orders")
            stop(process)
            rows = rig.rows()
            assert [row["id"] for row in rows] == list(range(1, api.newest + 1))
            assert all(row["item"] == f"item {row['id']}" for row in rows)
            assert rig.failed_checks() == []
            assert rig.registered() == len(rows)
            with connect(rig.engine) as connection:
                [progress] = connection.exec_driver_sql(blocks("sql")[0]).all()
            assert tuple(progress)[:3] == ("records", "all", api.newest)
        finally:
            rig.close()
            print(rig.logs()[-3000:])  # noqa: T201  shown where the test fails


class Feed:
    """The server of the section's other receiver: it numbers prices, and sends them again from a number."""

    def __init__(self, most: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._most = most
        self.asked: list[int] = []
        self.done: list[int] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as requests:
                first = int(requests.readline().removeprefix(b"from "))
                self.asked.append(first)
                # It breaks off in the middle of a line, except for the last connection.
                upto = min(first + 7, self._most)
                connection.sendall(b"".join(b"%d %d.5\n" % (number, number) for number in range(first, upto)))
                connection.sendall(b"" if upto == self._most else b"%d 9" % upto)
                if upto == self._most:
                    for line in requests:
                        self.done.append(int(line.removeprefix(b"done ")))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)


def test_s09_a_feed_is_read_again_from_the_registered_number_and_told_what_is_done(
    tmp_path: Path, package: Path
) -> None:
    assert package == Path.cwd()
    feed = Feed(20)
    log = MemoryBlockLog()
    positions = MemoryPositions(log)
    source = CustomSource(receiver="my_feed:FeedReceiver", options={"host": "127.0.0.1", "port": feed.port})
    try:
        with memory_rig(tmp_path / "rig", make_receiver(source), log=log, positions=positions) as made:
            eventually(lambda: 20 in feed.done, "the last acknowledgement")
            assert made.stop().drained
            assert [int(value) for value in made.values()] == list(range(20))
            assert made.reporter.reasons[-1] == f"connected to ('127.0.0.1', {feed.port}), from number {feed.asked[-1]}"
    finally:
        feed.close()
    assert feed.asked[0] == 0
    assert feed.asked == sorted(feed.asked)
