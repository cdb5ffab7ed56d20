"""Check that a URL of an object store is opened as it is written, or refused with the way out."""

from __future__ import annotations

import re

import pytest

from forebay import ParquetSink
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.settings import Settings
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
        ("s3://b/a?region= eu", "region=' eu': leave out the blanks"),
        ("s3://b/a?scheme=htttp", "scheme='htttp' is none of http, https"),
        ("s3://b/a?scheme=HTTPS", "scheme='HTTPS' is none of http, https"),
        ("s3://b/a?endpoint_override=minio:9000#x", "write %23"),
        ("s3://b/a?endpoint_override=minio:9000%23x", "write HOST:PORT"),
        *(
            (f"s3://b/a?endpoint_override={endpoint}", f"'{re.escape(endpoint)}' is no server: write HOST:PORT")
            for endpoint in (
                "minio:99999",
                "minio:0",
                "minio:9000x",
                "minio:",
                "",
                ":9000",
                "ftp://minio",
                "a b",
                "a?b",
            )
        ),
    ],
)
def test_a_url_that_would_be_read_otherwise_is_refused_where_it_is_declared(url: str, said: str) -> None:
    with pytest.raises(BlockStoreError, match=said):
        open_objects(url)
    with pytest.raises(DeclarationError, match=f"ParquetSink: .*(no bucket|neither a directory|{said})"):
        ParquetSink(url)
    with pytest.raises(ValueError, match=said):
        Settings(block_store=url)


@pytest.mark.parametrize(
    "endpoint", ["minio", "minio.local:9000", "127.0.0.1:1", "[::1]:65535", "https://s3.example.com/", "http://a:1"]
)
def test_an_endpoint_is_taken_as_a_server_or_a_url(endpoint: str) -> None:
    open_objects(f"s3://b/a?region=x&endpoint_override={endpoint}")


@pytest.mark.parametrize("value", ["true", "1", "False", "0"])
def test_a_truth_is_read_in_each_spelling(value: str) -> None:
    _, place = open_objects(f"s3://b/a%23b?region=eu-central-1&force_virtual_addressing={value}").place("")
    assert place == "b/a#b"
