"""A code location with one event sensor; its function writes each event that it is called with to a file."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from forebay.dagster import EventKind, ListenerEvent, event_sensor

CALLS = "FOREBAY_TEST_CALLS"


def write_down(event: ListenerEvent) -> None:
    """Write the event's message to a file of its own name, once per call."""
    with (Path(os.environ[CALLS]) / event.message).open("a", encoding="utf-8") as file:
        file.write("called\n")


defs = dg.Definitions(
    sensors=[event_sensor(write_down, kinds=[EventKind.RECEIVER_ERROR], start="earliest", most_runs_per_tick=2)]
)
