"""Check that a link with a token goes to a terminal only: a file, or a journal, may be read by others."""

from __future__ import annotations

import io

import pytest

from forebay.cli.terminal.console import Console, printed_link

URL = "http://127.0.0.1:3000/"


class Terminal(io.StringIO):
    """Stands for a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_link_with_its_token() -> None:
    assert printed_link(Console(file=Terminal()), URL, "s3cret", kept_in="a file") == f"{URL}?token=s3cret"


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"])
def test_anything_else_gets_where_the_token_is(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    said = printed_link(Console(file=io.StringIO()), URL, "s3cret", kept_in="/home/me/.forebay/dagster/token")
    assert said == f"{URL} (its token is in /home/me/.forebay/dagster/token)"


def test_an_address_without_a_token_is_printed_as_it_is() -> None:
    assert printed_link(Console(file=io.StringIO()), URL, None, kept_in="nowhere") == URL
