"""Measure what the check of text columns costs: CPU per million lines, beside what encoding the same blocks costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.ingest_sender import LINE_BYTES
from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_store.frames.payload import encode_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_SCHEMA = pa.schema([("value", pa.string())])


@dataclass(frozen=True, slots=True)
class TextCost:
    """Hold the CPU seconds of one thread per million lines."""

    check: float
    encode: float


def text_cost(corpus: Path, block_bytes: int, rounds: int) -> TextCost:
    """Check, and encode by lz4, the corpus in blocks of this size; return the fastest round of each."""
    lines = corpus.read_bytes().splitlines()
    at_once = max(1, block_bytes // LINE_BYTES)
    blocks = [
        pa.record_batch([pa.array(lines[first : first + at_once], pa.string())], schema=_SCHEMA)
        for first in range(0, len(lines), at_once)
    ]
    check = TextCheck(_SCHEMA)

    def check_block(block: pa.RecordBatch) -> None:
        if not check.is_valid(block):
            raise AssertionError("the corpus is text")

    def encode_block(block: pa.RecordBatch) -> None:
        encode_parts(_SCHEMA, [block], compression="lz4")

    return TextCost(
        check=min(_per_million(blocks, check_block) for _ in range(rounds)),
        encode=min(_per_million(blocks, encode_block) for _ in range(rounds)),
    )


def _per_million(blocks: Sequence[pa.RecordBatch], work: Callable[[pa.RecordBatch], None]) -> float:
    began = time.thread_time()
    for block in blocks:
        work(block)
    took = time.thread_time() - began
    return took / sum(int(block.num_rows) for block in blocks) * 1e6
