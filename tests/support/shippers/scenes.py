"""Scenes in which a real shipper follows a file of lines and sends them to a receiver that refuses, dies and returns.

Each takes how a shipper is started, and how to read a line from the row that it became. Lines may come twice, because a
shipper that gets no answer sends again; none may be missing, and none may be altered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.http.declaration import Http
from tests.support.commands.made_programs import NoProgramError
from tests.support.machine.held_ports import held_port
from tests.support.shippers import built
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from forebay.testing.source_rig import MakeRig
    from tests.support.shippers.built import Program
    from tests.unit.receiver_runtime.receivers.http.http_client import Listening

TOKEN = "no-secret"
TOKEN_VARIABLE = "FOREBAY_TEST_TOKEN"
_LINES = 3000
_LARGE = 40_000  # characters: more than a record may have in the scene that refuses one
_STEP = 50  # lines, between which a shipper has time to see the file grow
_STEP_SECONDS = 0.02
_TIME = 1_760_000_000  # seconds
_TELEGRAF = """
[agent]
  interval = "200ms"
  flush_interval = "300ms"
  metric_batch_size = 500
  metric_buffer_limit = 100000
  omit_hostname = true
[[inputs.tail]]
  files = ["{file}"]
  from_beginning = true
{reads}
"""
_TELEGRAF_TEXT = """
  data_format = "value"
  data_type = "string"
"""
#: How Telegraf reads lines that are metrics.
TELEGRAF_METRICS = """
  data_format = "influx"
  path_tag = ""
"""
_AWKWARD = ['a "quote"', "a \\ backslash", "über 日本 🚲", "{'a': 1} {\"b\": [2]}", "tab\there", "%s %{x} $1 ${y}"]


@dataclass(frozen=True)
class Stage:
    """Hold where a shipper works: its folder, the file that it follows, and the receiver's port."""

    root: Path
    port: int

    @property
    def file(self) -> Path:
        """Return the file that the shipper follows."""
        return self.root / "app.log"

    @property
    def said(self) -> Path:
        """Return the file with what the shipper has said."""
        return self.root / "shipper.log"

    def append(self, lines: Sequence[str]) -> None:
        """Append lines to the file that is followed."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

    @contextlib.contextmanager
    def run(self, program: Program, *arguments: str) -> Iterator[None]:
        """Run a shipper's program within the context."""
        with self.said.open("ab") as said:
            process = subprocess.Popen(
                [program.path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **program.env},
                cwd=self.root,
            )
        try:
            yield
            assert process.poll() is None, "the shipper ended"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
            # Shown with a test that fails.
            print(self.said.read_text(errors="replace")[-6000:])  # noqa: T201

    def syslog_ng(self, configuration: Path) -> contextlib.AbstractContextManager[None]:
        """Run syslog-ng with a configuration."""
        made = program("syslog-ng")
        return self.run(
            made,
            *("--foreground", "--no-caps", "--stderr", "-f", str(configuration)),
            *("-R", str(self.root / "persist"), "-c", str(self.root / "control"), "--pidfile", str(self.root / "pid")),
            *("--module-path", str(next(made.folder.rglob("libhttp.so")).parent)),
        )


@dataclass(frozen=True)
class Shipper:
    """Hold a shipper: how it is started, and how a line is read from its row."""

    start: Callable[[Stage], contextlib.AbstractContextManager[None]]
    line_of: Callable[[Mapping[str, Any]], str]
    protocol: str
    #: Whether it sends any text, and not numbers alone.
    has_text: bool = True

    def lines(self, count: int = _LINES) -> list[str]:
        """Return lines with what is awkward to write in JSON, in logfmt and in protobuf; or, of numbers, metrics."""
        if not self.has_text:
            # Each is a series of its own: of several values of one, some senders keep the last.
            return [f"app,line={number} n={number}i {_TIME + number}000000000" for number in range(count)]
        return [f"line {number} {_AWKWARD[number % len(_AWKWARD)]}" for number in range(count)]


def check_lines_arrive(shipper: Shipper, root: Path) -> None:
    """Check that each line that an app writes arrives once, as it was written."""
    lines = shipper.lines()
    with receiving(shipper.protocol, root) as (made, stage), shipper.start(stage):
        for at in range(0, len(lines), _STEP):
            stage.append(lines[at : at + _STEP])
            time.sleep(_STEP_SECONDS)
        _await(lambda: lines_in(shipper, made.rows()), lines)
        assert Counter(lines_in(shipper, made.rows())) == Counter(lines)


def check_one_that_is_refused_holds_up_no_other(shipper: Shipper, root: Path) -> str:
    """Check that a line that is too large is kept, and the others arrive once; return what the shipper said."""
    lines = shipper.lines(300)
    large = "x" * _LARGE
    with receiving(shipper.protocol, root, max_record_bytes="20 KB") as (made, stage), shipper.start(stage):
        stage.append([*lines[:100], large, *lines[100:200]])
        _await(lambda: lines_in(shipper, made.rows()), lines[:200])
        stage.append(lines[200:])
        _await(lambda: lines_in(shipper, made.rows()), lines)
        assert Counter(lines_in(shipper, made.rows())) == Counter(lines)
        [(reason, _, letter)] = made.rig.dead_letters()
        assert reason == "record_too_large"
        assert large.encode() in letter
    return stage.said.read_text(errors="replace")


def check_nothing_is_lost_by_kills(shipper: Shipper, make_rig: MakeRig, root: Path) -> int:
    """Kill the receiver twice while lines come, and leave it away for a while; return how many lines came twice."""
    lines = shipper.lines(4 * _LINES)
    with held_port() as port:
        rig = make_rig(Http.model_validate({**fields_of(shipper.protocol), "listen": f"127.0.0.1:{port}"}))
        stage = stage_at(root, port)
        process = rig.start()
        eventually(lambda: rig.said("listening on"), "the receiver to listen")
        with shipper.start(stage):
            for at in range(0, len(lines), _STEP):
                stage.append(lines[at : at + _STEP])
                time.sleep(_STEP_SECONDS)
                if at in {_LINES, 3 * _LINES}:
                    eventually(lambda: rig.registered() > 0, "some lines")
                    process.kill()
                    process.wait(60)
                if at in {2 * _LINES, 4 * _LINES - _STEP}:
                    process = rig.start(assignment=len(rig.processes) + 1)
            _await(lambda: lines_in(shipper, rig.rows()), lines, seconds=150)
        found = Counter(lines_in(shipper, rig.rows()))
        assert found.keys() == set(lines)
        assert rig.failed_checks() == []
        return found.total() - len(lines)


def lines_in(shipper: Shipper, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines that rows hold."""
    return [shipper.line_of(row) for row in rows]


def _await(found: Callable[[], Sequence[str]], wanted: Sequence[str], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while missing := set(wanted) - set(found()):
        assert time.monotonic() < deadline, f"{len(missing)} of {len(wanted)} lines are missing: {sorted(missing)[:3]}"
        time.sleep(0.2)


def program(name: str) -> Program:
    """Return a shipper; skip the test if it can't be had here."""
    try:
        return built.program(name)
    except NoProgramError as error:
        pytest.skip(str(error))


def fields_of(protocol: str) -> Mapping[str, Any]:
    """Return the fields of a source for shippers of a protocol."""
    return {"protocols": protocol, "tokens": f"env:{TOKEN_VARIABLE}"}


def stage_at(root: Path, port: int) -> Stage:
    """Make the stage of a shipper to a receiver at a port."""
    folder = root / "shipper"
    folder.mkdir()
    stage = Stage(folder, port)
    stage.file.touch()
    return stage


@contextlib.contextmanager
def telegraf(stage: Stage, output: str, *, reads: str = _TELEGRAF_TEXT) -> Iterator[None]:
    """Run Telegraf on the stage's file.

    Args:
        output: the table of its output, with ``{port}`` and ``{token}``.
        reads: how its input reads lines: each as a text by default.
    """
    configuration = stage.root / "telegraf.conf"
    text = _TELEGRAF.format(file=stage.file, reads=reads) + output.format(port=stage.port, token=TOKEN)
    configuration.write_text(text, encoding="utf-8")
    with stage.run(program("telegraf"), "--config", str(configuration)):
        yield


@contextlib.contextmanager
def receiving(protocol: str, root: Path, **fields: Any) -> Iterator[tuple[Listening, Stage]]:  # noqa: ANN401  of the source
    """Run a receiver, and make a shipper's stage."""
    with listening(root / "receiver", **{**fields_of(protocol), **fields}) as made:
        yield made, stage_at(root, made.port)
