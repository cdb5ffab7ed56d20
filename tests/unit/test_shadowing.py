"""Check that a folder in a user's project with the name of a Forebay package is reported, before any of it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay import shadowing
from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    import subprocess

_ROOT = Path(__file__).parents[2]


def _run(directory: Path) -> subprocess.CompletedProcess[str]:
    """Check in a new interpreter that is started in a project's directory, as `python -m` is."""
    program = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('shadowing', sys.argv[1])\n"
        "module = sys.modules['shadowing'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.check()\n"
    )
    path = os.pathsep.join([str(directory), str(_ROOT)])
    return run_program(
        [sys.executable, "-c", program, str(_ROOT / "forebay" / "shadowing.py")],
        env={**os.environ, "PYTHONPATH": path},
        cwd=directory,
    )


def test_forebays_own_packages_are_found() -> None:
    assert shadowing.find_shadows() == []


@pytest.mark.parametrize("package", shadowing.PACKAGES)
def test_a_shadowing_package_is_named_and_not_run(package: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise SystemExit('was run')")
    answer = _run(tmp_path)
    assert answer.returncode == 1
    assert f"{tmp_path / package} shadows Forebay's own package {package}" in answer.stderr
    assert "Rename" in answer.stderr
    assert "was run" not in answer.stderr


def test_a_shadowing_module_is_named(tmp_path: Path) -> None:
    (tmp_path / "orchestration.py").write_text("")
    assert f"{tmp_path / 'orchestration.py'} shadows" in _run(tmp_path).stderr


def test_a_folder_without_a_package_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "orchestration").mkdir()
    assert _run(tmp_path).returncode == 0


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = shadowing.Shadow("tracker_store", Path("/site-packages/tracker_store"), None)
    monkeypatch.setattr(shadowing, "find_shadows", lambda: [shadow])
    with pytest.raises(ImportError, match=r"is missing from /site-packages\. Rename the folder"):
        shadowing.check()
