"""Check which ends of processes `forebay up` tells of, and that one that ends again and again is no flood."""

from __future__ import annotations

from forebay.cli.checks.process_watch import MOST_QUIET_SECONDS, QUIET_SECONDS, End, ProcessWatch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_that_ends_again_and_again_is_told_of_ever_more_seldom() -> None:
    told: list[tuple[float, str]] = []
    clock = Clock()
    watch = ProcessWatch(lambda line: told.append((clock.now, line)), location="x", clock=clock)
    crashes = 0
    while clock.now < 86_400:
        crashes += 1
        watch.report(
            [End("events/0", f"receiver process was killed by SIGKILL; crash {crashes}", "forebay logs events/0")]
        )
        clock.now += 5
    assert told[0] == (0.0, "events/0: receiver process was killed by SIGKILL; crash 1: forebay logs events/0")
    assert told[1][0] == QUIET_SECONDS
    assert told[1][1].endswith("killed by SIGKILL; crash 13 (12 times since the last line): forebay logs events/0")
    assert len(told) < 7 + 86_400 / MOST_QUIET_SECONDS
    # So it is if it ends only now and then.
    told.clear()
    for _ in range(288):
        clock.now += 300
        watch.report([End("events/0", "receiver process was killed by SIGKILL; crash 1", "forebay logs events/0")])
    assert len(told) <= 86_400 / MOST_QUIET_SECONDS + 1
    # One that has been well for long is told of at once, and soon again.
    clock.now += 3 * MOST_QUIET_SECONDS
    for _ in range(2):
        told.clear()
        watch.report([End("events/0", "receiver process was killed by SIGKILL; crash 1", "forebay logs events/0")])
        assert len(told) == 1
        clock.now += QUIET_SECONDS


def test_receivers_that_end_together_are_one_line_and_each_keeps_its_own_quiet() -> None:
    told: list[str] = []
    watch = ProcessWatch(told.append, location="x", clock=Clock())
    ends = [
        End(f"s/{number}", f"killed with 3 receivers; crash {number}", f"forebay logs s/{number}")
        for number in range(3)
    ]
    watch.report(ends[:2])
    watch.report([*ends, End("batch driver", "its process (pid 7) ended", "forebay logs agent")])
    assert told == [
        "s/0 and 1 more: killed with 3 receivers; crash 0: forebay logs s/0",
        "s/2: killed with 3 receivers; crash 2: forebay logs s/2",
        "batch driver: its process (pid 7) ended: forebay logs agent",
    ]
