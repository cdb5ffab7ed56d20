"""Check that an unavailable store, or a missing key, is distinguished from a missing block, also in Spark's text."""

from __future__ import annotations

import pickle

import pytest

from orchestration.batches.unavailable_store import BLOCK_STORE, Unavailable, unavailable_store
from orchestration.declarations.sink import TargetUnavailableError
from receiver_runtime.block_store.frames.errors import (
    BlockAlteredError,
    BlockKeyError,
    BlockMissingError,
    StoreUnavailableError,
)

AWAY = StoreUnavailableError("/blocks", "there is no such directory")


class SparkError(Exception):
    """Stands for Spark's errors: their text contains the task's stack."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"
TEXT = f"""[PYTHON_DATA_SOURCE_ERROR] Failed to read:
Traceback (most recent call last):
  File "x.py", line 1, in read
receiver_runtime.block_store.frames.errors.StoreUnavailableError: {AWAY}
 SQLSTATE: 38000"""


def caused_by(cause: Exception) -> Exception:
    error = RuntimeError("the output failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [AWAY, caused_by(AWAY), SparkError(TEXT), caused_by(SparkError(TEXT))])
def test_unavailable_store_is_recognized_and_its_message_returned(error: Exception) -> None:
    assert unavailable_store(error) == Unavailable(str(AWAY), BLOCK_STORE)


def test_an_unavailable_target_is_recognized_as_well() -> None:
    away = TargetUnavailableError("words.counts: no connection to the target: refused")
    in_a_task = SparkError(TEXT.replace(f"StoreUnavailableError: {AWAY}", f"TargetUnavailableError: {away}"))
    for error in (away, caused_by(away), in_a_task):
        assert unavailable_store(error) == Unavailable(str(away))
    database = TargetUnavailableError("words.counts: refused", unreachable=("postgres", "env:TARGET_URL"))
    found = Unavailable("words.counts: refused", ("postgres", "env:TARGET_URL"))
    assert unavailable_store(caused_by(pickle.loads(pickle.dumps(database)))) == found


NO_KEY = BlockKeyError("00aa", "the block at /blocks/1, offset 0, is encrypted with the key 00aa, which …: name it")


@pytest.mark.parametrize(
    "error",
    [NO_KEY, caused_by(NO_KEY), SparkError(TEXT.replace(f"StoreUnavailableError: {AWAY}", f"BlockKeyError: {NO_KEY}"))],
)
def test_a_missing_key_is_recognized_as_well(error: Exception) -> None:
    assert unavailable_store(error) == Unavailable(str(NO_KEY))


@pytest.mark.parametrize(
    "error",
    [
        BlockAlteredError("/blocks/1", 0, "00aa"),
        SparkError(TEXT.replace("StoreUnavailable", "BlockAltered")),
        BlockMissingError("/blocks/1", 0, 10, "no such file"),
        SparkError(TEXT.replace("StoreUnavailable", "BlockMissing")),
        RuntimeError(TEXT),
        OSError("disk on fire"),
    ],
)
def test_anything_else_counts_as_a_failure(error: Exception) -> None:
    assert unavailable_store(error) is None
