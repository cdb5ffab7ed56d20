"""Check the choice of codecs for ``compression="auto"``: its moves, and its throughput in a model of the block path."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_path.load.codec_choice import (
    FIRST_COMPRESSED_BLOCKS,
    FIRST_UNCOMPRESSED_BLOCKS,
    LEAST_BLOCKS,
    LONGEST_COMPRESSED_BLOCKS,
    LONGEST_UNCOMPRESSED_BLOCKS,
    CodecChoice,
    CodecState,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.load.codec_choice import CompressionSetting

MIB = 2**20
BLOCK = 16 * MIB

Observed = tuple[int, float, float]
_OBSERVED = st.tuples(
    st.integers(1, BLOCK), st.floats(1e-6, 10.0), st.sampled_from([0.0, 0.01, 0.09, 0.1, 0.5, 1.0])
).map(lambda drawn: (drawn[0], drawn[1], drawn[1] * drawn[2]))


def observe(choice: CodecChoice, blocks: int, observed: Observed) -> list[str]:
    """Return the codec of each of these equal blocks."""
    chosen: list[str] = []
    for _ in range(blocks):
        choice.observe(observed[0], seconds=observed[1], waited=observed[2])
        chosen.append(choice.codec)
    return chosen


WAITED: Observed = (BLOCK, 0.03, 0.02)
QUICK: Observed = (BLOCK, 0.015, 0.0)
SLOW: Observed = (BLOCK, 0.06, 0.0)


@given(st.sampled_from(["lz4", "zstd", "none"]), st.lists(_OBSERVED, max_size=100))
def test_a_named_codec_is_never_left(setting: CompressionSetting, blocks: list[Observed]) -> None:
    choice = CodecChoice(setting)
    for block in blocks:
        assert observe(choice, 1, block) == [setting]
    assert choice.base == setting


@given(st.lists(_OBSERVED, max_size=400))
def test_no_state_is_left_before_its_shortest_stay(blocks: list[Observed]) -> None:
    choice = CodecChoice("auto")
    stayed = 0
    for block in blocks:
        before = choice.state
        observe(choice, 1, block)
        stayed += 1
        if choice.state is not before:
            assert stayed >= LEAST_BLOCKS
            stayed = 0
        assert choice.codec == ("lz4" if choice.state is CodecState.COMPRESSED else "none")
        assert choice.base == "lz4"


@given(st.lists(_OBSERVED, max_size=400))
def test_while_no_block_waits_each_one_is_compressed(blocks: list[Observed]) -> None:
    choice = CodecChoice("auto")
    for nbytes, seconds, _ in blocks:
        assert observe(choice, 1, (nbytes, seconds, 0.0)) == ["lz4"]


@given(st.lists(_OBSERVED, max_size=200))
def test_whatever_came_before_a_slow_source_is_compressed_again(blocks: list[Observed]) -> None:
    choice = CodecChoice("auto")
    for block in blocks:
        observe(choice, 1, block)
    observe(choice, LONGEST_UNCOMPRESSED_BLOCKS, (1000, 0.2, 0.0))
    assert observe(choice, 1000, (1000, 0.2, 0.0)) == ["lz4"] * 1000


@given(st.lists(_OBSERVED, max_size=200))
def test_whatever_came_before_blocks_that_wait_are_soon_not_compressed(blocks: list[Observed]) -> None:
    choice = CodecChoice("auto")
    for block in blocks:
        observe(choice, 1, block)
    assert "none" in observe(choice, LONGEST_COMPRESSED_BLOCKS + LEAST_BLOCKS, WAITED)


def test_blocks_that_wait_are_not_compressed_until_they_come_more_slowly() -> None:
    choice = CodecChoice("auto")
    assert observe(choice, FIRST_COMPRESSED_BLOCKS, WAITED) == ["lz4"] * (FIRST_COMPRESSED_BLOCKS - 1) + ["none"]
    # Faster than compression allowed.
    assert set(observe(choice, 10, QUICK)) == {"none"}
    # A stall of the disk is no slow source.
    assert observe(choice, 2, (BLOCK, 1.0, 0.0)) == ["none", "none"]
    assert set(observe(choice, 10, QUICK)) == {"none"}
    assert observe(choice, 20, SLOW)[-1] == "lz4"
    assert set(observe(choice, 500, SLOW)) == {"lz4"}


def test_one_block_that_waits_now_and_then_changes_nothing() -> None:
    choice = CodecChoice("auto")
    for _ in range(200):
        assert set(observe(choice, 2, WAITED) + observe(choice, 3, SLOW)) == {"lz4"}


FASTER: Observed = (BLOCK, 0.029, 0.0)


def test_compression_is_tried_again_because_the_processor_may_be_free_again() -> None:
    choice = CodecChoice("auto")
    observe(choice, FIRST_COMPRESSED_BLOCKS, WAITED)
    # Faster than compression allowed then, and nothing says whether it would keep up now.
    tried = observe(choice, FIRST_UNCOMPRESSED_BLOCKS, FASTER)
    assert tried == ["none"] * (FIRST_UNCOMPRESSED_BLOCKS - 1) + ["lz4"]
    assert set(observe(choice, 500, FASTER)) == {"lz4"}
    # Blocks did not wait any more: so after the next slow minute, it is tried again as soon.
    observe(choice, LEAST_BLOCKS, WAITED)
    assert observe(choice, FIRST_UNCOMPRESSED_BLOCKS, FASTER) == tried


def test_compression_is_tried_ever_more_rarely_while_blocks_wait_for_it() -> None:
    choice = CodecChoice("auto")
    observe(choice, FIRST_COMPRESSED_BLOCKS - LEAST_BLOCKS, WAITED)
    patience = FIRST_UNCOMPRESSED_BLOCKS
    while patience < 4 * LONGEST_UNCOMPRESSED_BLOCKS:
        assert observe(choice, LEAST_BLOCKS, WAITED)[-1] == "none"
        lasts = min(patience, LONGEST_UNCOMPRESSED_BLOCKS)
        assert observe(choice, lasts, FASTER) == ["none"] * (lasts - 1) + ["lz4"]
        patience *= 2


def test_a_source_that_is_no_faster_without_compression_is_compressed_again() -> None:
    choice = CodecChoice("auto")
    observe(choice, FIRST_COMPRESSED_BLOCKS, WAITED)
    # Blocks had waited because of a slow minute, say: at the source's own rate.
    same = observe(choice, 500, (BLOCK, 0.03, 0.0))
    assert same == ["none"] * (LEAST_BLOCKS - 1) + ["lz4"] * (501 - LEAST_BLOCKS)


@dataclass
class Path:
    """A model of the block path: a source fills blocks, one thread encodes them, one stores them, all at once."""

    choice: CodecChoice
    #: Seconds for a block to be filled, compressed, and stored without compression.
    fill: float
    compress: float
    store: float
    #: Size of a compressed block, in blocks.
    ratio: float = 0.58
    queue: int = 3
    compressed: int = 0
    now: float = 0.0
    _stored: deque[float] = field(default_factory=deque)

    def run(self, blocks: int) -> float:
        """Pass blocks through; return how many came through per second."""
        began, cut, encoded, room, stored = self.now, self.now, self.now, self.now, self.now
        for _ in range(blocks):
            filled = cut + self.fill
            before, cut = cut, max(filled, encoded, room)
            waited = max(0.0, cut - filled) if encoded >= room else 0.0
            self.choice.observe(BLOCK, seconds=cut - before, waited=waited)
            compresses = self.choice.codec == "lz4"
            self.compressed += compresses
            encoded = cut + (self.compress if compresses else 0.0001)
            if len(self._stored) >= self.queue:
                room = self._stored.popleft()
            stored = max(stored, encoded, room) + self.store * (self.ratio if compresses else 1.0)
            self._stored.append(stored)
        self.now = cut
        return blocks / (cut - began)


# lz4 compresses a block in 30 ms; other stages take a sixth of that to several times as long.
_PART = st.floats(0.005, 0.1)


@given(_PART, _PART)
def test_it_is_never_much_slower_than_the_better_codec(fill: float, store: float) -> None:
    settings: Sequence[CompressionSetting] = ("auto", "lz4", "none")
    rates = {setting: Path(CodecChoice(setting), fill, 0.03, store).run(4000) for setting in settings}
    assert rates["auto"] >= 0.88 * max(rates["lz4"], rates["none"])


def test_where_the_disk_takes_uncompressed_blocks_a_little_more_slowly_they_are_compressed() -> None:
    path = Path(CodecChoice("auto"), fill=0.005, compress=0.03, store=0.032)
    assert path.run(4000) >= 0.99 / 0.03
    assert path.compressed > 2000


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_a_source_at_a_part_of_the_rate_is_compressed(load: float) -> None:
    path = Path(CodecChoice("auto"), fill=0.03 / load, compress=0.03, store=0.015)
    path.run(1000)
    assert path.compressed == 1000


@given(st.floats(1.3, 5.0), st.floats(1.2, 5.0))
def test_after_a_burst_almost_everything_is_compressed_again(burst: float, slower: float) -> None:
    path = Path(CodecChoice("auto"), fill=0.03 / burst, compress=0.03, store=0.001)
    path.run(300)
    assert path.choice.state is CodecState.UNCOMPRESSED
    path.fill, path.compressed = 0.03 * slower, 0
    path.run(1000)
    assert path.compressed >= 950
