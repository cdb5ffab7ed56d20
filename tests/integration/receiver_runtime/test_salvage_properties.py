"""Check that salvage registers each stored block once, in order, whatever a process did before (hypothesis)."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.receiver_runtime.salvage_rig import KilledError, MortalDriverLog, SalvagedReceiver

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

EXAMPLES = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_names = (f"stream{number}" for number in itertools.count())

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)
# The steps of a life: store a block of this many records, store a dead letter, register this many blocks, roll if due.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 20)),
        st.tuples(st.just("dead letter"), st.integers(0, 255)),
        st.tuples(st.just("register"), st.integers(1, 3)),
        st.tuples(st.just("house-keeping"), st.just(0)),
    ),
    max_size=8,
)
# After the steps: salvages, each killed after this number of calls on the driver log.
lives = st.lists(st.tuples(steps, st.booleans(), st.lists(st.integers(0, 8), max_size=3)), min_size=1, max_size=3)


@EXAMPLES
@given(sizes=sizes, registered=st.integers(0, 5), cut=st.floats(0, 1))
def test_a_segment_truncated_at_any_byte_gives_the_blocks_before_it(
    engine: sa.Engine, tmp_path: Path, sizes: list[int], registered: int, cut: float
) -> None:
    receiver = SalvagedReceiver.make(engine, tmp_path / "blocks", next(_names))
    life = receiver.live(receiver.claim())
    blocks = [life.keep(*(f"{number}.{n}" for n in range(size))) for number, size in enumerate(sizes)]
    if registered:
        life.register(registered)
    [path] = receiver.paths()
    # Registered blocks were synced, so no crash truncates them.
    least = sum(block.length for block in (item.handle for item in blocks[:registered]))
    most = sum(block.handle.length for block in blocks)
    at = least + round(cut * (most - least))
    with (receiver.root / path).open("r+b") as file:
        file.truncate(at)
    receiver.salvage(receiver.claim())
    whole = [n for n, block in enumerate(blocks) if block.handle.offset + block.handle.length <= at]
    assert receiver.blocks() == [[f"{number}.{n}" for n in range(sizes[number])] for number in whole]
    assert receiver.segments() == [("SEALED", sum(blocks[n].handle.length for n in whole))]
    assert receiver.events("ERROR") == []
    receiver.check()


@EXAMPLES
@given(lives=lives, segment_bytes=st.sampled_from([1, 1500, 1 << 20]))
def test_kills_between_any_two_steps_of_lives_and_salvages(
    engine: sa.Engine,
    tmp_path: Path,
    lives: list[tuple[list[tuple[str, int]], bool, list[int]]],
    segment_bytes: int,
) -> None:
    receiver = SalvagedReceiver.make(engine, tmp_path / "blocks", next(_names))
    stored: list[list[str]] = []
    letters: list[bytes] = []
    for did, closes, salvages in lives:
        life = receiver.live(max_segment_bytes=segment_bytes)
        for what, number in did:
            if what == "store":
                values = [f"{len(stored)}.{n}" for n in range(number)]
                life.keep(*values)
                stored.append(values)
            elif what == "dead letter":
                letters.append(b"%d %d" % (len(letters), number))
                life.keep_dead_letter(letters[-1])
            elif what == "register":
                life.register(number)
            else:
                life.handler.close_aged_segments()
        if closes:
            life.close()
        for calls in salvages:
            with suppress(KilledError):
                receiver.salvage(receiver.claim(), driver_log=MortalDriverLog(engine, calls=calls))
            receiver.check()
    receiver.salvage(receiver.claim())
    assert receiver.blocks() == stored
    assert receiver.dead_letters() == letters
    assert {state for state, _ in receiver.segments()} <= {"SEALED"}
    assert receiver.events("ERROR") == []
    receiver.check()
