"""Test that Dagster's own command loads every example of a code location in the documentation, as it stands there.

To import an example is not enough: Dagster also refuses a module with two `Definitions` at its top level.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.commands.run_program import run_program

ROOT = Path(__file__).parents[3]
_FILE = re.compile(r"^```python file=(\S+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    str(page.relative_to(ROOT / "docs")): dict(_FILE.findall(page.read_text(encoding="utf-8")))
    for page in sorted((ROOT / "docs").rglob("*.md"))
}
# The examples of code locations, by page. Pages share the pipelines that they name.
EXAMPLES = {
    page: names
    for page, files in PAGES.items()
    if (names := [name for name, text in files.items() if re.search(r"^defs = ", text, re.MULTILINE)])
}


def test_the_pages_with_examples() -> None:
    assert {
        "how-to/clusters.md": ["definitions"],
        "how-to/dagster.md": [
            *("existing", "my_assets", "second", "downstream", "partitioned", "session", "failures", "owners"),
        ],
        "how-to/from-dstreams.md": ["listener"],
        "how-to/listeners.md": ["listeners"],
    } == EXAMPLES


@pytest.mark.slow
@pytest.mark.core
def test_dagsters_own_command_loads_each_as_a_file_and_as_a_module(tmp_path: Path) -> None:
    for page in EXAMPLES:
        for name, text in PAGES[page].items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    examples = [name for names in EXAMPLES.values() for name in names]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    finished = run_program(
        [sys.executable, "-m", "tests.support.dagster.validation", *examples],
        env=environment | {"DAGSTER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        timeout=600,
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output
    assert output.count("Validation successful for code location") == 2 * len(examples), output
