from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles, WholeFiles
from receiver_runtime.sources.fields.secret import EnvVar, SecretError
from receiver_runtime.sources.source import Guarantee, SourceError
from receiver_runtime.sources.source_registry import parse_source

S3 = {"access_key": EnvVar("KEY"), "secret_key": "env:SECRET", "endpoint_override": "127.0.0.1:9000", "scheme": "http"}


@pytest.mark.parametrize("source", [FollowedFiles, FileLines, WholeFiles])
def test_files_are_read_exactly_once(source: type[FollowedFiles | FileLines | WholeFiles]) -> None:
    assert source.guarantees() == (Guarantee.EXACTLY_ONCE,)


@pytest.mark.parametrize(
    ("declaration", "says"),
    [
        ({"kind": "followed_files", "path": "logs/*.log"}, "no absolute path: begin it with '/'"),
        ({"kind": "followed_files", "path": "/a", "encoding": "utf-7"}, "can't be cut into lines: use utf-8"),
        ({"kind": "followed_files", "path": "/a", "complete_after": "soon"}, "'soon' is no duration"),
        ({"kind": "file_lines", "path": "in"}, "begin it with '/', or 's3://'"),
        ({"kind": "file_lines", "path": "ftp://host/in"}, "give a directory, or one of s3, gs, abfs"),
        ({"kind": "file_lines", "path": "s3://k:s@bucket/in"}, "put the rest into options, secrets by reference"),
        ({"kind": "file_lines", "path": "s3://b/in", "options": {"secret": "x"}}, "options: secret is not known: use"),
        *(
            ({"kind": "file_lines", "path": "s3://b/in", "options": {"endpoint_override": endpoint}}, said)
            for endpoint, said in (
                ("minio:99999", "'minio:99999' is no server"),
                ("k:s@minio", "access_key and secret_key"),
            )
        ),
        (
            {"kind": "file_lines", "path": "s3://b/in", "options": {"scheme": "s3"}},
            "scheme='s3' is none of http, https",
        ),
        ({"kind": "whole_files", "path": "/in", "options": {"region": "eu"}}, "options are for s3://"),
        ({"kind": "whole_files", "path": "/in", "encoding": "utf-8"}, "whole_files has no such field"),
    ],
)
def test_an_invalid_declaration_is_refused_with_the_fix(declaration: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceError) as raised:
        parse_source(declaration)
    assert says in str(raised.value)


def test_a_secret_is_never_a_literal() -> None:
    with pytest.raises(SourceError) as raised:
        parse_source({"kind": "file_lines", "path": "s3://b/in", "options": {"secret_key": "hunter2"}})
    assert "hunter2" not in str(raised.value)


def test_secrets_are_read_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = WholeFiles(path="s3://bucket/in", options=S3)
    with pytest.raises(SecretError):
        source.resolved_options()
    monkeypatch.setenv("KEY", "me")
    monkeypatch.setenv("SECRET", "hush")
    assert source.resolved_options() == {
        "access_key": "me",
        "secret_key": "hush",
        "endpoint_override": "127.0.0.1:9000",
        "scheme": "http",
    }
    assert "hush" not in repr(source)


def test_declaring_a_source_does_not_load_pyarrow() -> None:
    program = "import sys, receiver_runtime.receivers.files.declaration; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
