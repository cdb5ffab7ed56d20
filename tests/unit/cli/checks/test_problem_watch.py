"""Check which changes of the system `forebay up` tells of."""

from __future__ import annotations

from forebay.cli.checks.problem_watch import QUIET_SECONDS, ProblemWatch
from orchestration.status_page.problems import Problem


def test_a_problem_is_told_once_however_its_numbers_change_and_its_end_too() -> None:
    told: list[str] = []
    now = 0.0
    watch = ProblemWatch(told.append, lambda: now)
    failed = Problem("words has 1 failed batch(es), to be tried again", "forebay batches list")
    watch.compare([failed])
    watch.compare(
        [Problem("words has 12 failed batch(es), to be tried again"), Problem("clicks/1 is degraded: " + "x" * 999)]
    )
    assert told[0] == f"{failed.what}: forebay batches list"
    assert told[1].startswith("clicks/1 is degraded: xxx")
    assert told[1].endswith("x…")
    assert len(told) == 2
    # It comes and goes: neither is told before some time has passed.
    for _ in range(3):
        watch.compare([])
        watch.compare([failed])
    assert len(told) == 2
    watch.compare([])
    now = QUIET_SECONDS
    watch.compare([])
    assert sorted(line[:28] for line in told[2:]) == ["no longer: clicks/1 is degra", "no longer: words has 1 faile"]
    watch.compare([])
    assert len(told) == 4
    now *= 2
    watch.compare([failed])
    assert told[4:] == [failed.line]


def test_receivers_are_told_apart_by_their_numbers_and_pipelines_by_their_names() -> None:
    told: list[str] = []
    watch = ProblemWatch(told.append, lambda: 0.0)
    watch.compare([Problem("orders/1 is FAILED: x"), Problem("v1 is halted")])
    watch.compare([Problem(f"{one} is FAILED: x") for one in ("orders/1", "orders/2")] + [Problem("v2 is halted")])
    assert sorted(told) == ["orders/1 is FAILED: x", "orders/2 is FAILED: x", "v1 is halted", "v2 is halted"]


def test_a_trouble_that_is_put_in_other_words_is_not_called_over() -> None:
    told: list[str] = []
    now = 0.0
    watch = ProblemWatch(told.append, lambda: now)
    one = Problem("shop has a quarantined batch at 12:00", about="quarantined shop")
    several = Problem("shop has 2 quarantined batches", about="quarantined shop")
    for found in (one, several, one):
        watch.compare([found])
        now += 2 * QUIET_SECONDS
    watch.compare([])
    assert told == [one.what, several.what, one.what, f"no longer: {one.what}"]


def test_one_and_many_are_the_same_problem() -> None:
    told: list[str] = []
    watch = ProblemWatch(told.append, lambda: 0.0)
    for what in (
        ("clicks/1: 1 request refused: 404 /v1", "clicks/1: 288 requests refused: 404 /v1"),
        ("1 batch is waiting", "2 batches are waiting"),
        ("1 file has no reader", "30 files have no reader"),
    ):
        watch.compare([Problem(what[0])])
        told.clear()
        watch.compare([Problem(what[1])])
        assert told == []
