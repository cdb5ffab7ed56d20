"""Check that a setting that would become a local directory of an odd name is refused, and an address that is none."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from orchestration.declarations.settings import Settings


@pytest.mark.parametrize("name", ["FOREBAY_HOME", "FOREBAY_BLOCK_STORE"])
@pytest.mark.parametrize(
    "value",
    [
        *("~/blocks", "$HOME/blocks", "file:/blocks", "s3:/bucket/p", "%TEMP%/blocks", "`pwd`/b", "/a/*", "C:\\blocks"),
        *("/a\nb", "/a\tb"),
    ],
)
def test_a_path_that_is_no_directory_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=r"write (a|the) directory"):
        Settings()


@pytest.mark.parametrize(
    "value",
    ["/a b", "blocks", "/a:b/c", "/50%/a?/[b]", "/my%20big%20dir", "s3://bucket/p$1", "file:///a", "/a,s3://b/~c"],
)
def test_others_are_taken(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", value)
    assert Settings().block_store


@pytest.mark.parametrize("name", ["FOREBAY_DATABASE_URL", "FOREBAY_DAGSTER_URL"])
@pytest.mark.parametrize("end", [":99999/x", ":0/x", "/x#y"])
def test_an_address_that_is_none_is_refused(name: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"postgresql://me:hunter2@h{end}")
    with pytest.raises(ValidationError, match=r"port is none|what follows '#'") as raised:
        Settings()
    assert "hunter2" not in str(raised.value)
