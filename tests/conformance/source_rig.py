"""The conformance suite's rig, with processes that are forked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing import source_rig
from tests.support.receivers.forked_receiver import ForkedReceivers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SourceRig(ForkedReceivers, source_rig.SourceRig):
    """See the module."""


@pytest.fixture
def make_rig(database_url: str, tmp_path: Path) -> Iterator[source_rig.MakeRig]:
    """Return a function that makes a stream of a source with its receivers; it takes `SourceRig.make`'s arguments."""
    with source_rig.make_rigs(database_url, tmp_path, SourceRig) as make:
        yield make
