"""Test many receivers in one process under a real agent: a failure in one receiver does not affect the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.testing.receiver_processes import eventually
from tests.integration.receiver_runtime.host_rig import HostRig, host_rig

if TYPE_CHECKING:
    from pathlib import Path

    import psutil


def the_process(rig: HostRig) -> psutil.Process:
    [process] = rig.processes()
    return process


def test_one_receiver_comes_and_goes_and_the_others_notice_nothing(database_url: str, tmp_path: Path) -> None:
    with host_rig(database_url, tmp_path, receivers=6, receivers_per_process=9) as (rig, sources):
        pigeon = rig.declare("pigeon", {"kind": "carrier_pigeon"})
        fenced, *others = sources
        rig.place(*sources, pigeon)
        rig.flow(list(sources))
        shared = the_process(rig)
        # A receiver with an invalid declaration has failed alone.
        eventually(lambda: rig.states()[pigeon][0] == "FAILED", "the bad declaration's state")
        assert "carrier_pigeon" in rig.states()[pigeon][1]

        rig.move_away(fenced)
        # The agent stops it, or the driver log's answer to a heartbeat fences it, whichever comes first.
        eventually(lambda: (rig.events("FENCED") | rig.events("STOPPED")).get(fenced), "the end of one")
        stopped_at = rig.records()[fenced]
        rig.flow(others)
        assert rig.records()[fenced] == stopped_at
        assert the_process(rig) == shared

        # It comes back under a newer assignment, in the process that has room.
        rig.place(fenced)
        rig.flow(list(sources))
        assert the_process(rig) == shared
        assert rig.epochs() == {fenced: 2} | dict.fromkeys(others, 1)
        assert rig.events("EXITED") == {}
        assert rig.events("FAILED") == {pigeon: ["the receiver could not start"]}
    assert not shared.is_running()
    for receiver_id in others:
        numbers = rig.numbers(receiver_id)
        assert numbers == list(range(len(numbers)))


def test_a_receiver_that_wants_a_process_of_its_own_has_one(database_url: str, tmp_path: Path) -> None:
    with host_rig(database_url, tmp_path, receivers=4, receivers_per_process=9) as (rig, sources):
        alone, first, second, late = sources
        rig.execute(
            "UPDATE forebay.streams SET declaration = jsonb_set(declaration, '{settings,own_process}', 'true') "
            "WHERE id = (SELECT stream_id FROM forebay.receivers WHERE id = :r)",
            r=alone,
        )
        rig.place(alone, first, second)
        rig.flow([alone, first, second])
        assert len(rig.processes()) == 2
        # A receiver that is placed later joins the shared process.
        rig.place(late)
        rig.flow(list(sources))
        assert len(rig.processes()) == 2
        [(by_itself,)] = rig.execute("SELECT process_id FROM forebay.receivers WHERE id = :r", r=alone)
        holders = rig.execute("SELECT id, process_id FROM forebay.receivers")
        assert [receiver_id for receiver_id, process_id in holders if process_id == by_itself] == [alone]


def test_a_killed_process_comes_back_with_all_of_its_receivers(database_url: str, tmp_path: Path) -> None:
    with host_rig(database_url, tmp_path, receivers=6, receivers_per_process=6) as (rig, sources):
        rig.place(*sources)
        rig.flow(list(sources))
        killed = the_process(rig)
        killed.kill()
        registered = {receiver_id: rig.numbers(receiver_id) for receiver_id in sources}
        eventually(lambda: rig.epochs() == dict.fromkeys(sources, 2), "every receiver's second claim")
        rig.flow(list(sources))
        # The first crash does not split the group, whatever killed the process; here it was no receiver.
        assert the_process(rig).pid != killed.pid
        eventually(lambda: len(rig.events("EXITED")) == 6, "the events")
        for receiver_id, messages in rig.events("EXITED").items():
            assert receiver_id in sources
            assert len(messages) == 1
            assert "was killed by SIGKILL with 6 receivers; crash 1" in messages[0]
    for receiver_id, before in registered.items():
        after = rig.numbers(receiver_id)
        assert after[: len(before)] == before
        assert after == sorted(set(after)), "a line came twice, or out of order"


def test_a_receiver_that_crashes_its_process_soon_runs_alone(database_url: str, tmp_path: Path) -> None:
    with host_rig(database_url, tmp_path, receivers=4, receivers_per_process=4, poison=True) as (rig, sources):
        *innocent, poison = sources
        rig.place(*sources)
        # Twice in a process of four, then in one of at most two, and then alone.
        eventually(lambda: len(rig.events("EXITED").get(poison, [])) >= 4, "crash after crash")
        eventually(lambda: rig.states()[poison][0] in ("SCHEDULED", "ACTIVE"), "more tries")
        rig.flow(innocent)
        claimed = rig.epochs()
        crashes = len(rig.events("EXITED")[poison])
        eventually(lambda: len(rig.events("EXITED")[poison]) > crashes, "one more crash")
        rig.flow(innocent)
        assert {receiver_id: rig.epochs()[receiver_id] for receiver_id in innocent} == {
            receiver_id: claimed[receiver_id] for receiver_id in innocent
        }
        assert all(len(rig.events("EXITED")[receiver_id]) <= 3 for receiver_id in innocent)
        assert "receivers" not in rig.events("EXITED")[poison][-1].partition(";")[0]
    for receiver_id in innocent:
        numbers = rig.numbers(receiver_id)
        assert numbers == sorted(set(numbers))


def test_s04_a_graceful_stop_drains_every_receiver(database_url: str, tmp_path: Path) -> None:
    with host_rig(database_url, tmp_path, receivers=6, receivers_per_process=3, block_interval="300s") as (
        rig,
        sources,
    ):
        rig.place(*sources)
        # Everything stays in the block generators' buffers for the next minutes.
        eventually(lambda: all(source.sent >= 60 for source in sources.values()), "60 lines of each")
        assert len(rig.processes()) == 2
        assert all(records == 0 for records in rig.records().values())
        rig.stop()
        for receiver_id in sources:
            numbers = rig.numbers(receiver_id)
            assert numbers[:40] == list(range(40))
            assert numbers == list(range(len(numbers)))
            assert rig.states()[receiver_id][0] == "INACTIVE"
        assert rig.execute("SELECT * FROM forebay.processes WHERE ended_at IS NULL") == []
