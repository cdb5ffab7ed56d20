"""Test the table of a batch's inputs in its Dagster event: bounded, and plain about what has no positions."""

from __future__ import annotations

import dagster as dg

from orchestration.dagster_defs.assets.batch_input_table import MOST_RANGES, input_table
from tracker_store.batches.input_metadata import InputMetadata, InputRange


def ranges(count: int) -> list[InputRange]:
    return [InputRange("orders", "orders", str(number), 0, 10, 20, 3) for number in range(count)]


def test_o03_the_ranges_are_the_rows_of_a_table() -> None:
    values = input_table(InputMetadata(ranges(2), 2, (), known=True))
    assert list(values) == ["inputs"]
    table = values["inputs"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data for record in table.records] == [
        {
            "stream": "orders",
            "source": "orders",
            "partition": partition,
            "generation": 0,
            "from_offset": 10,
            "to_offset": 20,
            "lost": 3,
        }
        for partition in ("0", "1")
    ]


def test_a_table_has_a_bounded_number_of_rows_and_the_rest_is_counted() -> None:
    for read in (MOST_RANGES, 1_000):
        values = input_table(InputMetadata(ranges(read), 1_000, (), known=True))
        table = values["inputs"]
        assert isinstance(table, dg.TableMetadataValue)
        assert len(table.records) == MOST_RANGES
        assert values["inputs_left_out"].value == 1_000 - MOST_RANGES


def test_streams_without_positions_and_unknown_inputs_are_named() -> None:
    none = input_table(InputMetadata((), 0, ("clicks", "sensors"), known=True))
    assert {name: value.value for name, value in none.items()} == {"inputs": "no positions: clicks, sensors"}
    some = input_table(InputMetadata(ranges(1), 1, ("clicks",), known=True))
    assert some["inputs_without_positions"].value == "no positions: clicks"
    unknown = input_table(InputMetadata((), 0, (), known=False))
    assert {name: value.value for name, value in unknown.items()} == {"inputs": "not recorded"}
    assert input_table(InputMetadata((), 0, (), known=True)) == {}, "a batch without records"
