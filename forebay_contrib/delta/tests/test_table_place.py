"""Check the declaration of a Delta table's place, and that a store which lacks conditional puts takes no table."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from forebay import DeclarationError, DeltaSink, EnvVar
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    "path",
    ["s3://bucket/t", "s3://bucket/a/b/", "gs://bucket/t", "abfss://files@account.dfs.core.windows.net/t"],
)
def test_a_url_is_a_place(path: str) -> None:
    sink = DeltaSink(path, storage_options={"aws_region": "eu-west-1", "aws_access_key_id": EnvVar("KEY")})
    assert sink.declaration() == {
        "kind": "delta",
        "path": path.rstrip("/"),
        "storage_options": {"aws_region": "eu-west-1", "aws_access_key_id": "env:KEY"},
    }
    assert DeltaSink.place(sink.declaration()) == DeltaSink.place({"path": path.rstrip("/")})


@pytest.mark.parametrize(
    "path",
    [
        *("s3://bucket", "s3://bucket/t?region=x", "s3://key:secret@bucket/t", "s3://bucket/a b", "s3://b/%41"),
        *("s3://b/#", "s3://b/t/../u", "s3://b/./t", "s3://b/t/.."),
    ],
)
def test_another_url_is_refused_without_its_secrets(path: str) -> None:
    with pytest.raises(DeclarationError, match="and all else in storage_options") as refused:
        DeltaSink(path)
    assert "secret@" not in str(refused.value)


def test_a_table_of_unity_is_refused_with_the_way_out() -> None:
    with pytest.raises(DeclarationError, match=r"'uc://c\.s\.t' .* Unity Catalog.* storage location.*own credentials"):
        DeltaSink("uc://c.s.t", storage_options={"databricks_token": EnvVar("TOKEN")})


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("aws_secret_access_key", "abc", "holds a secret"),
        ("AWS_ACCESS_KEY_ID", "abc", "holds a secret"),
        ("azure_storage_account_key", "abc", "holds a secret"),
        ("azure_storage_sas_token", "abc", "holds a secret"),
        ("google_service_account_key", "{}", "holds a secret"),
        ("aws_sse_customer_encryption_key_base64", "abc", "holds a secret"),
        ("aws_endpoint_url", "http://me:pass@host", "holds a secret"),
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "true", "lets writers replace each other's commits"),
        ("allow_unsafe_rename", "1", "lets writers replace each other's commits"),
        ("aws_conditional_put", "disabled", "a commit is a conditional put"),
        ("timeout", 5, "write it as text"),
    ],
)
def test_an_option_that_is_unsafe_is_refused_by_its_name(key: str, value: str, named: str) -> None:
    with pytest.raises(DeclarationError, match=named) as refused:
        DeltaSink("s3://bucket/t", storage_options={key: value})
    assert repr(key) in str(refused.value)


@pytest.mark.parametrize("key", ["google_service_account_path", "aws_web_identity_token_file", "aws_region", "timeout"])
def test_an_option_that_says_where_a_secret_is_may_be_a_literal(key: str) -> None:
    assert DeltaSink("s3://bucket/t", storage_options={key: "x"}).declaration()["storage_options"] == {key: "x"}


def test_a_directory_has_no_options() -> None:
    with pytest.raises(DeclarationError, match="storage_options are of an object store"):
        DeltaSink("data/t", storage_options={"aws_region": "x"})


@pytest.fixture(params=["ignore", "refuse"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the address of a store that ignores or refuses the condition of a put."""
    command = [sys.executable, "-m", "forebay_contrib.delta.tests.store_without_conditions", request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate(timeout=30)


def test_a_store_without_conditional_puts_is_refused_before_anything_is_kept(store: str) -> None:
    options = {
        "aws_endpoint_url": store,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_skip_signature": "true",
        "max_retries": "0",
    }
    sink = DeltaSink("s3://bucket/t", storage_options=options)
    with pytest.raises(SinkError, match="'aws_s3_locking_provider': 'dynamodb'"):
        sink.write(words(("a", 1)), attempt())
    checked = sink.check_target()
    assert checked.health == "failed"
    assert "has no conditional put" in checked.found
    with urlopen(f"{store}/bucket?list-type=2", timeout=30) as answer:
        assert b"<Key>" not in answer.read()
