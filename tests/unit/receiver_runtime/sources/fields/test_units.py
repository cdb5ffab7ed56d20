from __future__ import annotations

import pytest

from receiver_runtime.sources.fields.units import parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("200ms", 0.2), ("2s", 2.0), ("1.5 m", 90.0), ("1h", 3600.0), ("7d", 604800.0), (3, 3.0), (0.25, 0.25)],
)
def test_durations_are_parsed_as_seconds(value: object, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "5", "ms", "-1s", "1 week", -1, float("nan"), True, None])
def test_an_invalid_duration_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match="as '200ms'"):
        parse_duration(value)


@pytest.mark.parametrize("value", ["36501d", "9" * 400 + "d", 10**400, float("inf"), 36_500 * 86_400.0 + 1])
def test_a_duration_that_no_date_can_be_added_to_is_refused(value: object) -> None:
    assert parse_duration("36500d") == 36_500 * 86_400.0
    with pytest.raises(ValueError, match="is longer than 36500 days"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("value", "size"), [("16MiB", 2**24), ("64KB", 64_000), ("7", 7), ("1.5KiB", 1536), (12, 12), ("1GiB", 2**30)]
)
def test_sizes_are_parsed_as_bytes(value: object, size: int) -> None:
    assert parse_bytes(value) == size


@pytest.mark.parametrize("value", ["", "MiB", "1.0001KB!", "0.3B", "1TiB", -1, 1.5, True, None])
def test_an_invalid_size_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match="as '16MiB'"):
        parse_bytes(value)
