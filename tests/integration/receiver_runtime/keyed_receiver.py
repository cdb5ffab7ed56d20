"""A receiver whose senders retry until they are answered: on a Unix socket, one request per line."""

from __future__ import annotations

import json
import os
import socket
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
from receiver_runtime.supervisor.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from receiver_runtime.receivers.keyed_blocks import HandedOver


class KeyedReceiver(Receiver):
    """Receive ``{"number": n, "keys": [...], "values": [...]}`` and answer with the outcome."""

    columns: ClassVar[Sequence[tuple[str, str]]] = (("value", "string"),)

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = Path(directory)
        self._hand_over: KeyedHandOver
        self._listener: socket.socket

    def on_start(self) -> None:
        self._hand_over = KeyedHandOver(self.supervisor)
        path = self._directory / f"{os.getpid()}.socket"
        self._listener = socket.socket(socket.AF_UNIX)
        # The socket gets its final name when it listens: a client that sees the name can connect.
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        self._listener.bind(str(new))
        self._listener.listen()
        new.rename(path)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def on_stop(self) -> None:
        self._listener.close()
        self._hand_over.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                batch = pa.record_batch([pa.array(request["values"], pa.string())], names=["value"])
                future = self._hand_over.submit(batch, request["keys"])
                future.add_done_callback(partial(answer, connection, request["number"]))


def answer(connection: socket.socket, number: int, done: Future[HandedOver]) -> None:
    error = done.exception()
    became = done.result(60) if error is None else None
    result = {"error": str(error)} if became is None else {"became": (became.added, became.duplicates)}
    connection.sendall(json.dumps({"number": number, **result}).encode() + b"\n")


class Sender:
    """Send requests without waiting for answers, and keep the answers."""

    def __init__(self, directory: Path, pid: int) -> None:
        self.path = directory / f"{pid}.socket"
        self._connection = socket.socket(socket.AF_UNIX)
        self.answers: dict[int, dict[str, Any]] = {}
        self._numbers = 0

    def __enter__(self) -> Self:
        self._connection.connect(str(self.path))
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, values: Sequence[str]) -> int:
        """Send the values, each with itself as its key; return the request's number."""
        self._numbers += 1
        request = {"number": self._numbers, "keys": values, "values": values}
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        return self._numbers

    def became(self) -> tuple[int, int]:
        """Return how many rows of all answered requests were added, and how many were left out."""
        found = [one["became"] for one in list(self.answers.values()) if "became" in one]
        return sum(added for added, _ in found), sum(duplicates for _, duplicates in found)

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    answered = json.loads(line)
                    self.answers[answered.pop("number")] = answered
        except (OSError, ValueError):
            return
