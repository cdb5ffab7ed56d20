"""Run a typed stream on a real receiver process, with records of which some do not fit, and place it as a tracker."""

from __future__ import annotations

import json
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.sources.records.json_records import Json
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tests.support.driver_log.declared_records import declare_records
from tests.support.polling import joined
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = b"""{"item": "tea", "pieces": 2}
{"pieces": 3}
{"item": "pot", "pieces": 1.5}
{"item": null, "pieces": 4}
"""


class Orders(ReceiverRig):
    """A typed stream that has taken `LINES`, of which three do not fit, in one row of dead letters."""

    @classmethod
    def begun(cls, database_url: str, root: Path, *, block_keys: tuple[str, ...] = ()) -> Orders:
        """Start the stream `lines`, and send it the lines."""
        rig = cls.make(database_url, root, Http(listen="127.0.0.1:0").model_dump(mode="json"))
        assert isinstance(rig, Orders)
        rig.block_keys = block_keys
        rig.declare("item STRING NOT NULL, pieces BIGINT")
        rig.start()
        asked = urllib.request.Request(
            f"http://{rig.listening()}/v1/lines", LINES, {"Content-Type": "application/x-ndjson"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.loads(answer.read())["dead_letters"] == 3
        return rig

    def declare(self, ddl: str) -> None:
        with connect(self.engine) as connection:
            declare_records(connection, Json(ddl))

    def listening(self) -> str:
        eventually(lambda: self.state()[0] == "ACTIVE" and "listening on" in self.state()[1], "listening")
        return self.state()[1].partition("listening on ")[2].split()[0]

    def place_again(self, *, first: str = "") -> Any:  # noqa: ANN401  a process
        [(assignment,)] = self.execute("SELECT assignment FROM forebay.receivers")
        self.assign(assignment)
        return self.start(assignment, first=first)

    @contextmanager
    def tracker(self, *, first: str = "") -> Iterator[list[Any]]:
        """Place the receiver when it is restarted, as the tracker does, once."""
        [(before,)] = self.execute("SELECT assignment FROM forebay.receivers")
        made: list[Any] = []

        def work() -> None:
            eventually(lambda: self.execute("SELECT assignment FROM forebay.receivers") != [(before,)], "a restart")
            made.append(self.place_again(first=first))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield made
        finally:
            joined(thread)
