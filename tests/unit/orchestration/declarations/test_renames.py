"""Test what is said of streams that may have, or say that they have, another name."""

from __future__ import annotations

import pytest

from forebay import DeclarationError, Stream
from forebay.sources import SocketText
from orchestration.declarations.renames import idle_renames, refuse_to_rename, removal


def stream(name: str, renamed_from: str | None = None) -> Stream:
    return Stream(name, SocketText(host="127.0.0.1", port=9999), renamed_from=renamed_from)


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
        refuse_to_rename({"a": "old", "b": "old"}, {"a", "b"}, {}, {})


def test_receivers_stop_while_one_pipeline_takes_the_place_of_another_if_a_third_reads_them_too() -> None:
    read = {"words": {"lines", "clicks"}, "terms": {"lines"}, "others": {"more"}}
    told = removal("words", read)
    assert "`forebay receivers stop lines` (because terms reads it too, and what comes meanwhile" in told
    assert told.index("latest") < told.index("receivers stop") < told.index("stop --pipeline words")
    assert told.index("stop --pipeline words") < told.index("pipelines remove words") < told.index("receivers start")
    assert "clicks" not in told
    assert "receivers" not in removal("others", read)
