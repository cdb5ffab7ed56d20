"""Check the parts of launcher and batch driver that need no services: routing, states, changed code."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from orchestration.run_launcher.driver_state import DRIVER_TRANSITIONS, DriverState, DriverStates
from orchestration.run_launcher.launcher import is_batch_run
from orchestration.run_launcher.loaded_code import LoadedCode
from orchestration.run_launcher.recycling import Recycling
from tracker_store.schema.states import BATCH_DRIVER_TRANSITIONS, BatchDriverState

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"forebay/pipeline": "p", "forebay/batch_time": "t"}, True),
        ({"forebay/pipeline": "p", "forebay/batch_time": "t", "dagster/run_key": "t:1"}, True),
        ({"forebay/pipeline": "p"}, False),
        ({"forebay/batch_time": "t"}, False),
        ({}, False),
    ],
)
def test_a_batch_run_is_recognized_by_two_tags(tags: dict[str, str], expected: bool) -> None:
    assert is_batch_run(tags) is expected


def test_every_driver_state_is_in_the_table_and_leads_to_an_end() -> None:
    assert set(DRIVER_TRANSITIONS) == set(DriverState)
    assert set(BATCH_DRIVER_TRANSITIONS) == set(BatchDriverState)
    for state in DriverState:
        reached, new = {state}, {state}
        while new:
            new = {to for was in new for to in DRIVER_TRANSITIONS[was]} - reached
            reached |= new
        assert DriverState.ENDED in reached


def test_a_move_missing_from_the_table_is_an_error() -> None:
    states = DriverStates()
    with pytest.raises(RuntimeError, match="starting -> running"):
        states.move(DriverState.RUNNING)
    assert states.state is DriverState.STARTING


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "users_pipeline_of_this_test.py"
    file.write_text("import users_helper_of_this_test\n", encoding="utf-8")
    (tmp_path / "users_helper_of_this_test.py").write_text("VALUE = 1\n", encoding="utf-8")
    importlib.import_module("users_pipeline_of_this_test")
    return file


def test_changes_to_a_users_module_and_its_imports_are_noticed(user_module: Path) -> None:
    code = LoadedCode("users_pipeline_of_this_test")
    assert code.changed() is None
    helper = user_module.with_name("users_helper_of_this_test.py")
    helper.write_text("VALUE = 22\n", encoding="utf-8")
    assert code.changed() == str(helper)


def test_a_deleted_file_counts_as_changed(user_module: Path) -> None:
    code = LoadedCode(str(user_module))
    user_module.unlink()
    assert code.changed() == str(user_module)


def test_installed_packages_and_our_own_are_not_users_code() -> None:
    files = LoadedCode("forebay.demo.pipeline")._seen
    for name in ("structlog", "orchestration.run_launcher.launcher", "json"):
        assert sys.modules[name].__file__ not in files


def test_a_driver_is_replaced_for_three_reasons(user_module: Path) -> None:
    code = LoadedCode("users_pipeline_of_this_test")
    assert Recycling(code, max_runs=10, max_memory_mb=1_000_000).reason() is None
    many = Recycling(code, max_runs=10, max_memory_mb=1_000_000)
    many.runs = 10
    assert many.reason() == "10 runs (at most 10)"
    large = Recycling(code, max_runs=1_000, max_memory_mb=1)
    # A driver that starts above the limit is not replaced at once: each successor would start above it too.
    assert large.reason() is None
    large.runs = 10
    assert "MiB (at most 1)" in str(large.reason())
    user_module.write_text("CHANGED = True\n", encoding="utf-8")
    assert "is not as it was loaded" in str(Recycling(code, max_runs=10, max_memory_mb=1_000_000).reason())
