"""Keep the connections of sensors to the driver log from tick to tick.

Ticks come every few seconds. A new session for each would cost most of the tick: 10 ms of CPU to open it, and 20 ms to
plan an allocation in it. Sensors that run at the same time get a connection each; those that are not kept end with
their tick.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from tracker_store.connection.engine import connect, create_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

_KEPT = 2
_NO_BOUND = -1


class SensorConnections:
    """Connections of the sensors of a code location; `connect` may be called in several threads."""

    def __init__(self) -> None:
        """Open nothing yet: a code location is also loaded where no sensor ever runs."""
        self._lock = Lock()
        self._url: str | None = None
        self._engine: sa.Engine | None = None

    @contextmanager
    def connect(self, url: str) -> Iterator[sa.Connection]:
        """Yield a connection to the driver log at `url`. Raises as ``tracker_store.connection.engine.connect``."""
        with connect(self._engine_of(url)) as connection:
            yield connection

    def _engine_of(self, url: str) -> sa.Engine:
        with self._lock:
            if self._engine is None or self._url != url:
                if self._engine is not None:
                    self._engine.dispose()
                self._engine = create_engine(
                    url, application_name="forebay sensors", pool_size=_KEPT, max_overflow=_NO_BOUND
                )
                self._url = url
            return self._engine
