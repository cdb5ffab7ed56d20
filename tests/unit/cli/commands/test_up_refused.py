"""Check what `forebay up` does with a start that is refused, and with the answers that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from typer.testing import CliRunner

from forebay.cli.commands import up
from forebay.cli.main import app
from orchestration.declarations.apply import Change
from orchestration.declarations.questions import Decided

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_refused_start_shows_what_it_would_change_and_takes_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def refuse(*_: object, **options: object) -> NoReturn:
        given.append(options["decided"])
        raise up.StartRefusedError("Is clix the stream clicks by another name?", [Change("stream", "clix", "add")])

    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setattr(up, "Services", refuse)
    for answers in ([], ["--stop", "a", "--stop", "b", "--again", "c"]):
        done = CliRunner().invoke(app, ["up", "shop", *answers], env={"COLUMNS": "200"})
        assert done.exit_code == 1
        assert "+ stream   clix" in done.output
        assert done.output.endswith("Nothing was started. Is clix the stream clicks by another name?\n")
    assert given == [Decided(), Decided(["a", "b"], ["c"])]
