"""A run in parallel reports every test of every file, and ends also when a test has ended its process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import scheduling

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.core]

_ROOT = scheduling.__file__.removesuffix("/tests/support/scheduling.py")
_MARKS = '[pytest]\naddopts = -m "not slow"\nmarkers =\n  slow: an area\n'
_GOOD = "import pytest\n@pytest.mark.parametrize('value', range(3))\ndef test_good(value): pass\n"
# No two have one name, which pytest refuses in one process.
_FILES = {
    "test_a.py": _GOOD,
    "test_ends.py": "import os\ndef test_before(): pass\ndef test_ends(): os._exit(3)\ndef test_after(): pass\n",
    "test_not_loaded.py": "import no_such_module\n",
    "test_slow.py": "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\ndef test_other(): assert not 'slow'\n",
    "test_y.py": _GOOD,
    # The last file of a directory has no test that is chosen, and the next file is in another one.
    "directory/test_one.py": "def test_one(): pass\n",
    "directory/test_two.py": "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\n",
    "directory_after/test_three.py": "def test_three(): pass\n",
    "test_z.py": "def test_last(): pass\n",
}


@pytest.mark.parametrize(
    ("arguments", "outcome", "code"),
    [
        ([], "2 failed, 10 passed, 1 error", 1),
        (["-m", "slow"], "2 passed, 1 error", 1),
        (["-n", "1", "directory", "directory_after"], "2 passed", 0),
        (["test_a.py", "test_slow.py", "-m", "slow"], "1 passed", 0),
        (["test_a.py", "-m", "slow"], "no tests ran", 5),
        (["test_ends.py::test_ends", "test_a.py::test_good[1]"], "1 failed, 1 passed", 1),
        (["test_ends.py", "test_z.py", "-k", "ends or last"], "1 failed, 3 passed", 1),
    ],
)
def test_each_test_is_reported_and_the_run_ends(arguments: list[str], outcome: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(_MARKS, encoding="utf-8")
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = f"-m pytest -n 2 --dist loadfile --no-loadscope-reorder -p {scheduling.__name__} -p no:cacheprovider"
    run = subprocess.run(
        [sys.executable, *command.split(), *arguments],
        cwd=tmp_path, env={"PYTHONPATH": _ROOT}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert f"= {outcome} in " in run.stdout, run.stdout + run.stderr
    assert run.returncode == code
