"""Hold an object store in memory whose calls fail, hang or lose their answer when a test says so."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from receiver_runtime.block_store.stores.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryObjects(Objects):
    """Keeps objects in a dict.

    `put_faults` has one fault per PUT: "error" (not stored), "lost answer" (stored), or "".
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[tuple[str, bytes]] = []
        self.put_faults: list[str] = []
        self.get_faults = 0
        self.gets = 0
        self.bucket_is_there = True
        self.prefix_is_there = True
        self.answers = threading.Event()
        self.answers.set()

    def put(self, key: str, buffers: Sequence[Any]) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self.answers.wait(60)
        self.puts.append((key, data))
        fault = self.put_faults.pop(0) if self.put_faults else ""
        if fault != "error":
            self.objects[key] = data
        if fault:
            raise OSError("AWS Error NETWORK_CONNECTION during PutObject operation")

    def get(self, key: str, offset: int, length: int) -> bytes:
        self.gets += 1
        if self.get_faults:
            self.get_faults -= 1
            raise OSError("AWS Error SLOW_DOWN during GetObject operation")
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][offset : offset + length]

    def sizes(self, prefix: str) -> list[tuple[str, int]]:
        start = f"{prefix}/" if prefix else ""
        # Copy the dict first: a PUT that was given up may still land meanwhile.
        return sorted((key, len(data)) for key, data in list(self.objects.items()) if key.startswith(start))

    def bucket_exists(self) -> bool:
        return self.bucket_is_there

    def has_any(self) -> bool:
        return self.prefix_is_there

    def delete(self, prefix: str) -> None:
        for key, _ in self.sizes(prefix):
            del self.objects[key]

    def remove(self, key: str) -> None:
        self.objects.pop(key, None)

    def move(self, key: str, to: str) -> None:
        self.objects[to] = self.objects.pop(key)
