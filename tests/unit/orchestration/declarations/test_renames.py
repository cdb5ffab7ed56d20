"""Test what is said of streams that may have, or say that they have, another name."""

from __future__ import annotations

import pytest

from forebay import DeclarationError, Stream
from forebay.sources import SocketText
from orchestration.declarations.apply import Change, unclear_renames
from orchestration.declarations.renames import idle_renames, refuse_to_rename


def stream(name: str, renamed_from: str | None = None) -> Stream:
    return Stream(name, SocketText(host="127.0.0.1", port=9999), renamed_from=renamed_from)


def test_a_stream_that_may_be_renamed_is_asked_about_before_anything_is_written() -> None:
    added, stopped = Change("stream", "clix", "add"), Change("stream", "clicks", "stop")
    pipeline = Change("pipeline", "words", "change")
    for clear in ([added, pipeline], [stopped, pipeline]):
        assert unclear_renames(clear, [], "forebay apply") is None
    asked = unclear_renames([added, stopped, pipeline], ["others", "clikcs"], "forebay up")
    assert asked is not None
    assert 'renamed_from="clicks"' in asked
    assert "the URL of HTTP senders changes" in asked
    assert "`forebay up --stop clicks`" in asked
    assert asked.startswith("--stop clikcs: did you mean clicks? Is clix the stream clicks")
    both = unclear_renames([added, stopped, Change("stream", "more", "stop")], ["clicks"], "forebay up")
    assert both is not None
    assert "Is clix the stream more" in both
    assert "`forebay up --stop clicks --stop more`" in both
    assert unclear_renames([added, stopped], ["clicks"], "forebay apply") is None


@pytest.mark.parametrize(
    ("old", "applied", "said"),
    [
        (None, {"clicks"}, ""),
        ("clix", set(), ""),
        ("clicks", {"clicks"}, ""),
        ("clicks", {"clix"}, ""),
        ("clikcs", {"clicks"}, "has no stream of that name: clix is a new one; did you mean clicks?"),
        ("clicks", set(), ""),
        ("clicks", {"others"}, "has no stream of that name: clix is a new one."),
        (
            "clicks",
            {"clicks", "clix"},
            "apply when nothing of clix waits, `forebay streams remove clix`, and rename.",
        ),
        ("others", {"others", "clix"}, "both streams exist: leave it out."),
    ],
    ids=["none", "itself", "renames", "done", "mistyped", "first apply", "elsewhere", "too late", "both read"],
)
def test_a_name_before_that_renames_nothing_is_said(old: str | None, applied: set[str], said: str) -> None:
    hints = idle_renames([stream("clix", old), stream("others")], applied)
    assert len(hints) == bool(said)
    for hint in hints:
        assert hint.startswith(f"stream 'clix': renamed_from={old!r} has no effect")
        assert hint.endswith(said)


def test_two_streams_can_not_go_on_with_one() -> None:
    with pytest.raises(DeclarationError, match="stream 'b': renamed_from='old': stream 'a' has the same"):
        refuse_to_rename({"a": "old", "b": "old"}, {"a", "b"}, {}, "")
