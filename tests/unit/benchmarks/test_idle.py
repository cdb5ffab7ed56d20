"""Test how the idle benchmark attributes CPU time and memory to processes."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.idle import Look, cpu_between, proportional_memory, role_of


@pytest.mark.parametrize(
    ("command_line", "role"),
    [
        ("python -m forebay.cli up my_pipeline", "forebay up"),
        ("python -m forebay.cli agent --roles receivers,tracker,batch-driver", "agent"),
        ("python -m forebay.cli batch-driver --agent-line --host here", "batch driver"),
        ("python -m forebay.cli receiver --host here --spare", "receiver process, and its spare"),
        ("python -I -S /x/forebay/cli/services/guard.py -- python -m dagster._daemon run", "guards"),
        ("python -m dagster._daemon run -w workspace.yaml", "Dagster's daemon"),
        ("postgres: forebay_services forebay [local] idle", "Postgres"),
        ("vi notes", "others"),
    ],
)
def test_role_of_a_process_is_found_by_its_command_line(command_line: str, role: str) -> None:
    assert role_of(command_line) == role


def test_cpu_between_two_looks_includes_children_that_began_and_ended_meanwhile() -> None:
    before = {1: Look("Postgres", 0, own=10.0, ended_children=5.0)}
    after = {
        1: Look("Postgres", 0, own=11.0, ended_children=5.5),
        2: Look("Postgres", 1, own=0.25, ended_children=0.0),
    }
    assert cpu_between(before, after) == {"Postgres": pytest.approx(1.75)}


def test_child_that_ends_meanwhile_counts_only_from_the_first_look_on() -> None:
    before = {
        1: Look("Postgres", 0, own=10.0, ended_children=0.0),
        2: Look("Postgres", 1, own=3.0, ended_children=0.0),
    }
    after = {1: Look("Postgres", 0, own=10.0, ended_children=3.5)}
    assert cpu_between(before, after) == {"Postgres": pytest.approx(0.5)}


def test_child_that_nobody_waited_for_takes_nothing_from_its_parents_role() -> None:
    before = {
        1: Look("Spark's Python workers", 0, own=1.0, ended_children=0.0),
        2: Look("Spark's Python workers", 1, own=3.0, ended_children=0.0),
    }
    after = {1: Look("Spark's Python workers", 0, own=1.5, ended_children=0.0)}
    assert cpu_between(before, after) == {"Spark's Python workers": pytest.approx(0.5)}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the proportional set size")
def test_memory_of_a_process_is_its_share_of_pages() -> None:
    assert proportional_memory(os.getpid()) > 1_000_000


def test_memory_of_a_process_that_has_ended_is_none() -> None:
    assert proportional_memory(2**30) == 0
