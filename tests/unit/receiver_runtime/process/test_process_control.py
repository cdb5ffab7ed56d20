from __future__ import annotations

import pytest

from receiver_runtime.process.process_control import (
    Accepted,
    ControlledRun,
    Declined,
    Ended,
    Lines,
    Message,
    Stop,
    encode,
    parse_receiver,
)
from receiver_runtime.watching.exit_codes import ExitCode

MESSAGES: list[Message] = [
    ControlledRun(12, 3),
    Stop(12),
    Accepted(12, 3),
    Declined(13, 1),
    Ended(12, 3, ExitCode.FENCED, "assignment 4 replaces ours"),
    Ended(12, 3, ExitCode.STOPPED, ""),
]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_are_read_whole_however_they_are_cut(size: int) -> None:
    stream = b"".join(map(encode, MESSAGES))
    lines = Lines()
    heard: list[Message] = []
    for start in range(0, len(stream), size):
        heard.extend(lines.feed(stream[start : start + size]))
    assert heard == MESSAGES


def test_a_reason_is_sent_as_one_line_of_bounded_length() -> None:
    line = encode(Ended(1, 1, ExitCode.FAILED, "first\nsecond " + "x" * 10_000 + " the cause"))
    assert line.count(b"\n") == 1
    assert len(line) < 600
    [ended] = Lines().feed(line)
    assert isinstance(ended, Ended)
    assert ended.reason.startswith("first second xxx")
    assert ended.reason.endswith("x the cause")


def test_an_unknown_line_is_refused_with_its_text() -> None:
    with pytest.raises(ValueError, match="dance 12"):
        list(Lines().feed(b"dance 12\n"))


def test_a_receiver_is_parsed_from_the_command_line() -> None:
    assert parse_receiver("12:3") == (12, 3)
    for wrong in ("12", "12:", ":3", "a:1", "-1:2"):
        with pytest.raises(ValueError, match="RECEIVER_ID:ASSIGNMENT"):
            parse_receiver(wrong)
