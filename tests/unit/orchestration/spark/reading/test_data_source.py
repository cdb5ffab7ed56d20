"""Check how blocks become tasks."""

from __future__ import annotations

import math
import pickle
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.spark.reading.allocation import BlockLocation, decode_allocation, encode_allocation, location_of
from orchestration.spark.reading.block_reader import (
    ALLOCATION,
    BLOCK_COST_BYTES,
    PARTITION_BYTES,
    BlockPartition,
    ForebayReader,
    partitions_of,
)
from orchestration.spark.reading.spark_types import spark_schema
from receiver_runtime.block_store.frames.errors import (
    BlockAlteredError,
    BlockCorruptError,
    BlockKeyError,
    BlockMissingError,
    StoreUnavailableError,
)
from receiver_runtime.block_store.stores import stores
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tracker_store.batches.received_block_tracker import AllocatedBlock
from tracker_store.blocks.blocks import BlockHandle

if TYPE_CHECKING:
    from pathlib import Path


def block(number: int, length: int) -> AllocatedBlock:
    handle = BlockHandle(1, number * 1000, length, number)
    return AllocatedBlock(1, number, 1, "path", handle, datetime(2026, 1, 1, tzinfo=UTC))


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 1000))
def test_every_block_is_in_one_task_in_order_and_tasks_are_as_large_as_asked(lengths: list[int], target: int) -> None:
    blocks = [block(number, length) for number, length in enumerate(lengths)]
    partitions = partitions_of([location_of(one) for one in blocks], target, block_cost=0)
    assert [checksum for partition in partitions for _, _, _, checksum, _ in partition.blocks] == list(
        range(len(blocks))
    )
    sizes = [sum(length for _, _, length, _, _ in partition.blocks) for partition in partitions]
    assert all(size <= target or len(p.blocks) == 1 for size, p in zip(sizes, partitions, strict=True))
    # No two neighbouring tasks would have fitted into one.
    firsts = [partition.blocks[0][2] for partition in partitions]
    assert all(size + first > target for size, first in zip(sizes, firsts[1:], strict=False))


def wide_batch(*, receivers: int, blocks_each: int, length: int = 500) -> list[BlockLocation]:
    """Return small blocks of many receivers, each with one segment."""
    return [
        (f"{receiver}/1-000001.segment", number * length, length, receiver * 7919 + number, False)
        for receiver in range(receivers)
        for number in range(blocks_each)
    ]


def test_small_blocks_share_tasks_and_no_task_has_too_many() -> None:
    locations = wide_batch(receivers=1_000, blocks_each=100)
    handed_on = encode_allocation(locations, {"": ["id"]})
    partitions = ForebayReader({ALLOCATION: handed_on}).partitions()
    assert [location for part in partitions for location in part.blocks] == locations  # type: ignore[attr-defined]
    # 100,000 blocks of 500 bytes: by their bytes alone they would be two tasks of 50,000 files' reads each.
    assert len(partitions) == math.ceil(100_000 / (PARTITION_BYTES // (500 + BLOCK_COST_BYTES)))
    assert 40 <= len(partitions) <= 60


def test_the_plan_of_a_batch_has_a_few_bytes_for_each_block() -> None:
    def plan_bytes(blocks_each: int) -> tuple[int, int]:
        handed_on = encode_allocation(wide_batch(receivers=1_000, blocks_each=blocks_each), {"": ["id"]})
        tasks = ForebayReader({ALLOCATION: handed_on}).partitions()
        return len(handed_on), sum(len(pickle.dumps(task)) for task in tasks)

    (few_passed, few_sent), (many_passed, many_sent) = plan_bytes(10), plan_bytes(100)
    # The 90,000 further blocks, without what the 1,000 segments cost once.
    assert (many_passed - few_passed) / 90_000 <= 15
    assert (many_sent - few_sent) / 90_000 <= 30


def test_a_task_has_the_path_of_a_segment_once() -> None:
    def task_bytes(path_length: int) -> int:
        handle = BlockHandle(1, 0, 10, 1)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        # The driver log's rows have a string each.
        paths = ["".join(["p"] * path_length) for _ in range(100)]
        blocks = [AllocatedBlock(1, number, 1, path, handle, at) for number, path in enumerate(paths)]
        [partition] = partitions_of([location_of(one) for one in blocks])
        return len(pickle.dumps(partition))

    assert task_bytes(200) - task_bytes(100) <= 2 * 100


@pytest.mark.parametrize("length", [1, 10 * PARTITION_BYTES])
def test_a_batch_of_any_size_has_a_bounded_number_of_tasks(length: int) -> None:
    locations = wide_batch(receivers=100, blocks_each=300, length=length)
    partitions = partitions_of(locations, most=100)
    # Each task but the last is filled up to one block.
    assert len(partitions) <= 102
    assert [location for part in partitions for location in part.blocks] == locations


def test_columns_of_a_text_source_have_spark_types() -> None:
    assert spark_schema(SocketText.columns) == "`value` STRING"


def test_the_driver_logs_password_is_not_sent_to_the_tasks() -> None:
    reader = ForebayReader({"database_url": "postgresql://u:secret@h/d", "stream": "lines"})
    travelled = pickle.dumps(reader)
    assert b"secret" not in travelled
    assert pickle.loads(travelled)._options == {"stream": "lines"}


LOCATIONS = st.lists(
    st.tuples(
        st.sampled_from(["receiver-1/1-000001.segment", "receiver-2/å.segment"]),
        st.integers(0, 2**62),
        st.integers(1, 2**40),
        st.integers(0, 2**32 - 1),
        st.booleans(),
    )
)


@given(LOCATIONS, st.dictionaries(st.text(max_size=5), st.lists(st.text(max_size=5), max_size=2), max_size=2))
def test_allocation_survives_encoding_and_decoding(
    locations: list[BlockLocation], expected: dict[str, list[str]]
) -> None:
    assert decode_allocation(encode_allocation(locations, expected)) == (locations, expected)


def test_planner_with_a_given_allocation_needs_no_driver_log_and_does_not_send_it_to_tasks() -> None:
    locations: list[BlockLocation] = [("a", 0, 10, 1, False), ("b", 5, 10, 2, True)]
    handed_on = encode_allocation(locations, {"": ["id"]})
    reader = ForebayReader({"database_url": "postgresql://nobody@127.0.0.1:1/none", ALLOCATION: handed_on})
    partitions = reader.partitions()
    assert [location for part in partitions for location in part.blocks] == locations  # type: ignore[attr-defined]
    assert {str(part.expected) for part in partitions} == {"{'': ['id']}"}  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(reader))._options == {}
    nothing = ForebayReader({ALLOCATION: encode_allocation([], {})}).partitions()
    assert [part.blocks for part in nothing] == [[]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("ephemeral", [False, True])
def test_task_fails_if_its_store_is_not_the_expected_one(tmp_path: Path, *, ephemeral: bool) -> None:
    reader = ForebayReader({"block_store": str(tmp_path)})
    [partition] = [BlockPartition([("p", 0, 1, 2, ephemeral)], {str(tmp_path): ["directory-1"]})]
    task = reader.read(pickle.loads(pickle.dumps(partition)))
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        list(task)


@pytest.mark.parametrize(
    ("store", "error", "passed_over"),
    [
        ("directory", BlockMissingError("p", 0, 1, "gone"), True),
        ("directory", BlockCorruptError("p", 0, "a", "b", "torn"), True),
        ("object store", BlockMissingError("p", 0, 1, "gone"), True),
        ("object store", BlockCorruptError("p", 0, "a", "b", "other"), False),
        ("directory", BlockKeyError("00aa", "no key 00aa"), False),
        ("directory", BlockAlteredError("p", 0, "00aa"), False),
    ],
)
def test_h01_task_skips_only_the_losses_that_the_run_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, error: Exception, *, passed_over: bool
) -> None:
    made = (
        LocalBlockStore(tmp_path) if store == "directory" else ObjectBlockStore(MemoryObjects(), "s3://bucket/prefix")
    )

    def read_batches(*_: object) -> None:
        raise error

    monkeypatch.setattr(made, "read_batches", read_batches)
    monkeypatch.setattr(stores, "open_block_store", lambda _, **_more: made)
    reader = ForebayReader({"block_store": "any"})
    for ephemeral in (True, False):
        task = reader.read(BlockPartition([("p", 0, 1, 2, ephemeral)]))
        if ephemeral and passed_over:
            assert list(task) == []
        else:
            with pytest.raises(type(error)):
                list(task)
