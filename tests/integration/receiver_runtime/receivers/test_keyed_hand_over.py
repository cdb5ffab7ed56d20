"""Test records with keys on the real driver log, in real processes that are killed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import proxied, stop
from receiver_runtime.receivers.custom.declaration import CustomSource
from tests.conformance.source_rig import SourceRig
from tests.integration.receiver_runtime.keyed_receiver import KeyedReceiver, Sender
from tests.unit.receiver_runtime.support import reaches
from tracker_store.blocks.blocks import known_keys
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


@pytest.fixture
def directory() -> Iterator[Path]:
    # The path of a Unix socket must be short.
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


@pytest.fixture
def rig(database_url: str, tmp_path: Path, directory: Path) -> Iterator[SourceRig]:
    source = CustomSource(receiver=KeyedReceiver, options={"directory": str(directory)})
    made = SourceRig.make(database_url, tmp_path / "rig", source, receivers=2)
    yield made
    made.close()
    print(made.logs()[-6000:])  # noqa: T201  shown where the test fails


def sender(directory: Path, process: subprocess.Popen[bytes]) -> Sender:
    made = Sender(directory, process.pid)
    eventually(made.path.exists, "the receiver's socket")
    return made


def names(first: int, end: int) -> list[str]:
    return [f"r{n}" for n in range(first, end)]


def assert_each_once(rig: SourceRig, values: list[str]) -> None:
    assert sorted(row["value"] for row in rig.rows()) == sorted(values)
    assert rig.failed_checks() == []
    with connect(rig.engine) as connection:
        assert known_keys(connection, receiver_id=rig.receiver_ids[1], keys=[*values, "other"]) == set(values)


def test_w01_a_retry_after_a_take_over_by_another_process_is_dropped(rig: SourceRig, directory: Path) -> None:
    first = rig.start()
    with sender(directory, first) as sending:
        sending.send(names(0, 100))
        eventually(lambda: sending.became() == (100, 0), "the first answer")
        first.kill()
        first.wait(60)
    second = rig.start(assignment=2)
    with sender(directory, second) as sending:
        # As far as the sender knows, its answer was lost.
        sending.send(names(0, 110))
        eventually(lambda: sending.became() == (10, 100), "the second answer")
    stop(second)
    assert_each_once(rig, names(0, 110))


def test_w01_killed_between_storing_and_registering_the_sender_s_retry_counts_once(
    rig: SourceRig, directory: Path, database_url: str
) -> None:
    with proxied(database_url) as (proxy, url):
        first = rig.start(database_url=url)
        with sender(directory, first) as sending:
            sending.send(names(0, 50))
            eventually(lambda: sending.became() == (50, 0), "the first answer")
            # Cut while the keys are looked up before each block.
            proxy.away = True
            proxy.cut()
            sending.send(names(50, 70))
            proxy.away = False
            eventually(lambda: sending.became() == (70, 0), "an answer after a cut")
            for n in range(16):
                sending.send([f"w{n}"])
                eventually(reaches(lambda: sum(sending.became()), 71 + n), "a block that is not asked for")
            # Cut while they are not looked up: the blocks are stored.
            registered = rig.registered()
            proxy.away = True
            proxy.cut()
            sending.send(names(100, 120))
            eventually(lambda: rig.stored_frames() > rig.registered_blocks(), "a stored block")
            sending.send(names(120, 140))
            eventually(lambda: rig.stored_frames() > rig.registered_blocks() + 1, "another")
            first.kill()
            first.wait(60)
            assert sending.became() == (86, 0)
    second = rig.start(assignment=2)
    with sender(directory, second) as sending:
        # The sender retries it: none of it was salvaged.
        assert rig.registered() == registered
        sending.send(names(60, 140))
        eventually(lambda: sending.became() == (70, 10), "the answer to the retry")
    stop(second)
    assert_each_once(rig, [*names(0, 140), *(f"w{n}" for n in range(16))])


def test_two_receivers_with_the_same_keys_store_each_once(rig: SourceRig, directory: Path) -> None:
    """Check with a sender that waited too long for one receiver and tried the other; both work on many blocks."""
    processes = [rig.start(0), rig.start(1)]
    with sender(directory, processes[0]) as one, sender(directory, processes[1]) as other:
        for first in range(0, 1000, 10):
            one.send(names(first, first + 10))
            other.send(names(first + 5, first + 15)[::-1])
        eventually(lambda: len(one.answers) == len(other.answers) == 100, "all answers")
        added = [one.became()[0], other.became()[0]]
        assert sum(added) == 1005
        assert sum(one.became()) == sum(other.became()) == 1000
    for process in processes:
        stop(process)
    assert_each_once(rig, names(0, 1005))
    assert [rig.registered_of(0), rig.registered_of(1)] == added


def test_lost_answers_store_each_once(rig: SourceRig, directory: Path, database_url: str) -> None:
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        with sender(directory, process) as sending:
            for number in range(200):
                sending.send(names(number * 10, number * 10 + 12))
                if number % 10 == 0:
                    proxy.cut()
                eventually(reaches(lambda: len(sending.answers), number - 20), "answers")
            eventually(lambda: len(sending.answers) == 200, "all answers")
            assert proxy.cuts > 10
            assert sending.became() == (2002, 398)
        stop(process)
    assert_each_once(rig, names(0, 2002))
