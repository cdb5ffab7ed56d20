"""Check what the steady state's load comes to, how its clock is compressed, and what its samples add up to."""

from __future__ import annotations

import pytest

from benchmarks.steady_state import changed_settings, load_of, parsed
from benchmarks.steady_state_model import (
    TABLES,
    Feed,
    Load,
    Pace,
    Sample,
    Spent,
    TableState,
    cleaning_microseconds,
    growth,
    largest,
    shares,
)

MIB = 2**20


def load(**times: int) -> Load:
    return Load(60, Feed("keys", 20, keys=100), Feed("links", 100, links=10), Feed("blocks", 200), **times)


def samples(*sizes: int) -> list[Sample]:
    """Return a sample a minute, in which each table has this size, a quarter of it in indexes."""
    return [
        Sample(minute, dict.fromkeys(TABLES, TableState(0, 0, size - size // 4, size // 4, 0, 0, 0.0)))
        for minute, size in enumerate(sizes, start=1)
    ]


@pytest.mark.parametrize(
    ("rate", "per_block", "receivers", "each"),
    [
        (10_000, 100, 20, 100),
        (5_000, 10, 100, 10),
        (250, 100, 1, 50),  # fewer than one receiver's: smaller blocks
        (1_100, 100, 3, 73),  # the next that comes out even: 1,095 a second
        (1, 100, 1, 1),
    ],
)
def test_a_feed_comes_next_to_its_rate(rate: int, per_block: int, receivers: int, each: int) -> None:
    assert Feed.of("keys", rate, per_block=per_block, what="keys") == Feed("keys", receivers, keys=each)


def test_plain_blocks_have_neither_keys_nor_links() -> None:
    assert Feed.of("blocks", 1_000, per_block=1, what="blocks") == Feed("blocks", 200)


def test_the_usual_load_is_that_of_the_aims() -> None:
    usual = load_of(parsed([]))
    assert usual == load()
    assert usual.cycles == 360
    assert usual.keys.blocks_in(1) * usual.keys.keys == 10_000
    assert usual.links.blocks_in(1) * usual.links.links == 5_000


def test_a_quick_run_is_a_twentieth_of_it_for_three_minutes() -> None:
    quick = load_of(parsed(["--quick"]))
    assert (quick.minutes, quick.keys.blocks_in(1) * quick.keys.keys, quick.key_window) == (3, 500, 60)
    assert load_of(parsed(["--quick", "--minutes", "2", "--key-window", "20"])).key_window == 20


def test_rows_are_kept_for_their_time_a_round_of_clean_up_and_a_batch() -> None:
    assert load(key_window=300, block_retention=60).expected_rows() == {
        "blocks": 100 * (100 + 500 + 1_000),
        "block_offsets": 100 * 5_000,
        "record_keys": 340 * 10_000,
    }


@pytest.mark.parametrize("times", [{"key_window": 25}, {"clean_up": 15}, {"batch": 7}])
def test_times_are_whole_batches(times: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no multiple"):
        load(**times)


def test_thirds_need_two_minutes() -> None:
    with pytest.raises(ValueError, match="two at least"):
        load_of(parsed(["--minutes", "1"]))


@pytest.mark.parametrize(
    ("compression", "nap", "limit", "checkpoint"),
    [(1, "60s", "200", "300s"), (4, "15s", "800", "75s"), (0.5, "120s", "100", "600s"), (200, "1s", "10000", "30s")],
)
def test_the_servers_clock_is_compressed_too(compression: float, nap: str, limit: str, checkpoint: str) -> None:
    assert Pace(compression).settings == {
        "autovacuum_naptime": nap,
        "autovacuum_vacuum_cost_limit": limit,
        "checkpoint_timeout": checkpoint,
    }


def test_the_server_follows_the_pace_only_when_it_is_far_off() -> None:
    assert not Pace(3).is_far_from(Pace(2))
    assert not Pace(2).is_far_from(Pace(3))
    assert Pace(4).is_far_from(Pace(2))
    assert Pace(1).is_far_from(Pace(2))
    assert Pace(2, nap=10).settings["autovacuum_naptime"] == "5s"


def test_a_size_that_levels_off_has_a_growth_of_one() -> None:
    level = samples(*(MIB * size for size in (10, 20, 30, 40, 39, 38, 40, 38, 39)))
    assert largest(level, "blocks", first=1 / 3, last=2 / 3) == 40 * MIB
    assert growth(level, "blocks") == 1
    assert growth(samples(*(MIB * size for size in range(1, 10))), "record_keys") == pytest.approx(9 / 6)


def test_a_table_that_stays_empty_does_not_grow() -> None:
    assert growth(samples(0, 0, 0), "events") == 0


def test_costs_of_a_row() -> None:
    assert Spent(2.0, 6_000, 1_000).cpu_microseconds_each == 2_000
    assert Spent(2.0, 6_000, 1_000).wal_bytes_each == 6
    assert (Spent(2.0, 6_000, 0).cpu_microseconds_each, Spent(2.0, 6_000, 0).wal_bytes_each) == (0, 0)
    assert cleaning_microseconds(Spent(1.0, 0, 1_000), 0.5) == 1_500
    assert cleaning_microseconds(Spent(1.0, 0, 0), 0.5) == 0


def test_autovacuums_cpu_is_divided_by_the_time_in_each_table() -> None:
    assert shares({"blocks": 100.0, "record_keys": 300.0}, 8.0) == {"blocks": 2.0, "record_keys": 6.0}
    assert shares({"blocks": 0.0}, 8.0) == {"blocks": 0.0}


def test_a_storage_parameter_is_a_statement() -> None:
    assert changed_settings(["record_keys.autovacuum_vacuum_scale_factor=0.05"]) == [
        "ALTER TABLE forebay.record_keys SET (autovacuum_vacuum_scale_factor = 0.05)"
    ]


@pytest.mark.parametrize("text", ["record_keys", "record_keys.x", "a.b=1; DROP TABLE x", "a.b="])
def test_what_is_no_storage_parameter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"TABLE\.PARAMETER=VALUE"):
        changed_settings([text])
