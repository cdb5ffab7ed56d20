"""Check what is said of a source's secrets: one that is missing, and one that its sender does not write so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay import Stream
from forebay.cli.checks.findings import Health
from forebay.cli.checks.source_checks import check_source
from forebay.sources import Http
from forebay.web_hooks import StandardWebhooks

if TYPE_CHECKING:
    from collections.abc import Mapping


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
