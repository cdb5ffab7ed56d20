"""Check the declaration of a user's own receiver: how it names its class, and errors in a name."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from forebay import Stream
from forebay.cli.checks.findings import Health
from forebay.cli.checks.source_checks import check_declaration
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.custom.declaration import CustomSource
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from receiver_runtime.supervisor.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path


class Ticks(Receiver):
    columns = (("symbol", "string"),)

    def __init__(self, url: str, *, every: float = 1.0) -> None:
        # There is no super().__init__() on purpose: users forget it easily, and nothing needs it.
        self.url, self.every = url, every

    def on_start(self) -> None: ...
    def on_stop(self) -> None: ...


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a user's module in the working directory."""
    (tmp_path / "users_ticks.py").write_text(
        "from forebay.receiver import Receiver\n"
        "class Ticks(Receiver):\n"
        "    columns = (('symbol', 'string'),)\n"
        "    def __init__(self, url): self.url = url\n"
        "    def on_start(self): pass\n"
        "    def on_stop(self): pass\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return "users_ticks"


def test_the_declaration_is_read_without_the_class() -> None:
    source = CustomSource(receiver="not_here.ticks:TicksReceiver", options={"url": "udp://x", "every": 2})
    stored = json.loads(json.dumps(Stream("ticks", source).declaration()["source"]))
    assert stored == {
        "kind": "custom",
        "receiver": "not_here.ticks:TicksReceiver",
        "options": {"url": "udp://x", "every": 2},
    }
    assert parse_source(stored) == source
    assert source.address == "not_here.ticks:TicksReceiver"


def test_a_class_is_stored_as_its_path_and_its_options_are_checked_at_once() -> None:
    source = CustomSource(receiver=Ticks, options={"url": "udp://x"})
    assert source.receiver == f"{Ticks.__module__}:Ticks"
    with pytest.raises(ValidationError, match=r"options=\{\} do not fit Ticks: missing a required argument: 'url'"):
        CustomSource(receiver=Ticks)
    with pytest.raises(ValidationError, match=r"got an unexpected keyword argument 'evry'"):
        CustomSource(receiver=Ticks, options={"url": "x", "evry": 2})


def test_a_class_that_other_processes_can_not_import_is_refused() -> None:
    class Local(Receiver):
        def on_start(self) -> None: ...
        def on_stop(self) -> None: ...

    with pytest.raises(ValidationError, match="define it at the top of a module of its own"):
        CustomSource(receiver=Local)


@pytest.mark.parametrize("name", ["", "a:b:c", "1:x", "package.module:", "a b", ":Class"])
def test_an_invalid_name_is_refused_with_both_valid_forms(name: str) -> None:
    with pytest.raises(ValidationError, match=r"give 'package\.module:Class', or the name of an entry point"):
        CustomSource(receiver=name)


def test_options_must_be_json() -> None:
    with pytest.raises(ValidationError, match="options"):
        CustomSource(receiver="a:B", options={"every": object()})


def test_a_class_in_the_working_directory_is_made_with_its_options(user_module: str) -> None:
    receiver = make_receiver(CustomSource(receiver=f"{user_module}:Ticks", options={"url": "udp://x"}))
    assert type(receiver).__name__ == "Ticks"
    assert vars(receiver) == {"url": "udp://x"}
    assert receiver.stream_id == -1


def test_options_that_do_not_fit_are_named(user_module: str) -> None:
    with pytest.raises(SourceError, match=r"options=\{\} do not fit Ticks: missing a required argument: 'url'"):
        make_receiver(CustomSource(receiver=f"{user_module}:Ticks"))
    misspelt = CustomSource(receiver=f"{user_module}:Ticks", options={"ulr": "x"})
    [finding] = check_declaration(Stream("ticks", misspelt))
    assert (finding.health, "do not fit Ticks" in finding.found) == (Health.FAILED, True)


def test_a_missing_package_is_named_whether_the_users_or_a_library(tmp_path: Path, user_module: str) -> None:
    with pytest.raises(SourceError, match=r"'not_here\.ticks:T' is in the package 'not_here', which is not installed"):
        CustomSource(receiver="not_here.ticks:T").load()
    (tmp_path / "needs_more.py").write_text("import a_library.part\n", encoding="utf-8")
    with pytest.raises(SourceError, match="'needs_more:T' needs the package 'a_library', which is not installed"):
        CustomSource(receiver="needs_more:T").load()


@pytest.mark.parametrize("line", ["1 / 0", "raise SystemExit(3)"])
def test_a_module_that_fails_on_import_is_an_error_and_does_not_end_the_process(
    tmp_path: Path, user_module: str, line: str
) -> None:
    (tmp_path / "broken_module.py").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"importing 'broken_module' fails by (ZeroDivisionError|SystemExit)"):
        CustomSource(receiver="broken_module:T").load()
