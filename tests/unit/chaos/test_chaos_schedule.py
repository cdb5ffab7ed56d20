"""Check the schedule of `make chaos`: it is a function of the seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.chaos.faults import _NAMED
from tests.chaos.proxies import Mode
from tests.chaos.schedule import KINDS, chosen, rounds, schedule
from tests.chaos.system import _ROLES

ALL = list(KINDS)


def test_same_seed_gives_same_schedule_and_other_seed_another() -> None:
    assert schedule(7, 600, ALL) == schedule(7, 600, ALL)
    assert schedule(7, 600, ALL) != schedule(8, 600, ALL)


def test_schedule_of_a_seed_is_the_same_in_every_python_version() -> None:
    found = [planned.kind for planned in schedule(1, 60, ["kill-receiver", "kill-agent", "stop-jvm"])]
    assert found[:4] == ["stop-jvm", "kill-receiver", "kill-agent", "kill-receiver"]


def test_every_kind_comes_once_before_any_is_repeated() -> None:
    kinds = [planned.kind for planned in schedule(3, 7200, ALL)]
    assert len(kinds) > 3 * len(ALL)
    counts = [kinds.count(kind) for kind in ALL]
    assert min(counts) >= 2
    assert max(counts) - min(counts) <= 2


def test_faults_overlap_but_never_on_one_resource() -> None:
    overlapping = 0
    by_round: dict[int, list[tuple[float, float, str]]] = {}
    for planned in schedule(5, 7200, ALL):
        by_round.setdefault(planned.round, []).append((planned.at, planned.at + planned.seconds, planned.kind))
    for spans in by_round.values():
        for one, (begin, end, kind) in enumerate(spans):
            for other_begin, other_end, other in spans[one + 1 :]:
                if other_begin < end and begin < other_end:
                    overlapping += 1
                    assert KINDS[kind].resource != KINDS[other].resource
    assert overlapping > 20


def test_rounds_are_equal_and_fill_the_run() -> None:
    assert rounds(90) == [90]
    assert sum(rounds(7200)) == pytest.approx(7200)
    assert all(one == other for one, other in pairwise(rounds(7200)))
    assert {planned.round for planned in schedule(1, 900, ALL)} == {0, 1, 2}


def test_every_fault_begins_within_its_round() -> None:
    [length, *_] = rounds(1200)
    for planned in schedule(2, 1200, ALL):
        assert 0 <= planned.at < length + 30
        assert 0 <= planned.pick < 1


def test_kinds_are_chosen_by_name_prefix() -> None:
    assert chosen("") == ALL
    assert chosen("kill-re,memory") == ["kill-receiver", "memory"]
    assert set(chosen("net-http,!net-http-stall")) == {"net-http-cut", "net-http-delay", "net-http-reset"}
    assert "store-full" not in chosen("!store")
    with pytest.raises(ValueError, match="matches no fault"):
        chosen("earthquake")


def test_a_single_kind_is_repeated() -> None:
    found = schedule(1, 120, ["stop-postgres"])
    assert len(found) > 3
    assert all(one.at + one.seconds <= other.at for one, other in pairwise(found))


@pytest.mark.parametrize("kind", ALL)
def test_each_kind_can_be_injected(kind: str) -> None:
    verb, _, rest = kind.partition("-")
    if kind in _NAMED:
        return
    match verb:
        case "kill" | "stop":
            assert rest in {*_ROLES, "jvm", "guard", "up"}
        case "net":
            link, _, trouble = rest.partition("-")
            assert link in {"http", "kafka", "target", "log"}
            assert trouble == "reset" or trouble in set(Mode)
        case _:
            assert verb == "block"
            assert rest in {"flip", "cut", "delete"}
