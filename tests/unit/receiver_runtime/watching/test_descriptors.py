"""Check that a process raises its limit of descriptors, and that an error for want of one names the limit."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.reporting.unfailing_reporter import describe
from receiver_runtime.watching.descriptors import explain, raise_descriptor_limit
from tests.unit.receiver_runtime.support import FaultyFiles, frame, make_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePath


class SilentError(Exception):
    """Says nothing by itself."""

    def __str__(self) -> str:
        return ""


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Lower this process's soft limit; yields it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(1000, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_raised_as_far_as_the_system_allows(few_descriptors: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = raise_descriptor_limit()
    assert limit > few_descriptors
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, hard)
    assert limit in (hard, 2**20)
    assert raise_descriptor_limit() == limit


def test_a_system_that_refuses_leaves_the_limit(few_descriptors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    limit = raise_descriptor_limit()
    monkeypatch.undo()
    assert limit == few_descriptors


def test_an_error_for_want_of_descriptors_names_the_limit(few_descriptors: int) -> None:
    said = explain(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert f"this process may have {few_descriptors:,} open files" in said
    assert "ulimit -Hn" in said
    assert "fs.file-max" in explain(OSError(errno.ENFILE, os.strerror(errno.ENFILE)))


def test_other_errors_say_what_they_said() -> None:
    assert explain(OSError(errno.EIO, "Input/output error")) == "[Errno 5] Input/output error"
    assert describe(ValueError("wrong")) == "ValueError: wrong"
    # As pika raises it where a connection is refused.
    assert describe(ConnectionError(SilentError(111, "refused"))) == "ConnectionError: SilentError(111, 'refused')"
    assert len(explain(SilentError("x" * 1000))) == 200
    assert explain(TimeoutError("")) == explain(SilentError(None)) == ""
    assert describe(None) == ""


def test_an_operator_is_told_the_limit() -> None:
    assert "may have" in describe(OSError(errno.EMFILE, "Too many open files"))


def test_a_block_that_has_no_descriptor_for_its_segment_says_so(tmp_path: Path) -> None:
    class Exhausted(FaultyFiles):
        def create(self, path: PurePath, *, dir_fd: int | None = None) -> int:
            del path, dir_fd
            raise OSError(errno.EMFILE, "Too many open files")

    log = make_log(LocalBlockStore(tmp_path, files=Exhausted()))
    with pytest.raises(WriteAheadLogError, match="raise the hard limit"):
        log.write([frame()])
