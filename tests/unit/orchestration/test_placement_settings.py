"""Check how placement is set: for each tracker by its environment, and for the one machine of `forebay up`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from forebay.cli.commands.up import Services, _environment, _print_missing_slots
from forebay.cli.terminal.console import Console
from orchestration.declarations.settings import Settings
from orchestration.policies.rebalancing_policy import MoveLimits
from orchestration.tracker.placement_rules import PlacementRules

if TYPE_CHECKING:
    from pathlib import Path


def test_the_rules_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PlacementRules.of(Settings()) == PlacementRules(
        min_agents=None, settle_seconds=5.0, moves=MoveLimits(is_on=True, interval_seconds=10.0, host_seconds=60.0)
    )
    for name, value in {
        "PLACEMENT_MIN_AGENTS": "3",
        "PLACEMENT_SETTLE": "20s",
        "REBALANCE": "false",
        "REBALANCE_INTERVAL": "1m",
        "REBALANCE_HOST_AGE": "500ms",
    }.items():
        monkeypatch.setenv(f"FOREBAY_{name}", value)
    assert PlacementRules.of(Settings()) == PlacementRules(
        min_agents=3, settle_seconds=20.0, moves=MoveLimits(is_on=False, interval_seconds=60.0, host_seconds=0.5)
    )


@pytest.mark.parametrize(
    ("given", "declared", "slots"), [(None, 0, 16), (None, 16, 16), (None, 40, 40), (None, 1_000, 64), (3, 40, 3)]
)
def test_up_has_a_slot_for_each_receiver_up_to_a_bound_that_it_names(
    tmp_path: Path, given: int | None, declared: int, slots: int
) -> None:
    services = Services(Settings(home=tmp_path), slots=given)
    services.receivers = declared
    assert services.slots == slots
    said = io.StringIO()
    _print_missing_slots(Console(file=said, width=200), services)
    assert ("To run all: forebay up --slots" in said.getvalue()) is (declared > slots)


@pytest.mark.parametrize(("given", "min_agents"), [(None, "1"), (3, "3")])
def test_k03_up_waits_for_no_other_agent_unless_it_is_told_to(
    tmp_path: Path, given: int | None, min_agents: str
) -> None:
    settings = Settings(
        home=tmp_path,
        module="forebay.demo.pipeline",
        database_url="postgresql://nobody@127.0.0.1:1/none",
        placement_min_agents=given,
    )
    environment = _environment(settings, tmp_path, "postgresql://nobody@127.0.0.1:1/none", "http://127.0.0.1:1")
    assert environment["FOREBAY_PLACEMENT_MIN_AGENTS"] == min_agents
