"""Check how stores are opened from the setting."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.roots import absolute_roots, one_root, root_names, split_roots, without_secrets
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of

if TYPE_CHECKING:
    from pathlib import Path

S3 = "s3://user:secret@bucket/pre/fix?endpoint_override=127.0.0.1:1&scheme=http&region=x"


def local_root(block_store: str) -> Path:
    store = open_block_store(block_store)
    assert isinstance(store, LocalBlockStore)
    return store.root


def test_a_directory_is_named_by_a_path_or_a_file_url(tmp_path: Path) -> None:
    assert local_root(str(tmp_path)) == tmp_path
    assert local_root(f"file://{tmp_path}/a%20b") == tmp_path / "a b"


def test_an_object_store_is_named_by_its_url_and_shown_without_secrets() -> None:
    store = open_block_store(S3)
    assert isinstance(store, ObjectBlockStore)
    assert store.name == without_secrets(S3) == "s3://bucket/pre/fix"


def test_several_roots_are_replicas_in_their_order(tmp_path: Path) -> None:
    store = open_block_store(f"{tmp_path}/a, {S3} ,{tmp_path}/b", min_replicas=3)
    assert [replica.name for replica in replicas_of(store)] == [f"{tmp_path}/a", "s3://bucket/pre/fix", f"{tmp_path}/b"]
    alone = open_block_store(str(tmp_path))
    assert replicas_of(alone) == [alone]


@pytest.mark.parametrize(
    ("block_store", "message"),
    [
        ("file://host/x", "file://host/x.*FOREBAY_BLOCK_STORE"),
        ("ftp://host/x", "s3://, gs:// or abfs://"),
        ("", "FOREBAY_BLOCK_STORE"),
        ("/a,/a", "'/a,/a' can't be used"),
        ("s3://K:pl4nted@b/x,s3://K2:pl4nted2@b/x", r"'s3://\*\*\*@b/x,s3://\*\*\*@b/x' can't be used"),
        ("s3://K:pl4/nted@b/x", "the secret key of 's3://b/x' has a special character: write / as %2F"),
        ("gs://K:pl4/nted@b/x", "the secret key of 'gs://b/x' has a special character"),
        ("s3:///x", "names no bucket: write s3://BUCKET/PREFIX"),
        ("s3://bucket/x?endpoint=h", "option 'endpoint' of 's3://bucket/x' is not known.*endpoint_override"),
    ],
)
def test_what_can_not_be_opened_says_why_and_names_the_way_out(block_store: str, message: str) -> None:
    with pytest.raises(BlockStoreError, match=message) as raised:
        open_block_store(block_store)
    assert "pl4" not in "".join(traceback.format_exception(raised.value))


def test_the_key_with_a_slash_is_in_no_stores_name() -> None:
    assert root_names("s3://K:pl4/nted@bucket/x, /data") == ["s3://bucket/x", "/data"]


def test_min_replicas_can_not_exceed_the_number_of_roots(tmp_path: Path) -> None:
    with pytest.raises(BlockStoreError, match="min_replicas is 3, and the block store has 2"):
        open_block_store(f"{tmp_path}/a,{tmp_path}/b", min_replicas=3)


def test_paths_become_absolute_and_urls_stay_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_roots(f"blocks,{S3}") == f"{tmp_path}/blocks,{S3}"


def test_a_directory_name_may_contain_a_comma(tmp_path: Path) -> None:
    directory = tmp_path / "a,b"
    [root] = split_roots(one_root(directory))
    assert local_root(root) == directory
    assert one_root(tmp_path) == str(tmp_path)
