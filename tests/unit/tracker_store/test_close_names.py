"""Test which name is meant by one that does not exist, and that no other module has a rule of its own for that."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracker_store
from tracker_store.close_names import did_you_mean
from tracker_store.connection.errors import UnknownNameError

ROOT = Path(tracker_store.__file__).parent.parent


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("event", "did you mean events?"),
        ("EVENTS", "did you mean events?"),
        ("clics", "did you mean Clicks?"),
        ("orders/9", "did you mean orders/1?"),
        ("zebra", ""),
        ("", ""),
    ],
)
def test_the_name_that_is_most_alike_is_meant(given: str, meant: str) -> None:
    assert did_you_mean(given, ["events", "Clicks", "orders/1"]) == meant


def test_an_unknown_name_is_compared_with_all_that_there_are_and_some_are_listed() -> None:
    names = [f"a{number}" for number in range(100)]
    said = str(UnknownNameError.of("stream", "wordz", [*names, "words"], "Apply it."))
    assert said.startswith("stream 'wordz' is not in the driver log, which has a0, a1, ")
    assert said.endswith(", a19 and 81 more. Did you mean words?")
    assert str(UnknownNameError.of("stream", "x", [], "Apply it.")) == (
        "stream 'x' is not in the driver log, which has no stream. Apply it."
    )


def test_there_is_one_rule() -> None:
    packages = ("forebay", "forebay_contrib", "orchestration", "receiver_runtime", "tracker_store")
    modules = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    with_a_rule = [str(path.relative_to(ROOT)) for path in modules if "get_close_matches" in path.read_text("utf-8")]
    assert with_a_rule == ["tracker_store/close_names.py"]
