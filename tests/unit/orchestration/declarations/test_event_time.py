"""Check that an output by event time is validated where it is declared, and what its sink gets then."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forebay import (
    DeclarationError,
    EventJoin,
    EventWindow,
    ParquetSink,
    Pipeline,
    PostgresSink,
    SessionWindow,
    State,
    Stream,
)
from forebay.sources import Http

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestration.declarations.pipeline import Output
    from orchestration.declarations.state.event_time import EventTime

FINAL = ParquetSink("out")
URL = "postgresql://localhost/x"
clicks = Stream("clicks", Http(listen="127.0.0.1:8080"))
pays = Stream("pays", Http(listen="127.0.0.1:8081"))
WINDOW = EventWindow("5m")
SESSION = SessionWindow("30m", key="user")
JOIN = EventJoin("user", between=("0s", "10m"))
TOTALS = State("user STRING", "n BIGINT")


def timed(stream: Stream = clicks, **changed: Any) -> EventTime:  # noqa: ANN401  arguments
    return stream.by_event_time(**{"column": "at", "lateness": "10m", **changed})


def merge(*key: str) -> PostgresSink:
    return PostgresSink(URL, "out", mode="merge", key=[*key])


def declared(**changed: Any) -> Output:  # noqa: ANN401  arguments
    pipeline = Pipeline("p", interval="10s", **changed.pop("pipeline", {}))
    arguments: dict[str, Any] = {"inputs": [timed()], "window": WINDOW, "sink": FINAL, "name": "made", **changed}
    takes_state = arguments.get("state") is not None
    made = pipeline.output(**arguments)((lambda rows, state: (rows, state)) if takes_state else (lambda rows: rows))
    assert pipeline.outputs["made"] is made
    return made


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"column": ""}, "event time of stream 'clicks': column='': name a column of TIMESTAMP"),
        ({"column": 7}, "column=7: name a column"),
        ({"lateness": "a while"}, "lateness='a while': 'a while' is no duration"),
        ({"lateness": timedelta(-1)}, "lateness=.* must not be negative"),
        ({"lateness": timedelta(microseconds=1)}, "in whole milliseconds"),
        ({"idle": "0s"}, "idle='0s' must be longer than 0"),
        ({"ahead": "0s"}, "ahead='0s' must be longer than 0"),
        ({"lateness": timedelta.max}, "is longer than 36500 days: give less"),
    ],
)
def test_an_event_time_that_can_not_work_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        timed(**changed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EventWindow("0s"), "EventWindow: length='0s' must be longer than 0"),
        (lambda: EventWindow("5m", slide="0s"), "EventWindow: slide='0s' must be longer than 0"),
        (lambda: EventWindow("5m", slide="6m"), "records between two windows would be in none"),
        (lambda: EventWindow("5m", on_failure="stop"), "on_failure='stop' must be one of halt, skip"),  # type: ignore[arg-type]
        (lambda: EventWindow(timedelta.max), "is longer than 36500 days: give less"),
        (lambda: EventWindow("30d", slide="1s"), r"a record would be in 2592000 windows"),
        (lambda: EventWindow("10m", slide="599999ms"), r"of which a window has 600000"),
        (lambda: SessionWindow("0s", key="user"), "SessionWindow: gap='0s' must be longer than 0"),
        (lambda: SessionWindow("5m", key=[]), r"SessionWindow: key=\[\]: give names of columns"),
        (lambda: SessionWindow("5m", key=["user", "user"]), "none twice"),
        (lambda: SessionWindow("5m", key="user", on_failure="stop"), "halt, skip"),  # type: ignore[arg-type]
        (lambda: EventJoin("", between=("0s", "1s")), "EventJoin: on='': give names of columns"),
        (lambda: EventJoin("user", between="1h"), r'give two durations, as between=\("-5m", "1h"\)'),  # type: ignore[arg-type]
        (lambda: EventJoin("user", between=("1h", "5m")), "the first must not be longer than the second"),
        (lambda: EventJoin("user", between=("-1x", "5m")), "EventJoin: between='1x'"),
        (lambda: EventJoin("user", between=("0s", "1h"), how="outer"), "how='outer' must be one of inner, left"),  # type: ignore[arg-type]
        (lambda: EventJoin("user", between=("0s", "1h"), on_failure="stop"), "halt, skip"),  # type: ignore[arg-type]
    ],
)
def test_a_window_or_join_that_can_not_work_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        make()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"window": None}, "output 'made' of pipeline 'p' reads by event time, and has neither windows nor a join"),
        ({"inputs": [clicks]}, r"needs the event time: give inputs=\[STREAM.by_event_time"),
        ({"inputs": [timed(), timed(pays)]}, "takes 1 input.s. by event time, and 2 are given"),
        ({"join": JOIN, "window": None}, "takes 2 input.s. by event time, and 1 are given"),
        ({"join": JOIN}, "window= and join= are two outputs"),
        ({"window": JOIN}, r"give EventWindow\(…\) or SessionWindow\(…\)"),
        ({"window": None, "join": WINDOW}, r"give EventJoin\(…\)"),
        (
            {"window": None, "join": JOIN, "inputs": [clicks, timed(), timed(pays)]},
            r"the two inputs that are joined come first in inputs=\[…\]",
        ),
        ({"state": TOTALS, "window": SESSION}, "keeps the records themselves: leave out state="),
        ({"state": State("user STRING", "n BIGINT", ttl="1d")}, "its state has ttl"),
        ({"state": State("window_start TIMESTAMP", "n BIGINT")}, "its state has window_start"),
        ({"state": State("user STRING", "expires_at TIMESTAMP")}, "its state has expires_at"),
        ({"state": State("user STRING", "window_end TIMESTAMP")}, "its state has window_end"),
        ({"state": State("user STRING", "n BIGINT", keys=lambda rows: rows)}, "neither keys= nor initial="),
        ({"state": State("user STRING", "n BIGINT", initial=lambda spark: spark)}, "neither keys= nor initial="),
        ({"sink": PostgresSink(URL, "out", mode="overwrite")}, "would drop all others: say mode='merge'"),
        ({"sink": merge("user")}, r"window_start must be in it.*give key=\['window_start', …\]"),
        ({"sink": merge("window_start"), "window": SESSION}, r"give key=\['user', 'window_start', …\]"),
        ({"inputs": [clicks], "window": None, "late": FINAL}, "only outputs by event time have late records"),
        ({"pipeline": {"concurrent_batches": 2}}, "has a watermark, and each of its batches needs that of the one"),
    ],
)
def test_an_output_that_can_not_work_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declared(**changed)


@pytest.mark.parametrize(
    ("changed", "updates"),
    [
        ({}, False),
        ({"sink": PostgresSink(URL, "out")}, False),
        ({"sink": merge("window_start", "user")}, True),
        ({"sink": merge("window_start"), "state": TOTALS}, True),
        ({"sink": merge("user", "window_start"), "window": SESSION}, True),
        # A pair is in one result, whatever the sink does with it.
        ({"sink": merge("user"), "window": None, "join": JOIN, "inputs": [timed(), timed(pays)]}, False),
    ],
)
def test_a_sink_that_merges_has_the_rows_of_a_window_replaced(changed: dict[str, Any], updates: bool) -> None:
    made = declared(**changed)
    assert made.event is not None
    assert made.event.updates is updates
    assert made.event.declaration()["emits"] == ("updates" if updates else "final")


def test_late_records_are_an_output_of_their_own() -> None:
    pipeline = Pipeline("p", interval="10s")
    late = ParquetSink("late")

    @pipeline.output(inputs=[timed(), pays], window=WINDOW, sink=merge("window_start"), state=TOTALS, late=late)
    def made(clicks: Any, pays: Any, state: Any) -> Any:  # noqa: ANN401
        return clicks.join(pays), state

    found = pipeline.outputs["made_late"]
    assert found.sink is late
    assert found.streams == (clicks,)
    assert found.event is not None
    assert found.event.declaration()["emits"] == "late records"
    assert (found.event.state, found.event.times) == (None, {0: made.event.times[0]})  # type: ignore[union-attr]
    again = Pipeline("p", interval="10s")
    again.output(inputs=[clicks], sink=FINAL, name="made_late")(lambda rows: rows)
    with pytest.raises(DeclarationError, match="late=: there is an output 'made_late': rename it"):
        again.output(inputs=[timed()], window=WINDOW, sink=FINAL, name="made", late=late)(lambda rows: rows)


def test_a_window_is_made_of_panes_that_none_begins_or_ends_in() -> None:
    assert EventWindow("5m", slide="2m").pane == timedelta(minutes=1)
    assert EventWindow("6m", slide="3m").pane == timedelta(minutes=3)
    assert EventWindow("5m").pane == timedelta(minutes=5)


def test_the_declaration_says_what_the_driver_log_keeps() -> None:
    state = declared(window=EventWindow("5m", slide="1m")).state
    assert state is not None
    assert state.declaration()["made_of"] == {"length_ms": 300_000, "slide_ms": 60_000, "times": [["clicks", "at"]]}
    state = declared(window=SESSION).state
    assert state is not None
    assert state.declaration()["made_of"] == {"gap_ms": 1_800_000, "key": ["user"], "times": [["clicks", "at"]]}
    made = declared(window=None, join=EventJoin("user", between=("-5m", "1h")), inputs=[timed(), timed(pays)])
    assert made.state is not None
    assert made.state.declaration()["made_of"] == {
        "on": ["user"],
        "least_ms": -300_000,
        "most_ms": 3_600_000,
        "how": "inner",
        "times": [["clicks", "at"], ["pays", "at"]],
    }
    assert made.event is not None
    assert made.event.declaration()["inputs"][1] == {
        "stream": "pays",
        "column": "at",
        "lateness_ms": 600_000,
        "idle_ms": 300_000,
        "ahead_ms": 86_400_000,
    }
