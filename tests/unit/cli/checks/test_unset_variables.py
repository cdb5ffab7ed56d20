"""Test which sources and sinks are said to lack an environment variable: those that are new or have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.cli.checks.unset_variables import unset_here, unset_variables

if TYPE_CHECKING:
    import pytest


def declared(tokens: list[str], url: str) -> dict[str, Any]:
    sink = {"kind": "postgres", "url": url, "password": None, "table": "env:no name", "options": {"at": "file:/PW"}}
    source = {"kind": "http", "listen": "0.0.0.0:80", "tokens": tokens}
    return {
        "streams": {"lines": {"source": source, "receivers": 1}},
        "pipelines": {"words": {"interval_ms": 5, "outputs": {"counts": {"inputs": ["lines"], "sink": sink}}}},
    }


def test_new_and_changed_parts_name_what_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FB_A", "FB_B", "FB_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FB_SET", "x")
    now = declared(["env:FB_SET", "env:FB_B", "env:FB_A"], "env:FB_URL")
    nothing: dict[str, Any] = {"streams": {}, "pipelines": {}}
    lacks = "which the environment of `forebay up` does not have, and without which"
    ends = "set it there, and start `forebay up` again."
    of_stream = f"stream 'lines' refers to FB_A, FB_B, {lacks} its receivers don't start: {ends}"
    of_sink = f"output 'counts' of pipeline 'words' refers to FB_URL, {lacks} its batches are BLOCKED: {ends}"
    assert [*unset_variables(nothing, now)] == [of_stream, of_sink]
    here = "which this process does not have:"
    assert unset_here(nothing, now) == [
        f"stream 'lines' refers to FB_A, FB_B, {here} its receivers don't start where it is not set.",
        f"output 'counts' of pipeline 'words' refers to FB_URL, {here} its batches are BLOCKED where it is not set.",
    ]
    assert [*unset_variables(now, now)] == unset_here(now, now) == []
    assert [*unset_variables(declared(["env:FB_SET"], "env:FB_URL"), now)] == [of_stream]
    monkeypatch.setenv("FB_URL", "postgresql://h/d")
    assert [*unset_variables(declared(["env:FB_SET", "env:FB_B", "env:FB_A"], "x"), now)] == []


def test_a_source_names_what_receivers_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FB_SHARED", "x")
    of_output, shared = declared([], "env:FB_SHARED"), declared(["env:FB_SHARED"], "env:FB_SHARED")
    [said] = unset_variables(of_output, shared, ["FB_SHARED"])
    assert said.startswith("stream 'lines' refers to FB_SHARED, which receivers do not have")
    assert [*unset_variables(of_output, shared)] == []
    assert [*unset_variables(declared([], "x"), of_output, ["FB_SHARED"])] == [], "batches have it"
