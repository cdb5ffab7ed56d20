"""Test that what Spark prints goes to a file, in a real process, and that errors are printed without their stacks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from forebay.cli.terminal.spark_output import without_stack
from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import logging, subprocess, sys
from pathlib import Path
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.spark_output import spark_output_in

console = Console(stderr=sys.argv[2] == "stderr", soft_wrap=True)
with spark_output_in(Path(sys.argv[1]), console) as note:
    print("printed by a function")
    logging.warning("logged")
    subprocess.run(["sh", "-c", "echo by a child; echo its error >&2"], check=True)
    note("noted")
    console.print("progress")
print("the answer")
"""
JAVA = """\
counts: SparkRuntimeException: [USER_RAISED_EXCEPTION] bad word SQLSTATE: P0001

JVM stacktrace:
org.apache.spark.SparkRuntimeException
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2700)
"""
PYTHON = """\
counts: PythonException: [UDF_ERROR] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/tmp/words.py", line 12, in check
    raise ValueError("no number: 'x'")
ValueError: no number: 'x'

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_process_shows_its_console_and_its_answer_and_the_file_has_all_else(tmp_path: Path, stream: str) -> None:
    path = tmp_path / "logs" / "bisect-words.log"
    path.parent.mkdir()
    path.write_text("of the time before\n")
    done = run_program([sys.executable, "-c", PROGRAM, str(path), stream], check=True)
    shown = {"stdout": ("progress\nthe answer\n", ""), "stderr": ("the answer\n", "progress\n")}
    assert (done.stdout, done.stderr) == shown[stream]
    lines = path.read_text(encoding="utf-8").splitlines()
    expected = ["WARNING:root:logged", "by a child", "its error", "noted", "printed by a function"]
    assert sorted(lines) == sorted(expected)


def test_an_error_is_printed_without_the_stacks_of_java_and_python() -> None:
    assert without_stack(JAVA) == "counts: SparkRuntimeException: [USER_RAISED_EXCEPTION] bad word SQLSTATE: P0001"
    assert without_stack(PYTHON).splitlines() == [
        "counts: PythonException: [UDF_ERROR] An exception was thrown from the Python worker:",
        "ValueError: no number: 'x'",
    ]
    assert without_stack("counts: ValueError: no number") == "counts: ValueError: no number"
    assert without_stack("") == ""


def test_a_long_error_is_cut() -> None:
    shown = without_stack("\n".join(["x" * 10_000] * 100))
    assert len(shown) < 2_500
