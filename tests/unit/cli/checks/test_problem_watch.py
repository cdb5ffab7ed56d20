"""Check which changes of the system `forebay up` tells of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.checks.problem_watch import QUIET_SECONDS, ProblemWatch
from orchestration.status_page.problems import Problem


def test_a_problem_is_told_once_however_its_numbers_change_and_its_end_too() -> None:
    told: list[str] = []
    now = 0.0
    watch = ProblemWatch(told.append, lambda: now)
    failed = Problem("words has 1 failed batch(es), to be tried again", "forebay batches list")
    watch.compare([failed])
    watch.compare(
        [
            Problem("words has 12 failed batch(es), to be tried again"),
            Problem("clicks/1 is degraded: " + "x" * 999, "forebay receivers list"),
        ]
    )
    assert told[0] == f"{failed.what}: forebay batches list"
    assert told[1].startswith("clicks/1 is degraded: xxx")
    assert told[1].endswith("x: forebay receivers list"), "the command survives"
    assert len(told[1]) == 400
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


def _problems(numbers: list[int]) -> list[Problem]:
    """Return some of a few problems, whose figures and words differ from one look to the next."""
    found = []
    for place, number in enumerate(numbers):
        name = "abc"[place]
        if number % 4 == 1:
            found.append(Problem(f"{name} is {number} s behind its source", "forebay status", f"behind {name}"))
        if number % 4 == 2:
            found.append(Problem(f"{name} has a quarantined batch", "forebay batches show", f"quarantined {name}", "x"))
        if number % 4 == 3:
            found.append(Problem(f"{name} has {number} quarantined batches", "", f"quarantined {name}"))
        if number % 8 > 5:
            found.append(Problem(f"{name}/1 is FAILED: no host"))
    return found


LOOKS = st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=3), st.sampled_from((5.0, 20.0, 70.0))), max_size=25)


@given(LOOKS)
def test_each_line_that_ends_a_problem_repeats_the_words_that_began_it(looks: list[tuple[list[int], float]]) -> None:
    told: list[str] = []
    now = 0.0
    watch = ProblemWatch(told.append, lambda: now)
    for numbers, seconds in looks:
        watch.compare(_problems(numbers))
        now += seconds
    last = _problems(looks[-1][0]) if looks else []
    for found in (last, []):
        # What is said is what is there, once all may be told.
        for _ in range(2):
            watch.compare(found)
            now += QUIET_SECONDS
        begun: list[str] = []
        for line in told:
            if line.startswith("no longer: "):
                ended = [one for one in begun if one.startswith(line.removeprefix("no longer: "))]
                assert ended, f"{line!r} ends nothing that was said: {begun}"
                begun.remove(ended[0])
            else:
                # Other words of the same trouble replace those that were said.
                begun = [one for one in begun if _trouble(one) != _trouble(line)] + [line]
        assert sorted(map(_trouble, begun)) == sorted(_trouble(problem.line) for problem in found)


def _trouble(line: str) -> tuple[str, str]:
    """Return the subject and the kind of trouble that a line names."""
    return line.partition(" ")[0], next(kind for kind in ("behind", "quarantined", "FAILED") if kind in line)
