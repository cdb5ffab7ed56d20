"""Check that docs/reference/receiver-settings.md is complete, and says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from receiver_runtime.sources.receiver_settings import ReceiverSettings

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "receiver-settings.md").read_text(encoding="utf-8")
# The page's columns: setting, default, unit, what it does, Spark Streaming's key.
_ROW = r"^\| `(\w+)` \| `(\S+)` \| (.+?) \| (.+?) \| (.+?) \|$"
ROWS = {match[1]: match.groups()[1:] for match in re.finditer(_ROW, PAGE, re.MULTILINE)}
NO_KEY = "–"  # noqa: RUF001  the dash that the page prints


def test_every_setting_has_a_row_and_every_row_a_setting() -> None:
    assert list(ROWS) != []
    assert set(ROWS) == set(ReceiverSettings.model_fields)
    assert len(re.findall(r"^\| `", PAGE, re.MULTILINE)) == len(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_defaults_of_page_and_code_are_equal(name: str) -> None:
    said = ROWS[name][0]
    assert getattr(ReceiverSettings.model_validate({name: _value(said)}), name) == getattr(ReceiverSettings(), name)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[1].startswith(("duration", "size"))])
def test_a_value_with_a_unit_is_accepted_where_the_page_says_so(name: str) -> None:
    unit = "s" if ROWS[name][1].startswith("duration") else "MiB"
    assert getattr(ReceiverSettings.model_validate({name: f"7{unit}"}), name) == 7 * (1 if unit == "s" else 2**20)
    with pytest.raises(ValidationError, match="write a number with a unit"):
        ReceiverSettings.model_validate({name: "7 parsecs"})


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "> 0" in row[1]])
def test_0_is_refused_where_the_page_says_so(name: str) -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        ReceiverSettings.model_validate({name: 0})


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "0: " in row[2]])
def test_0_is_accepted_where_the_page_gives_its_meaning(name: str) -> None:
    assert getattr(ReceiverSettings.model_validate({name: 0}), name) == 0


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[3] != NO_KEY])
def test_a_setting_is_named_after_the_spark_key_that_it_follows(name: str) -> None:
    key = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", ROWS[name][3].strip("`").replace(".", "_")).lower()
    renamed = {
        "receiver_write_ahead_log_enable": "durability",
        "receiver_write_ahead_log_rolling_interval_secs": "segment_interval",
        "receiver_write_ahead_log_max_failures": "write_ahead_log_max_failures",
        "receiver_block_store_timeout": "block_store_timeout",
    }
    assert renamed.get(key, key) == name


@pytest.mark.parametrize("name", ["receiver_max_rate", "backpressure_initial_rate"])
@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf")])
def test_an_invalid_rate_is_refused(name: str, rate: float) -> None:
    with pytest.raises(ValidationError):
        ReceiverSettings.model_validate({name: rate})


def _value(said: str) -> object:
    return int(said) if said.isdigit() else said
