"""Make the calls on an object store that a block store needs: each repeated with backoff, for a limited time.

Knows how a segment's objects are named, and nothing of what is in them.
"""

from __future__ import annotations

import random
import re
import time
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.stores.call_pool import CallPool, CallsHangError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.block_store.frames.frame import EncodedFrame
    from receiver_runtime.block_store.stores.objects import Objects

T = TypeVar("T")

#: The name of a segment's object: the offset of its first frame.
OBJECT_NAME = re.compile(r"\d{20}")
_THREADS = 16
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
# Errors after which a call is not repeated, because the answer would be the same.
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, CallsHangError)


class RetriedObjects:
    """Call one object store below one prefix. Each call raises StoreUnavailableError when its time is over.

    Args:
        objects: the store's calls.
        name: the URL, without secrets.
        timeout: seconds for one call with all its attempts.
        max_attempts: the most attempts at one call.
    """

    def __init__(self, objects: Objects, name: str, *, timeout: float, max_attempts: int) -> None:
        self._objects = objects
        self._name = name
        self._timeout = timeout
        self._max_attempts = max_attempts
        self._pool = CallPool(f"block store {name}", limit=_THREADS)

    def where(self, path: str) -> str:
        """Return a segment's address, for messages."""
        return f"{self._name.rstrip('/')}/{path}"

    def get(self, key: str, offset: int, length: int) -> bytes:
        """Return bytes of an object. Raises FileNotFoundError."""
        return self._call("get", lambda: self._objects.get(key, offset, length))

    def get_within(self, path: str, offset: int, length: int) -> bytes | None:
        """Return a frame that shares its object with the frames before it (dead letters of one write), or None."""
        holder = holder_of(self.of_segment(path), offset, 1)
        return None if holder is None else self.get(holder[0], offset - holder[1], length)

    def put(self, key: str, buffers: Sequence[object]) -> None:
        """Store an object."""
        self._call("put", lambda: self._objects.put(key, buffers))

    def put_frames(self, path: str, offset: int, frames: list[EncodedFrame]) -> None:
        """Store frames as the object of a segment that begins at this offset."""
        self.put(f"{path}/{offset:020d}", [buffer for frame in frames for buffer in frame.buffers])

    def move(self, key: str, to: str) -> None:
        """Give an object another key."""
        self._call("move", lambda: self._objects.move(key, to))

    def remove(self, key: str) -> None:
        """Remove one object."""
        self._call("delete", lambda: self._objects.remove(key))

    def delete(self, path: str) -> None:
        """Remove all objects below a prefix."""
        self._call("delete", lambda: self._objects.delete(path))

    def sizes(self, under: str) -> Sequence[tuple[str, int]]:
        """Return the keys below a prefix, with their sizes, in order."""
        return self._call("list", lambda: self._objects.sizes(under))

    def of_segment(self, path: str) -> list[tuple[str, int, int]]:
        """Return a segment's objects as (key, the offset of its first frame, size), in order."""
        return [
            (key, int(name), size)
            for key, size in self.sizes(path)
            if OBJECT_NAME.fullmatch(name := key.removeprefix(f"{path}/"))
        ]

    def free_prefix(self, wanted: str) -> str:
        """Return a prefix below which there is nothing: the wanted one, or with a number behind it."""
        target, number = wanted, 0
        while self.sizes(target):
            number += 1
            target = f"{wanted}.{number}"
        return target

    def require_bucket(self) -> None:
        """Raise StoreUnavailableError if there is no such bucket."""
        if not self._call("list", self._objects.bucket_exists):
            raise StoreUnavailableError(self._name, "there is no such bucket")

    def require_any(self) -> None:
        """Raise StoreUnavailableError if the prefix is empty, like a directory that is not mounted."""
        self.require_bucket()
        if not self._call("list", self._objects.has_any):
            raise StoreUnavailableError(self._name, "there is nothing below this prefix")

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """Make an idempotent call; retry it with backoff while it fails, for at most the time-out.

        Raises:
            FileNotFoundError, FileExistsError: as the store says.
            StoreUnavailableError: it fails, is not allowed, or does not answer.
        """
        deadline = time.monotonic() + self._timeout
        attempt = 1
        while True:
            try:
                return self._pool.call(call, deadline - time.monotonic())
            except (FileNotFoundError, FileExistsError):
                raise
            except OSError as error:
                delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2**attempt) * random.uniform(0.5, 1.0)  # noqa: S311
                final = isinstance(error, _FINAL) or attempt >= self._max_attempts
                if final or time.monotonic() + delay >= deadline:
                    raise StoreUnavailableError(
                        self._name, f"{what}: {error}; {attempt} attempts in at most {self._timeout:g} s"
                    ) from error
                attempt += 1
                time.sleep(delay)


def holder_of(objects: Sequence[tuple[str, int, int]], offset: int, length: int) -> tuple[str, int] | None:
    """Return the object that has these bytes of a segment, and its offset; None: no object has all of them."""
    number = bisect_right(objects, offset, key=itemgetter(1)) - 1
    if number < 0:
        return None
    key, begin, size = objects[number]
    return (key, begin) if offset + length <= begin + size else None
