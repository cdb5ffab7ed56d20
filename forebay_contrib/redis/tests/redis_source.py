"""Redis Streams for the conformance suite and its own tests: stream keys, numbered entries, and the expected output."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

from forebay.testing.sending import Sending
from forebay_contrib.redis.declaration import RedisStreams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.source_rig import SourceRig
    from forebay_contrib.redis.tests.redis import RedisServer

Fields = dict[bytes, bytes]


class RedisKeys:
    """Two stream keys of its own on a server."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        name = uuid.uuid4().hex[:10]
        self.names = [f"s-{name}", f"t-{name}"]
        self.client = server.client()
        self._number = 0
        self._acknowledged: set[bytes] = set()

    def source(self, **changes: Any) -> RedisStreams:  # noqa: ANN401  fields of the source
        given: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.server.port,
            "streams": self.names,
            "group": f"g-{self.names[0]}",
            "claim_after": "2s",
            "connect_timeout": "2s",
            **changes,
        }
        return RedisStreams(**given)

    def send(self, records: int) -> None:
        """Send numbered entries to both in turn; retry after a lost connection, so a number may be there twice."""
        first, self._number = self._number, self._number + records
        while True:
            try:
                with self.client.pipeline(transaction=False) as pipeline:
                    for number in range(first, first + records):
                        pipeline.xadd(self.names[number % 2], {b"n": b"%d" % number})
                    pipeline.execute()
            except redis.ConnectionError:
                time.sleep(0.05)
            else:
                self._acknowledged.update(b"%d" % number for number in range(first, first + records))
                return

    def add(self, fields: Fields, stream: int = 0, entry_id: str = "*") -> str:
        """Add one entry; return its id."""
        answer: Any = self.client.xadd(self.names[stream], fields, entry_id)  # type: ignore[arg-type]
        return str(answer.decode())

    def there(self) -> dict[tuple[str, str], Fields]:
        """Return every entry on the server."""
        return {(name, entry_id.decode()): fields for name in self.names for entry_id, fields in self._entries(name)}

    def _entries(self, name: str) -> Any:  # noqa: ANN401  as the library has them
        return self.client.xrange(name)

    def pending(self) -> int:
        """Return the number of entries that were delivered and are not acknowledged."""
        found: Any = [self.client.xpending(name, self.source().group) for name in self.names]
        return sum(one["pending"] for one in found)

    def send_odd(self) -> int:
        odd: list[Fields] = [
            {b"": b""},
            {b"bytes": b"\0\xff", "ü".encode(): "ü".encode()},
            {b"large": b"y" * 900_000},
            {b"%d" % n: b"x" for n in range(1000)},
        ]
        for fields in odd:
            self.add(fields)
        return len(odd)

    def waiting(self) -> set[tuple[str, str]]:
        """Return the entries that were delivered and are not acknowledged."""
        found: set[tuple[str, str]] = set()
        for name in self.names:
            entries: Any = self.client.xpending_range(name, self.source().group, "-", "+", 100_000)
            found |= {(name, one["message_id"].decode()) for one in entries}
        return found

    def sending(self) -> Sending:
        return Sending(lambda: self.send(50))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.kill()
        yield
        self.server.start()

    def all_came(self, rig: SourceRig) -> bool:
        lengths: Any = [self.client.xlen(name) for name in self.names]
        return rig.registered() >= int(sum(lengths))

    def check(self, rig: SourceRig) -> None:
        """Check that each entry came once, with its fields, and is acknowledged or left for the next reader."""
        sent = self.there()
        assert self._acknowledged <= {fields.get(b"n") for fields in sent.values()}, "the server itself lost entries"
        rows = rig.rows()
        places = [(row["stream"], row["id"]) for row in rows]
        assert len(places) == len(set(places)), f"{len(places) - len(set(places))} entries came twice"
        missing = sorted(set(sent) - set(places))
        assert not missing, f"{len(missing)} entries did not come, as {missing[:5]}"
        assert not set(places) - set(sent)
        for row in rows:
            assert {name.encode(): value for name, value in row["fields"]} == sent[row["stream"], row["id"]]
        assert rig.failed_checks() == []
