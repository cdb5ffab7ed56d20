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
    counts = json.loads(done.stdout)
    assert [counts[name] for name in ("taken", "registered", "waiting", "passed", "left_out")] == [3, 3, 0, 0, 0]


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


def said(done: Result) -> str:
    """Return what a command said, on one line: errors are wrapped."""
    return " ".join(done.output.split())


def test_an_input_that_was_not_read_to_its_end_is_not_taken_again_unasked(
    receiver: ChannelReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    assert run(receiver, spool, b"0\n").exit_code == 0
    monkeypatch.setattr(command, "_READ_BYTES", 4)
    monkeypatch.setattr(command, "_MOST_LINE_BYTES", 3)
    # The first command ends within its input, as by a kill.
    assert run(receiver, spool, b"1\n2\n3333333\n").exit_code == 1
    monkeypatch.setattr(command, "_MOST_LINE_BYTES", 2**20)
    again = run(receiver, spool, b"1\n2\n3333333\n")
    assert again.exit_code == 1
    assert "has taken 2 records of an input that was not read to its end: add --resume to continue it" in said(again)
    short = run(receiver, spool, b"1\n", "--resume")
    assert short.exit_code == 1
    assert "the input has 1 lines that can be sent, and the spool has taken 2" in said(short)
    # What an earlier input had is not skipped.
    resumed = run(receiver, spool, b"1\n2\n3333333\n", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "2 lines skipped" in resumed.stderr
    assert receiver.channels["a"] == [b"0", b"1", b"2", b"3333333"]
    assert run(receiver, spool, b"4\n5").exit_code == 1
    assert run(receiver, spool, b"6\n", "--new-input").exit_code == 0
    assert receiver.channels["a"][4:] == [b"4", b"6"]


@pytest.mark.parametrize("rest", [b'{"n":', b"12", b"1e5", b"{1}", b"tr"])
def test_a_last_line_that_may_go_on_is_held_back(receiver: ChannelReceiver, tmp_path: Path, rest: bytes) -> None:
    done = run(receiver, tmp_path / "spool", b"1\n" + rest)
    assert (done.exit_code, receiver.channels["a"]) == (1, [b"1"])
    assert "line 2 is left out: the input ends within it, without a line break" in said(done)
    file = tmp_path / "lines"
    file.write_bytes(b"1\n" + rest + b"4\n2")
    done = run(receiver, tmp_path / "spool", b"", "--from", str(file), "--resume", "--complete")
    assert (done.exit_code, receiver.channels["a"]) == (0, [b"1", rest + b"4", b"2"])


@pytest.mark.parametrize("rest", [b'{"n":1}', b"[]", b"true", b"null", b'"a"\r'])
def test_a_last_line_that_is_a_whole_json_value_is_sent(receiver: ChannelReceiver, tmp_path: Path, rest: bytes) -> None:
    assert run(receiver, tmp_path / "spool", b"1\n" + rest).exit_code == 0
    assert receiver.channels["a"] == [b"1", rest]


def test_a_last_line_of_text_is_held_back(receiver: ChannelReceiver, tmp_path: Path) -> None:
    assert run(receiver, tmp_path / "spool", b"a\n{}", "--field", "f").exit_code == 1
    assert run(receiver, tmp_path / "spool", b"a\n{}", "--field", "f", "--resume", "--complete").exit_code == 0
    assert [json.loads(record) for record in receiver.channels["a"]] == [{"f": "a"}, {"f": "{}"}]


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
    # The same command again would send each line twice.
    again = run(receiver, tmp_path / "spool", b"", "--from", str(file))
    assert again.exit_code == 1
    assert "add --resume" in said(again)
    assert run(receiver, tmp_path / "spool", b"", "--from", str(file), "--resume").exit_code == 0
    assert receiver.channels["a"] == [b"1", b"2"]


def test_lines_that_became_dead_letters_are_said(receiver: ChannelReceiver, tmp_path: Path) -> None:
    counts: dict[str, object] = {"records": 1, "duplicates": 0, "dead_letters": 2}
    receiver.before = lambda *_: Reply(200, counts, {"Forebay-Offset": "3"})
    done = run(receiver, tmp_path / "spool", b'{"a": \n[\n3\n')
    assert done.exit_code == 1
    assert "2 lines became dead letters: forebay dead-letters list s" in said(done)
    receiver.channels["a"] = [b""] * 3
    receiver.before = lambda *_: None
    assert run(receiver, tmp_path / "spool", b"4\n").exit_code == 0


def test_counts_are_of_the_run(receiver: ChannelReceiver, tmp_path: Path) -> None:
    receiver.before = lambda *_: Reply(400, {"detail": "no record"}) if b"2" in _[2] else None
    assert run(receiver, tmp_path / "spool", b"1\n2\n3\n").exit_code == 1
    done = run(receiver, tmp_path / "spool", b"4\n5\n", "--json")
    assert done.exit_code == 0
    counts = json.loads(done.stdout)
    assert [counts[name] for name in ("taken", "registered", "refused")] == [2, 2, 0]
    assert [counts[f"spool_{name}"] for name in ("taken", "registered", "refused")] == [5, 5, 1]
    assert "1 lines taken, 5 by earlier runs, 1 registered" in run(receiver, tmp_path / "spool", b"6\n").stderr


def test_the_whole_timeout_is_named(receiver: ChannelReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_SAY_SECONDS", 0.1)
    receiver.before = lambda *_: Reply(503, {"detail": "paused"})
    done = run(receiver, tmp_path / "spool", b"1\n", "--timeout", "0.25")
    assert "are not registered after 0.25 s: 503: paused" in said(done)
    assert "run it again with --resume" in said(done)


def test_a_spool_of_another_stream_is_refused_at_once(receiver: ChannelReceiver, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    assert run(receiver, spool, b"1\n").exit_code == 0
    right, receiver.url = receiver.url, receiver.url + "2"
    done = run(receiver, spool, b"2\n")
    assert done.exit_code == 1
    assert f"{spool} holds records of /v1/s, and the URL's path is /v1/s2" in said(done)
    # It is the same stream: the other path is known from then on.
    assert run(receiver, spool, b"2\n", "--on-mismatch", "resend").exit_code == 0
    assert run(receiver, spool, b"3\n").exit_code == 0
    receiver.url = right
    assert run(receiver, spool, b"4\n").exit_code == 1
    assert run(receiver, spool, b"4\n", "--on-mismatch", "other").exit_code == 2
    assert receiver.channels["a"] == [b"1", b"2", b"3"]


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
