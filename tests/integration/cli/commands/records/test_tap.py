"""Test `forebay tap`: the newest records, new ones once each, filters, and blocks that are gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.commands.records import tap as tap_module
from forebay.cli.commands.records.tap import _Tap
from forebay.cli.instance.database import driver_log_engine
from forebay.cli.main import app
from forebay.cli.terminal.console import Console
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.support.driver_log.log import Log, claim_anew, make_log
from tests.support.driver_log.stored_lines import LineReceiver
from tests.support.polling import eventually
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result


@pytest.fixture(autouse=True)
def _environment(database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    return make_log(connection, receivers=2)


@pytest.fixture
def receivers(log: Log) -> Iterator[list[LineReceiver]]:
    made = [LineReceiver(log.connection, Settings().block_store_roots, one) for one in log.receiver_ids]
    yield made
    for one in made:
        one.close()


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tap", "lines", *arguments])


def values(*arguments: str) -> list[Any]:
    done = forebay("--no-follow", *arguments)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def test_the_newest_records_come_first_and_filters_apply(receivers: list[LineReceiver]) -> None:
    first, second = receivers
    assert values() == []
    first.receive(["a1", "a2", "a3"])
    second.receive(["b1"])
    first.receive(["a4 \x1b[2J"])
    assert values() == ["a1", "a2", "a3", "b1", "a4 \x1b[2J"]
    assert values("-n", "3") == ["a3", "b1", "a4 \x1b[2J"]
    assert values("-n", "0") == []
    assert values("--receiver", "2") == ["b1"]
    assert values("--grep", "a[23]") == ["a2", "a3"]
    assert "\x1b" not in forebay("--no-follow").stdout
    placed = json.loads(forebay("--no-follow", "-n", "1", "--place").stdout)
    # The first sequence is the marker of the claim.
    assert (placed["receiver"], placed["sequence"], placed["record"]) == (1, 3, {"value": "a4 \x1b[2J"})


def test_what_can_not_be_tapped_is_named(log: Log) -> None:
    done = CliRunner().invoke(app, ["tap", "nothing"])
    assert done.exit_code == 1
    assert "stream 'nothing' is not in the driver log, which has lines. Name one" in " ".join(done.output.split())
    assert "receiver 'lines/7'" in forebay("--receiver", "7").output
    assert forebay("--grep", "(").exit_code == 2


def test_new_records_are_printed_once_until_ctrl_c(log: Log, receivers: list[LineReceiver]) -> None:
    first, second = receivers
    first.receive(["before 1", "before 2"])
    # A shell ignores Ctrl-C for what it starts in the background, and all children inherit that.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "forebay.cli", "tap", "lines", "-n", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None

            def line() -> str:
                assert process.stdout is not None
                value: str = json.loads(process.stdout.readline())["value"]
                return value

            assert line() == "before 2"
            second.receive(["1", "2"])
            assert [line(), line()] == ["1", "2"]
            cut = sa.text(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE application_name = 'forebay tap' AND datname = current_database()"
            )
            eventually(lambda: log.connection.execute(cut).scalar_one() > 0, "its connection is cut")
            first.receive(["3"])
            second.receive(["4"])
            assert sorted([line(), line()]) == ["3", "4"]
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == ""
            assert process.wait(60) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


class Tapped:
    """A tap in this process, and what it says on standard error."""

    def __init__(self, engine: sa.Engine, log: Log) -> None:
        self._path = Path(Settings().home) / "said"
        self._file = self._path.open("w")
        console = Console(file=self._file, soft_wrap=True)
        store = open_block_store(Settings().block_store_roots)
        self._tap = _Tap(engine, store, "lines", log.stream_id, None, console)
        self._following = self._tap.following()

    def begin(self) -> None:
        assert list(self._tap.newest(0)) == []

    def values(self, count: int) -> list[str]:
        """Return the records of that many blocks."""
        return [record["value"] for _ in range(count) for _, record in next(self._following)]

    def said(self) -> str:
        self._file.flush()
        return self._path.read_text()

    def close(self) -> None:
        self._following.close()
        self._file.close()


@pytest.fixture
def tapped(engine: sa.Engine, log: Log) -> Iterator[Tapped]:
    made = Tapped(engine, log)
    yield made
    made.close()


def test_a_block_that_is_cleaned_up_meanwhile_is_left_out_silently(
    log: Log, receivers: list[LineReceiver], tapped: Tapped, home: Path
) -> None:
    receivers[0].receive(["1"])
    tapped.begin()
    receivers[0].receive(["gone"])
    receivers[1].receive(["stays"])
    [path] = (home / "blocks").rglob(f"{log.receiver_ids[0]}/*.segment")
    path.rename(path.with_suffix(".aside"))
    following = tapped._following
    block = next(following)
    log.connection.execute(
        sa.text("DELETE FROM forebay.blocks WHERE receiver_id = :r AND records > 0"), {"r": log.receiver_ids[0]}
    )
    assert list(block) == []
    assert tapped.said() == ""
    assert tapped.values(1) == ["stays"]


def test_a_block_that_is_lost_is_named(log: Log, receivers: list[LineReceiver], tapped: Tapped, home: Path) -> None:
    tapped.begin()
    receivers[0].receive(["lost"])
    receivers[1].receive(["there"])
    [path] = (home / "blocks").rglob(f"{log.receiver_ids[0]}/*.segment")
    path.unlink()
    assert tapped.values(2) == ["there"]
    assert path.name in tapped.said()


def test_a_tap_that_can_not_keep_up_leaves_blocks_out_and_says_so(
    receivers: list[LineReceiver], tapped: Tapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap_module, "_MOST_BEHIND", 5)
    monkeypatch.setattr(tap_module, "_OF_EACH", 2)
    tapped.begin()
    for number in range(10):
        receivers[0].receive([str(number)])
    assert tapped.values(2) == ["8", "9"]
    assert "8 blocks of one receiver of lines are left out" in tapped.said()


def test_a_new_epoch_and_a_restart_repeat_nothing(log: Log, receivers: list[LineReceiver], tapped: Tapped) -> None:
    tapped.begin()
    receivers[0].receive(["1"])
    assert tapped.values(1) == ["1"]
    claim_anew(log.connection, log.receiver_ids[0])
    receivers[1].receive(["2"])
    # The marker is a block without records.
    assert tapped.values(2) == ["2"]


def test_ctrl_c_while_a_connection_is_given_back_is_no_error(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with driver_log_engine(Console(stderr=True), application_name="tests") as engine:
        sa.event.listen(engine, "reset", interrupt)
        with pytest.raises(KeyboardInterrupt), connect(engine):
            pass
        sa.event.remove(engine, "reset", interrupt)
    assert caplog.records == []
