"""Test `forebay send`: which lines it takes, what it says, and that the same command goes on after a kill."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.commands.records import send as command
from forebay.cli.main import app
from tests.support.servers.channel_receiver import ChannelReceiver, Reply, channel_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture
def receiver() -> Iterator[ChannelReceiver]:
    with channel_receiver() as made:
        yield made


def run(receiver: ChannelReceiver, spool: Path, lines: bytes, *options: str) -> Result:
    arguments = ["send", receiver.url, "--channel", "a", "--spool", str(spool), *options]
    return CliRunner().invoke(app, arguments, input=lines)


def test_lines_are_sent_as_they_are_without_blank_ones(receiver: ChannelReceiver, tmp_path: Path) -> None:
    done = run(receiver, tmp_path / "spool", b'{"n": 1}\n\n  \r\n{"n":2}\r\n[3]', "--json")
    assert done.exit_code == 0, done.output
    assert receiver.channels["a"] == [b'{"n": 1}', b'{"n":2}\r', b"[3]"]
    said = json.loads(done.stdout)
    assert (said["taken"], said["registered"], said["waiting"], said["passed"], said["left_out"]) == (3, 3, 0, 0, 0)


def test_lines_of_text_become_objects(receiver: ChannelReceiver, tmp_path: Path) -> None:
    done = run(receiver, tmp_path / "spool", 'a "b"\r\n{ä\n'.encode() + b"\xff\n", "--field", "line")
    assert [json.loads(record) for record in receiver.channels["a"]] == [{"line": 'a "b"'}, {"line": "{ä"}]
    assert done.exit_code == 1
    assert "line 3 is left out: it is no UTF-8 at byte 0" in done.stderr


def test_a_line_that_is_no_json_is_named_and_the_others_are_sent(receiver: ChannelReceiver, tmp_path: Path) -> None:
    done = run(receiver, tmp_path / "spool", b"1\nhello\n2\n")
    assert receiver.channels["a"] == [b"1", b"2"]
    assert done.exit_code == 1
    assert "line 2 is left out: a record is no JSON: b'hello'" in done.stderr
    assert "2 lines taken, 2 registered" in done.stderr


def test_the_same_input_goes_on_where_the_spool_is(
    receiver: ChannelReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_READ_BYTES", 7)
    lines = b"".join(b"%d\n\nbad\n" % number for number in range(20))
    run(receiver, tmp_path / "spool", lines[:100])
    taken = len(receiver.channels["a"])
    assert 0 < taken < 20
    done = run(receiver, tmp_path / "spool", lines, "--resume", "--json")
    # The first part had been cut within a line, at most.
    assert json.loads(done.stdout)["passed"] == taken
    assert receiver.channels["a"] == [b"%d" % number for number in range(20)]
    again = run(receiver, tmp_path / "spool", lines, "--resume", "--json")
    assert (json.loads(again.stdout)["passed"], len(receiver.channels["a"])) == (20, 20)


def test_a_second_input_goes_on_where_it_was_and_not_where_the_first_one_ended(
    receiver: ChannelReceiver, tmp_path: Path
) -> None:
    run(receiver, tmp_path / "spool", b"".join(b"%d\n" % number for number in range(10)))
    lines = b"".join(b"%d\n" % number for number in range(10, 30))
    run(receiver, tmp_path / "spool", lines[:6])
    for passed in (2, 20):
        done = run(receiver, tmp_path / "spool", lines, "--resume", "--json")
        assert json.loads(done.stdout)["passed"] == passed
        assert receiver.channels["a"] == [b"%d" % number for number in range(30)]


def test_what_is_not_registered_in_time_stays_and_is_named(receiver: ChannelReceiver, tmp_path: Path) -> None:
    receiver.before = lambda *_: Reply(503, {"detail": "paused"})
    file = tmp_path / "lines"
    file.write_bytes(b"1\n2\n")
    done = run(receiver, tmp_path / "spool", b"", "--from", str(file), "--timeout", "0.2")
    assert done.exit_code == 1
    assert "2 records of channel a are not registered" in done.output.replace("\n", " ")
    assert "503: paused" in done.output.replace("\n", " ")
    receiver.before = lambda *_: None
    assert run(receiver, tmp_path / "spool", b"").exit_code == 0
    assert receiver.channels["a"] == [b"1", b"2"]


def test_refused_lines_are_said(receiver: ChannelReceiver, tmp_path: Path) -> None:
    receiver.before = lambda *_: Reply(400, {"detail": "no record"}) if b"2" in _[2] else None
    done = run(receiver, tmp_path / "spool", b"1\n2\n3\n")
    assert (done.exit_code, receiver.channels["a"]) == (1, [b"1", b"3"])
    assert "1 lines were refused by the receiver: see" in done.stderr


def test_a_line_without_an_end_is_bounded(
    receiver: ChannelReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_MOST_LINE_BYTES", 2**18)
    done = run(receiver, tmp_path / "spool", b"1\n" + b"x" * 2**20)
    assert done.exit_code == 1
    assert "line 2 has more than 262144 bytes" in done.output.replace("\n", " ")


def test_a_wrong_url_is_a_sentence(receiver: ChannelReceiver, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["send", "orders", "--channel", "a", "--spool", str(tmp_path / "spool")])
    assert done.exit_code == 1
    assert "give the stream's, as http://host:8080/v1/STREAM" in done.output.replace("\n", " ")
