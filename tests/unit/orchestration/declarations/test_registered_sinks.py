"""Check that a sink of another package takes part like Forebay's own, and that a broken one harms no other kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import forebay
from forebay import DeltaSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.declarations.apply import refuse_to_share
from orchestration.declarations.sink import GROUP, place_of
from receiver_runtime.sources.plugins import PluginError
from tests.support.installed_package import install_package
from tracker_store.connection.errors import SharedPlaceError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestration.declarations.sink import Sink

STRANGER = """
from orchestration.declarations.sink import DeliveryGuarantee, Place, Sink, Written

class QueueSink(Sink):
    guarantee = DeliveryGuarantee.AT_LEAST_ONCE

    def __init__(self, name):
        self.name = name

    def declaration(self):
        return {"kind": "queue", "name": self.name}

    @classmethod
    def place(cls, declaration):
        return Place(("queue", declaration["name"]), f"queue {declaration['name']}")

    def write(self, result, attempt):
        return Written(self.name, None)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def pipeline(*sinks: Sink) -> Pipeline:
    declared = Pipeline("words", interval="10s")
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    for number, sink in enumerate(sinks):
        declared.output(inputs=[lines], sink=sink, name=f"output{number}")(lambda frame: frame)
    return declared


def test_a_strangers_sink_is_found_by_its_name_and_has_its_place_to_itself(install: Path) -> None:
    install_package(install, "stranger", GROUP, "queue = stranger_code:QueueSink", STRANGER)
    sink = getattr(forebay, "QueueSink")  # noqa: B009  no type checker knows it
    assert "QueueSink" in dir(forebay)
    refuse_to_share([pipeline(sink("one"), sink("other"))], {})
    with pytest.raises(SharedPlaceError, match=r"'output1' .* writes to queue one, as output 'output0'"):
        refuse_to_share([pipeline(sink("one"), sink("one"))], {})


def test_a_declaration_of_a_package_that_is_not_installed_has_no_place() -> None:
    assert place_of({"kind": "stone", "name": "one"}) is None
    assert place_of({}) is None


def test_a_broken_package_harms_only_those_who_use_it(install: Path) -> None:
    install_package(install, "broken", GROUP, "stone = broken_code:StoneSink", "raise RuntimeError('unplugged')")
    with pytest.raises(PluginError, match=r"broken 1\.5.*unplugged"):
        getattr(forebay, "StoneSink")  # noqa: B009
    with pytest.raises(PluginError, match=r"broken 1\.5.*unplugged"):
        place_of({"kind": "stone"})

    class OfABrokenPackage(DeltaSink):
        def declaration(self) -> dict[str, object]:
            return {"kind": "stone"}

    refuse_to_share([pipeline(OfABrokenPackage("/one"), DeltaSink("/one"))], {})


def test_what_nobody_registers_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'forebay' has no attribute 'DeltaSnk'"):
        getattr(forebay, "DeltaSnk")  # noqa: B009
