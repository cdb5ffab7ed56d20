"""Send small groups of records all the time, on a thread; for any source's adapter."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE_SECONDS = 0.02
_DEADLINE_SECONDS = 90.0


class Sending:
    """Call `send` again and again until the context ends, and then raise the error that `send` raised."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(_DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._done.wait(_PAUSE_SECONDS):
                self._send()
        except BaseException as error:  # noqa: BLE001  raised where it is seen
            self._error = error
