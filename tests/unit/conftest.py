"""Fixtures for all unit tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="session")
def no_spark_defaults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the machine's own `spark-defaults.conf`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_CONF_DIR", str(tmp_path_factory.mktemp("spark-conf")))
        yield
