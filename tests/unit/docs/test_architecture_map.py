"""Check that ARCHITECTURE.md's map has a line for each of our folders, and for no other."""

from __future__ import annotations

import re
from pathlib import Path

from release.architecture import PACKAGES as DRAWN
from release.architecture import drawn, needed, reachable, rooms

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("forebay", "orchestration", "receiver_runtime", "tracker_store")
#: These folders have one line each in the map, without lines for their subfolders.
WHOLE = ("benchmarks", "docs", "examples", "forebay_contrib", "migrations", "release", "tests")


def test_map_lines_and_folders_match() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page[page.index("## Folders") : page.index("## State machines")]
    named = re.findall(r"^\| `([\w/]+)/` \| \S", table, re.MULTILINE)
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for pattern in ("*.py", "*.sql")
        for path in (ROOT / package).rglob(pattern)
    }
    assert sorted(named) == sorted([*folders, *WHOLE])


def test_no_folder_holds_more_modules_than_a_reader_can_take_in() -> None:
    """Commands, SQL functions and views are lists: each is read by itself."""
    full = {}
    for package in (*PACKAGES, "forebay_contrib"):
        for folder in [ROOT / package, *(path for path in (ROOT / package).rglob("*") if path.is_dir())]:
            modules = [path for path in folder.iterdir() if path.suffix in (".py", ".sql") and path.stem != "__init__"]
            name = folder.relative_to(ROOT).as_posix()
            most = (
                25
                if name.startswith(("forebay/cli/commands", "tracker_store/functions", "tracker_store/views"))
                else 15
            )
            if len(modules) > most:
                full[name] = len(modules)
    assert full == {}


def test_its_pictures_are_those_of_the_code() -> None:
    """If it fails: `python -m release.architecture`."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert drawn(page) == page
    assert len(page.encode()) <= 20_000, "a map that is read as a whole"


def test_no_two_rooms_import_each_other_and_no_arrow_is_missing() -> None:
    for package in DRAWN:
        arrows = rooms(package)
        assert [room for room in arrows if room in reachable(arrows, room)] == []
        shown = needed(arrows)
        assert {room: reachable(shown, room) for room in shown} == {room: reachable(arrows, room) for room in arrows}
