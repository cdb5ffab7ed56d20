"""Tests of shippers that follow a file, which a kind's tests import with all that is beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.source_rig import make_rig as make_rig  # noqa: PLC0414  a fixture
from tests.support.shippers.scenes import (
    TOKEN,
    TOKEN_VARIABLE,
    Shipper,
    check_lines_arrive,
    check_nothing_is_lost_by_kills,
    check_one_that_is_refused_holds_up_no_other,
)

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.testing.source_rig import MakeRig


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each of the ``SHIPPERS`` of its module."""
    if "shipper" in metafunc.fixturenames:
        shippers: dict[str, Shipper] = metafunc.module.SHIPPERS
        metafunc.parametrize("shipper", shippers.values(), ids=shippers.keys())


def test_each_line_arrives(shipper: Shipper, tmp_path: Path) -> None:
    check_lines_arrive(shipper, tmp_path)


def test_a_line_that_is_refused_holds_up_no_other(shipper: Shipper, tmp_path: Path) -> None:
    if not shipper.has_text:
        pytest.skip("it sends numbers, and none is too large")
    check_one_that_is_refused_holds_up_no_other(shipper, tmp_path)


def test_nothing_is_lost_by_kills(shipper: Shipper, make_rig: MakeRig, tmp_path: Path) -> None:
    check_nothing_is_lost_by_kills(shipper, make_rig, tmp_path)
