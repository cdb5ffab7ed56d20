"""Check that Spark's Python workers load the installed PySpark, not one from a zip file without compiled modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from structlog.testing import capture_logs

from orchestration.spark.session import python_daemon
from orchestration.spark.session.python_daemon import load_modules
from orchestration.spark.session.worker_python import worker_python
from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = Path(pyspark.__file__).parent
SHOWN = "import json, pyspark, sys; print(json.dumps([pyspark.__file__, sys.path, sys.argv[1:], sys.executable]))"


@pytest.fixture(autouse=True)
def _own_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)


def path_as_spark_sets_it() -> list[str]:
    lib = PACKAGE / "python" / "lib"
    return [*map(str, sorted(lib.glob("*.zip"))), str(next((PACKAGE / "jars").glob("spark-core_*.jar")))]


def test_a_worker_uses_the_installed_package_and_is_otherwise_unchanged(tmp_path: Path) -> None:
    command = worker_python(tmp_path)
    assert command != sys.executable
    own = tmp_path / "a folder * of mine"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path_as_spark_sets_it(), str(own), "/another.zip"])}
    shown = run_program([command, "-c", SHOWN, "an argument", "*"], env=environment, check=True)
    file, path, arguments, executable = json.loads(shown.stdout)
    assert Path(file).parent == PACKAGE
    assert str(own) in path
    assert "/another.zip" in path
    assert not set(path_as_spark_sets_it()) & set(path)
    assert arguments == ["an argument", "*"]
    assert executable == sys.executable


def test_script_is_written_once_and_again_if_it_was_truncated(tmp_path: Path) -> None:
    script = Path(worker_python(tmp_path))
    before = script.stat().st_ino
    assert Path(worker_python(tmp_path)).stat().st_ino == before
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    worker_python(tmp_path)
    assert "exec" in script.read_text(encoding="utf-8")


def test_two_installations_with_one_home_have_separate_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = worker_python(tmp_path)
    monkeypatch.setattr(sys, "executable", "/another/bin/python")
    theirs = worker_python(tmp_path)
    assert theirs != ours
    assert sys.executable in Path(theirs).read_text(encoding="utf-8")
    assert sys.executable not in Path(ours).read_text(encoding="utf-8")


def test_a_link_to_the_installed_package_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "spark"
    link.symlink_to(PACKAGE)
    monkeypatch.setenv("SPARK_HOME", str(link))
    command = worker_python(tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{link}/python/lib/pyspark.zip"}
    shown = run_program([command, "-c", SHOWN], env=environment, check=True)
    assert Path(json.loads(shown.stdout)[0]).parent == PACKAGE


def test_another_spark_keeps_its_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python(tmp_path / "written") == sys.executable
    monkeypatch.setenv("SPARK_HOME", str(PACKAGE))
    assert worker_python(tmp_path / "written") != sys.executable


def test_unwritable_script_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with capture_logs() as logs:
        assert worker_python(blocked / "spark") == sys.executable
    assert [entry["log_level"] for entry in logs] == ["warning"]


FORKED = """
import importlib, os, sys, threading
from orchestration.spark.session.python_daemon import load_modules
load_modules("pyspark.worker")
loaded = set(sys.modules)
assert threading.active_count() == 1, threading.enumerate()
drawn, draws = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        import numpy.random, random
        os.write(draws, b"%f %f " % (numpy.random.rand(), random.random()))
        os._exit(0)
    os.wait()
assert len(set(os.read(drawn, 4096).split())) == 4, "the workers draw the same numbers"
if os.fork() == 0:
    import numpy, pandas, pyarrow, pyarrow.compute
    from orchestration.spark.reading import data_source
    values = numpy.random.rand(300, 300)
    table = pyarrow.Table.from_pandas(pandas.DataFrame(values @ values))
    assert table.num_rows == 300 and pyarrow.compute.sum(table.column(0)).is_valid
    assert table.to_pandas().sum().sum() > 0
    assert not [name for name in set(sys.modules) - loaded if name.startswith(("pandas.core", "sqlalchemy.engine"))]
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_workers_are_forked_from_a_process_that_has_loaded_what_they_need(tmp_path: Path) -> None:
    script = Path(worker_python(tmp_path)).read_text(encoding="utf-8")
    assert "-m orchestration.spark.session.python_daemon" in script
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "0\n", done.stderr


def test_a_worker_loads_itself_what_its_parent_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def does_not_fit(name: str) -> ModuleType:
        if name == "pandas":
            raise ValueError("numpy.dtype size changed")
        return import_module(name)

    monkeypatch.setattr(python_daemon, "import_module", does_not_fit)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    load_modules("pyspark.worker")
