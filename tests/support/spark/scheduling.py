"""Give the test files that start a JVM to two of the processes of a test run, and begin with them.

A plugin of pytest, for `make test`. Each process that uses Spark has a session of its own, which costs ten seconds of
processor time until it is warm; the files that use one take half of the time that a whole run takes on two cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

_PROCESSES = 2


class SparkFilesScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hand out whole files, and the marked ones as if they were two: its `_split_scope` is made to be overridden."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        """Take what xdist gives."""
        super().__init__(config, log)
        self._root = config.rootpath
        self._scopes: dict[str, str] = {}
        self._marked = 0

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file not in self._scopes:
            self._scopes[file] = file
            if "pytest.mark.spark" in (self._root / file).read_text(encoding="utf-8"):
                self._scopes[file] = f"Spark {self._marked % _PROCESSES}"
                self._marked += 1
        return self._scopes[file]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkFilesScheduling:
    return SparkFilesScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
