"""Check that text from outside can't command the terminal that it is shown in."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import structlog
from rich.table import Table

from forebay.cli.terminal.console import Console
from tracker_store.host.process_output import configure_log
from tracker_store.host.terminal_text import escaped

ROOT = Path(__file__).parents[2]
# Clear the screen, set the title, ring, return, and an 8-bit control sequence introducer.
ATTACK = "\x1b[2J\x1b]0;title\x07\r\x9b31mdone\u202e"
SHOWN = r"\u001b[2J\u001b]0;title\u0007\u000d\u009b31mdone\u202e"


def test_control_characters_become_escapes() -> None:
    assert escaped(ATTACK) == SHOWN
    assert escaped("\ud800") == r"\ud800"


def test_ordinary_text_is_unchanged() -> None:
    text = "café\tπ 日本 👩\u200d🚀\nnext [bold]line[/bold] \\u001b"
    assert escaped(text) == text


@pytest.mark.parametrize("markup", [True, False])
def test_a_console_escapes_lines_and_cells(markup: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, highlight=False, markup=markup, force_terminal=False, width=400)
    table = Table(f"heading {ATTACK}", title=f"title {ATTACK}")
    table.add_row(f"cell {ATTACK}")
    console.print(f"line {ATTACK}", soft_wrap=True)
    console.print(table)
    said = output.getvalue()
    for place in ("line", "title", "heading", "cell"):
        assert f"{place} {SHOWN}" in said
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said) is None


def test_a_console_keeps_its_own_styles() -> None:
    output = io.StringIO()
    console = Console(file=output, highlight=False, force_terminal=True, color_system="standard", width=80)
    console.print("stale", style="bold red")
    assert "\x1b[1;31mstale\x1b[0m" in output.getvalue()


def test_a_log_line_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log()
    structlog.get_logger("test").warning(f"event {ATTACK}", peer=f"peer{ATTACK}")
    said = capsys.readouterr().err
    assert f"event {SHOWN}" in said
    assert f"peer{SHOWN}" in said


def test_each_command_uses_the_escaping_console() -> None:
    own = ROOT / "forebay" / "cli" / "console.py"
    wrong = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "forebay").rglob("*.py")
        if path != own
        and re.search(r"from rich\.console import .*\bConsole\b|rich\.console\.Console", path.read_text())
    ]
    assert wrong == []
