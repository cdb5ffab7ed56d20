"""Test which modules count as a project's, and that a process loads one version of them, whatever is edited."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.project_code import CodeCopies, ProjectReader, loaded_version, same_code
from tracker_store.host.code_in_force import CODE_VARIABLE, CodeCopy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, a project of a module, a package and what is beside them."""
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        {
            "shop.py": "import json, pyarrow, receiver_runtime\nimport prices.vat\nRECEIVER = 'tails.own:Tail'\n",
            "prices/__init__.py": "",
            "prices/vat.py": "def vat():\n    import lazily\n",
            "prices/found_by_name.py": "",
            "prices/words.txt": "no module",
            "lazily.py": "def broken(:",
            "tails/own.py": "",
            "unused.py": "",
        },
    )
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("module", ["shop", "shop.py", "{here}/shop.py"])
def test_modules_are_those_that_can_be_reached_by_imports_and_names(project: Path, module: str) -> None:
    code = ProjectReader(module.format(here=project)).read()
    found = {name: path.relative_to(project).as_posix() for name, (path, _) in code.modules.items()}
    assert found == {
        "shop": "shop.py",
        "prices": "prices/__init__.py",
        "prices.vat": "prices/vat.py",
        "prices.found_by_name": "prices/found_by_name.py",
        "lazily": "lazily.py",
        "tails.own": "tails/own.py",
    }


def test_modules_that_a_text_names_are_found_where_the_project_has_them(project: Path) -> None:
    write(
        project,
        {
            "shop.py": "from importlib import import_module\nPARTS = [import_module(f'plug.{name}') for name in 'a']\n"
            "OTHER = import_module('deep.er')\nKIND, PLACE = 'pyarrow', 'data'\n",
            "plug/__init__.py": "",
            "plug/a.py": "",
            "deep/__init__.py": "",
            "deep/er.py": "",
            "data/report.py": "no module of the project: a folder of data may have millions of files",
        },
    )
    assert ProjectReader("shop").read().modules.keys() == {
        "shop",
        "plug",
        "plug.a",
        "deep",
        "deep.er",
    }


def test_modules_behind_links_are_found_and_a_circle_of_links_ends(project: Path) -> None:
    write(project, {"elsewhere/__init__.py": "", "elsewhere/linked.py": "", "dump/data.py": ""})
    (project / "prices" / "more").symlink_to(project / "elsewhere")
    (project / "prices" / "data").symlink_to(project / "dump")
    (project / "prices" / "again").symlink_to(project / "prices")
    found = ProjectReader("shop").read().modules.keys()
    assert {"prices.more.linked", "prices.vat"} <= found
    assert "prices.data.data" not in found, "a link to data may lead anywhere"


@pytest.mark.parametrize("file", ["prices/test_vat.py", "prices/conftest.py", "prices/tests/helper.py"])
def test_a_test_counts_if_a_module_names_it(project: Path, file: str) -> None:
    write(project, {file: "", "prices/attest.py": "", "prices/latest_one.py": ""})
    modules = ProjectReader("shop").read().modules
    assert file.removesuffix(".py").replace("/", ".") not in modules
    assert {"prices.attest", "prices.latest_one"} <= modules.keys()
    name = file.split("/")[1].removesuffix(".py")
    write(project, {"prices/vat.py": f"from . import {name}"})
    assert file.removesuffix(".py").replace("/", ".") in ProjectReader("shop").read().modules


def test_modules_keep_the_paths_by_which_python_finds_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "releases").mkdir()
    write(project / "releases", {"linked.py": "import pack", "pack/__init__.py": ""})
    (project / "app").symlink_to(project / "releases")
    monkeypatch.syspath_prepend(str(project / "app"))
    found = {str(path) for path, _ in ProjectReader("linked").read().modules.values()}
    assert found == {str(project / "app" / "linked.py"), str(project / "app" / "pack" / "__init__.py")}


def test_the_demo_is_a_project_of_one_module() -> None:
    assert ProjectReader("forebay.demo.pipeline").read().modules.keys() == {"forebay.demo.pipeline"}


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        ("shop.py", "import prices\n", True),
        ("prices/vat.py", "", True),
        ("prices/new.py", "", True),
        ("tails/own.py", "x = 1", True),
        ("unused.py", "x = 1", False),
        ("prices/words.txt", "other", False),
    ],
)
def test_a_version_is_the_content_of_the_modules(project: Path, file: str, text: str, changes: bool) -> None:
    reader = ProjectReader("shop")
    before = reader.read()
    write(project, {file: text})
    after = reader.read()
    assert (after.version != before.version) is changes
    assert after.version == ProjectReader("shop").read().version, "read again, or for the first time"
    assert after.changed_since(before) == ([file.rpartition("/")[2]] if changes else [])


def test_a_module_that_appears_later_is_found(project: Path) -> None:
    write(project, {"shop.py": "import helper"})
    reader = ProjectReader("shop")
    reader.read()
    write(project, {"helper.py": ""})
    assert "helper" in reader.read().modules


def test_a_process_keeps_the_version_that_was_in_force_when_it_first_loaded_one(project: Path) -> None:
    """Check it in an interpreter: also of what is imported after the change, and of what lies beside a file."""
    write(
        project,
        {
            "shop.py": "import pathlib\nN = 1\nDATA = (pathlib.Path(__file__).parent / 'd.txt').read_text()\n"
            "def late():\n    import prices.vat\n    return prices.vat.N\n",
            "prices/vat.py": "N = 1",
            "d.txt": "data",
        },
    )
    copies = CodeCopies(project / "home")
    copies.put_in_force(copies.keep(ProjectReader("shop").read()))
    program = (
        "import sys\nsys.path.insert(0, '')\n"
        "from tracker_store.host.code_in_force import load_code_in_force as load\n"
        "copy = load()\nimport shop\nprint(copy.is_in_force(), flush=True)\ninput()\n"
        "assert load() is copy\nprint(shop.N, shop.late(), shop.DATA, shop.__file__, copy.is_in_force())"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={CODE_VARIABLE: str(copies.link)},
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "True\n"
    write(project, {"shop.py": "N = 2", "prices/vat.py": "N = 2"})
    copies.put_in_force(copies.keep(ProjectReader("shop").read()))
    said, _ = running.communicate("\n", timeout=30)
    assert said == f"1 1 data {project / 'shop.py'} False\n"
    assert running.returncode == 0


def test_the_version_of_a_process_without_a_copy_is_that_of_its_loaded_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    write(project, {"shop.py": "import prices", "forebay_of_mine.py": ""})
    before = loaded_version(())
    importlib.import_module("shop")
    loaded = loaded_version({"shop"})
    assert loaded not in {before, None}
    assert loaded_version({"shop"}) == loaded
    write(project, {"prices/__init__.py": "x = 1"})
    assert loaded_version({"shop"}) != loaded
    for name in ("shop", "prices"):
        del sys.modules[name]
    assert loaded_version(()) == before


def test_long_past_copies_go_and_the_one_in_force_stays(project: Path) -> None:
    copies, reader = CodeCopies(project / "home"), ProjectReader("shop")
    first = copies.keep(reader.read())
    copies.put_in_force(first)
    for number in range(20):
        write(project, {"shop.py": f"N = {number}"})
        newest = copies.keep(reader.read())
    assert copies.in_force() == first
    assert first.exists()
    assert newest.exists()
    assert len(list((project / "home" / "code").glob("*.json"))) == 11


def test_a_class_is_the_same_while_no_module_that_it_reaches_changes(project: Path) -> None:
    copies, reader = CodeCopies(project / "home"), ProjectReader("shop")
    before = CodeCopy(copies.keep(reader.read()))
    write(project, {"shop.py": "RECEIVER = 'tails.own:Tail'\nimport prices"})
    other = CodeCopy(copies.keep(reader.read()))
    assert same_code(before, other, "tails.own")
    assert same_code(before, other, "prices")
    assert not same_code(before, other, "shop")
    write(project, {"tails/own.py": "import lazily"})
    assert not same_code(before, CodeCopy(copies.keep(reader.read())), "tails.own")


def test_a_damaged_copy_says_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(RuntimeError, match="forebay up"):
        CodeCopy(tmp_path / "x.json")
