"""Check that the page's tables and pictures follow the figures, and that people's text around them stays."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.scale import parsed
from benchmarks.scale_model import OPERATIONS, Cost, Measured, Shape
from benchmarks.scale_page import BEGIN, END, Figures, as_json, markdown, pictures, render, terminal_table, write

ROOT = Path(__file__).resolve().parents[3]


def measured(receivers: int, factor: float) -> Measured:
    shape = Shape.of(receivers, days=1, interval=3_600, receivers_per_process=40)
    return Measured(shape, {each.key: Cost(factor * number, factor, 9) for number, each in enumerate(OPERATIONS, 1)})


def figures(factor: float = 1.0) -> Figures:
    receivers = tuple(measured(count, factor * count / 100) for count in (100, 1_000))
    return Figures({"cores": 2}, receivers, (measured(100, factor), measured(100, 2 * factor)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scale.md").write_text(f"# Scale\n\nabove\n\n{BEGIN}\nold\n{END}\n\nbelow\n")
    return tmp_path


def test_figures_are_the_same_after_they_were_stored() -> None:
    assert Figures.of(json.loads(json.dumps(figures().stored()))) == figures()


def test_the_page_keeps_what_people_wrote(folder: Path) -> None:
    write(folder, "before", figures())
    page = (folder / "scale.md").read_text()
    assert page.startswith("# Scale\n\nabove\n")
    assert page.endswith(f"{END}\n\nbelow\n")
    assert "old" not in page
    write(folder, "before", figures())
    assert (folder / "scale.md").read_text() == page


def test_after_stands_beside_before(folder: Path) -> None:
    write(folder, "before", figures(10))
    write(folder, "after", figures(1))
    page = (folder / "scale.md").read_text()
    [tick] = [line for line in page.splitlines() if line.startswith("| idle tracker tick | 100 ")]
    # Before: server and client; after: the same; then the aim, which what is newest meets.
    assert tick.startswith(
        "| idle tracker tick | 100 | 100 | 10 | 10 | 5 % of a core (server + client) | met | 60 | 1 %"
    )
    names = sorted(path.name for path in (folder / "scale").iterdir())
    assert names == [
        "figures.json",
        *(f"{series}-{column}.svg" for series in ("history", "receivers") for column in ("after", "before")),
    ]
    assert all(f"(scale/{name})" in page for name in names if name.endswith(".svg"))


def test_a_missed_aim_is_bold() -> None:
    [tick] = [
        line for line in markdown({"before": figures(10)}).splitlines() if line.startswith("| idle tracker tick | 100 ")
    ]
    assert "| - | - | 5 % of a core (server + client) | **not met** |" in tick


def test_every_operation_has_a_row_and_a_sum() -> None:
    text = markdown({"before": figures()})
    assert all(f"| {operation.name} |" in text for operation in OPERATIONS)
    assert "| all together |" in text


def test_a_series_of_one_size_has_no_picture() -> None:
    alone = Figures({}, (measured(100, 1),), ())
    assert pictures("before", alone) == {}
    assert "![" not in markdown({"before": alone})


def test_the_terminal_shows_what_was_measured_alone() -> None:
    shown = Measured(measured(100, 1).shape, {"tick": Cost(30, 10, 5)})
    console = Console(width=160, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(terminal_table(shown))
    text = captured.get()
    assert "idle tracker tick" in text
    assert "/metrics" not in text


def test_json_says_which_aims_are_met() -> None:
    found = json.loads(as_json(figures(10)))
    assert found["loads"]["receivers"][-1]["met"]["tick"] is False
    assert found["receivers"][0]["costs"]["tick"] == {"server_ms": 10, "client_ms": 10, "repeats": 9}


def test_the_page_in_docs_is_what_its_figures_say(tmp_path: Path) -> None:
    docs = ROOT / "docs" / "explanation"
    (tmp_path / "scale").mkdir()
    for name in ("scale.md", "scale/figures.json"):
        (tmp_path / name).write_text((docs / name).read_text(encoding="utf-8"), encoding="utf-8")
    render(tmp_path)
    made = {path.relative_to(tmp_path).as_posix(): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.*")}
    kept = {f"scale/{path.name}" for path in (docs / "scale").iterdir()} | {"scale.md"}
    assert set(made) == kept
    assert [name for name, text in made.items() if text != (docs / name).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("page", ["docs/explanation/scale.md", "docs/reference/benchmarks.md"])
def test_the_commands_that_the_docs_name_have_these_options(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = re.findall(r"^\$ python -m benchmarks\.scale\b(.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        parsed(shlex.split(command, comments=True))
