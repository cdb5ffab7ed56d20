"""Test that datagrams which grow are handed on in parts, each of them once, and that a replay judges alike."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import pytest

from forebay_contrib.gelf.declaration import Gelf
from forebay_contrib.gelf.framing import GelfFraming
from receiver_runtime.receivers.http.declaration import Http

if TYPE_CHECKING:
    from receiver_runtime.sources.source import Source


def test_a_read_of_compressed_datagrams_is_in_memory_in_parts() -> None:
    framing = GelfFraming(Gelf(listen="127.0.0.1:1"))
    texts = [json.dumps({"short_message": f"{number} " + "x" * 1_000_000}) for number in range(20)]
    datagrams = [zlib.compress(text.encode()) for text in texts]
    parts = [cut.records for cut in framing.cut_datagrams(datagrams, ["10.0.0.1"] * 20) if cut.records is not None]
    assert [row for part in parts for row in part["value"].to_pylist()] == texts
    assert max(part.num_rows for part in parts) == 5


@pytest.mark.parametrize("source", [Gelf(listen="127.0.0.1:1"), Http(listen="127.0.0.1:0", protocols=("gelf",))])
def test_a_dead_letter_that_is_no_message_never_fits_a_typed_stream(source: Source) -> None:
    letters = [b'{"host":"w"}', b'{"host":"w","short_message":"m","n":"no number"}']
    assert source.refusals("does_not_fit", letters) == {0: "the member short_message is missing: give it"}
