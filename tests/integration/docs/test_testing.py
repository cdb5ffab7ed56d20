"""Check the pages of docs/how-to that test a pipeline: the tests of their pipelines pass for a reader."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
PAGES = ("testing.md", "parse-records.md", "state.md", "event-time.md")
_FILES = re.compile(r"^```python file=(\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STATEMENTS = re.compile(r"^```sql runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def functions_of(page: str) -> list[tuple[str, str]]:
    """Return (page, name of a test function) of the page's test modules."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    return [
        (page, name)
        for module, code in _FILES.findall(text)
        if module.startswith("test_")
        for name in re.findall(r"^def (test_\w+)", code, re.MULTILINE)
    ]


@pytest.fixture(scope="module", autouse=True)
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    made = spark_session(Settings(home=tmp_path_factory.mktemp("spark"), spark_master="local[2]"), application="tests")
    # Workers import a page's functions, as those of a project that is installed where Spark runs.
    modules = tmp_path_factory.mktemp("modules")
    for module, code in _FILES.findall((HOW_TO / "state.md").read_text(encoding="utf-8")):
        (modules / f"{module}.py").write_text(code, encoding="utf-8")
        made.sparkContext.addPyFile(str(modules / f"{module}.py"))
    yield
    made.stop()


@pytest.fixture
def function(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a test function of a page; its modules are imported from files."""
    page, name = request.param
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    found: Callable[[], None] | None = None
    files = _FILES.findall((HOW_TO / page).read_text(encoding="utf-8"))
    for module, code in files:
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    for module, _ in files:
        found = getattr(importlib.import_module(module), name, found)
    assert inspect.isfunction(found)
    return found


@pytest.mark.spark
@pytest.mark.parametrize("function", [test for page in PAGES for test in functions_of(page)], indirect=True, ids=str)
def test_a_test_of_the_page(function: Callable[[], None], tmp_path: Path) -> None:
    function()
    assert not (tmp_path / "data").exists()


def test_every_statement(engine: sa.Engine) -> None:
    for page in PAGES:
        for statement in _STATEMENTS.findall((HOW_TO / page).read_text(encoding="utf-8")):
            with connect(engine) as connection:
                assert connection.execute(sa.text(statement)).all() == []
