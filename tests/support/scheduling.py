"""Hand out whole test files to the processes of a run, and let a process load a file when its turn comes.

A plugin of pytest for runs with xdist. Owns which files go where, and what is collected when.

- Each process of xdist collects all tests, so each would import all test files, and in a fresh checkout compile them.
  Here it collects the files alone. The tests of one are collected, and chosen by their marks, right before they run.
- Each process that uses Spark has a session of its own, which costs ten seconds of processor time until it is warm. So
  the files that start a JVM go to two of the processes, and come first: they take half of the time of a whole run.

It must leave the choice of single tests (``-k``, ``file.py::test``) to pytest, which needs all tests for it.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

_SPARK_PROCESSES = 2


@cache
def _starts_jvm(path: Path) -> bool:
    return "pytest.mark.spark" in path.read_text(encoding="utf-8")


class TestFile(pytest.Item):
    """A file in place of its tests, which are collected when it is run."""

    def __init__(self, *, parent: pytest.Collector, module: pytest.Collector) -> None:
        """Stand for what pytest would collect of the file."""
        super().__init__(name=module.name, parent=parent, nodeid=module.nodeid, path=module.path)
        self._module = module

    def runtest(self) -> None:
        """Do nothing: `run_tests` runs the tests."""

    def run_tests(self, nextitem: pytest.Item | None) -> None:
        """Collect the tests and run them; a file that can't be collected is reported as pytest does it."""
        tests = list(self.session.genitems(self._module))
        self.config.hook.pytest_collection_modifyitems(session=self.session, config=self.config, items=tests)
        # The modules that it has loaded stay until the process ends.
        gc.freeze()
        place = self.session.items.index(self)
        for index, test in enumerate(tests, start=1):
            # xdist looks there for the name of the test that it reports.
            self.session.items[place] = test
            after = tests[index] if index < len(tests) else nextitem
            self.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
            if self.session.shouldfail or self.session.shouldstop:
                break
        self.session.items[place] = self
        if not tests:
            # As a test would, for those before it: what was set up for their directory alone ends here.
            for report in runtestprotocol(self, log=False, nextitem=nextitem):
                if report.failed:
                    self.ihook.pytest_runtest_logreport(report=report)


class FilesOfProcess:
    """Lets a process of xdist collect files."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], Sequence[pytest.Collector | pytest.Item]]:
        """Put a file in the place of each collector of its tests."""
        modules = yield
        if len(modules) != 1:  # xdist knows tests by their names alone, and these files would have one name
            return modules
        return [TestFile.from_parent(parent, module=module) for module in modules]

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Keep the files: marks choose from their tests later."""
        files = [item for item in items if isinstance(item, TestFile)]
        items[:] = [item for item in items if not isinstance(item, TestFile)]
        yield
        items[:] = [*sorted(files, key=lambda file: not _starts_jvm(file.path)), *items]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run the tests of a file; a test is pytest's."""
        if not isinstance(item, TestFile):
            return None
        item.run_tests(nextitem)
        return True


class FilesScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hand out whole files, and those that start a JVM as if they were two: `_split_scope` is made to be overridden."""

    def __init__(self, config: pytest.Config, log: Producer | None, tests: Tests) -> None:
        """Take what xdist gives, and the counter of tests."""
        super().__init__(config, log)
        self._tests = tests
        self._scopes: dict[str, str] = {}
        self._with_jvm = self._done = 0

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Say by the files how far the run is, too."""
        super().mark_test_complete(node, item_index, duration)
        self._done += 1
        self._tests.expect(self._done / len(self.collection))

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the file that ended its process, and run it nowhere again; others run what was to come after it."""
        work = self.assigned_work.pop(node)
        left = [(unit, nodeid) for unit in work.values() for nodeid, done in unit.items() if not done]
        if not left:
            return None
        unit, ended = left[0]
        unit[ended] = True
        self.workqueue.update({scope: unit for scope, unit in work.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return str(ended)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Refuse a process that has found other files than the first ones: the run would wait for it for ever."""
        super().add_node_collection(node, collection)
        assert node in self.registered_collections, f"{node.gateway.id} has collected other tests than those before it"

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process work until it has two items: it runs one only when it knows the next, or that none follows.

        xdist gives work to a process in another's place before it has collected, and does not tell one that has a
        single item left that none follows: a run in which a process had died waited for ever.
        """
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file not in self._scopes:
            self._scopes[file] = file
            if _starts_jvm(self.config.rootpath / file):
                self._scopes[file] = f"Spark {self._with_jvm % _SPARK_PROCESSES}"
                self._with_jvm += 1
        return self._scopes[file]


class Tests:
    """Counts the tests in the run's own process: their number is known with the last file."""

    def __init__(self) -> None:
        """Count from nothing."""
        self._reported = 0
        self._internal_error = False
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, which has the number."""
        self._session = session

    def pytest_runtest_logfinish(self) -> None:
        """Count a test."""
        self._reported += 1

    def pytest_internalerror(self) -> None:
        """Remember that a process ended by an error of its own, after which xdist may go on without it."""
        self._internal_error = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Let no run pass that had such an error, or no test."""
        if session.config.option.collectonly:
            return
        if exitstatus == pytest.ExitCode.OK and self._internal_error:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        elif exitstatus == pytest.ExitCode.OK and not self._reported:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def expect(self, share: float) -> None:
        """Set the number of tests from the share of files that are done: at the end it is exact."""
        assert self._session is not None
        self._session.testscollected = round(self._reported / share)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> FilesScheduling:
        """Hand out files."""
        return FilesScheduling(config, log, self)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tests())
    elif not config.option.keyword and not any("::" in argument for argument in config.args):
        config.pluginmanager.register(FilesOfProcess())
