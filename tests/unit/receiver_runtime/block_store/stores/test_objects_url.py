"""Check that a URL of an object store is opened as it is written, or refused with the way out."""

from __future__ import annotations

import pytest

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.stores.objects import open_objects


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://b/a#b", "write %23"),
        ("s3://b/a#", "write %23"),
        ("s3:///a", "names no bucket"),
        ("s3://b/a?force_virtual_addressing=yes", "force_virtual_addressing='yes' is none of true"),
        ("s3://b/a?region=x&region=y", "'region' twice"),
        ("s3://b/a?regoin=x", "'regoin'.* is not known"),
    ],
)
def test_a_url_that_would_be_read_otherwise_is_refused(url: str, said: str) -> None:
    with pytest.raises(BlockStoreError, match=said):
        open_objects(url)


@pytest.mark.parametrize("value", ["true", "1", "False", "0"])
def test_a_truth_is_read_in_each_spelling(value: str) -> None:
    _, place = open_objects(f"s3://b/a%23b?region=eu-central-1&force_virtual_addressing={value}").place("")
    assert place == "b/a#b"
