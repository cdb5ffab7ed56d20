"""Check what is said of what a source reads on its host: of secrets, and of files of TLS, that are missing or wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay import Stream
from forebay.cli.checks.findings import Health
from forebay.cli.checks.source_checks import check_means, check_source
from forebay.sources import Http, Tls
from forebay.web_hooks import StandardWebhooks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, ["A_HOOK is not set", "A_TOKEN is not set"]),
        ({"A_HOOK": "whsec_no base64!", "A_TOKEN": "a"}, ["is no base64: copy it from the sender"]),
        ({"A_HOOK": "whsec_c2VjcmV0", "A_TOKEN": "a"}, []),
    ],
)
def test_secrets_that_can_not_be_used_are_named_once(
    environment: Mapping[str, str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("A_HOOK", "A_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    source = Http(listen="127.0.0.1:0", verify=StandardWebhooks("env:A_HOOK"), tokens="env:A_TOKEN")
    found = [finding for finding in check_source(Stream("hooks", source)) if finding.health is not Health.OK]
    assert [(finding.health, want in finding.found) for finding, want in zip(found, said, strict=True)] == [
        (Health.WARNING, True)
    ] * len(said)
    assert all("no base64!" not in finding.found for finding in found)


def test_files_of_tls_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("a certificate", encoding="utf-8")
    (tmp_path / "key.pem").touch()
    files = {
        name: str(tmp_path / file)
        for name, file in {"ca_file": "ca.pem", "certificate_file": "no.pem", "key_file": "key.pem"}.items()
    }
    found = list(check_means(Stream("hooks", Http(listen="127.0.0.1:0", tls=Tls(**files, key_password="env:A_KEY")))))
    assert [finding.found.partition("A_KEY")[0] for finding in found] == [
        "the environment variable ",
        f"tls: certificate_file {tmp_path}/no.pem can't be read: No such file or directory",
        f"tls: key_file {tmp_path}/key.pem is empty",
    ]
    assert {(finding.check, finding.health) for finding in found} == {("stream hooks", Health.WARNING)}
