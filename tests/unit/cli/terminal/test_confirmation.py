"""Test where a question is asked."""

from __future__ import annotations

import os
import subprocess
import sys

_PROGRAM = """
from forebay.cli.terminal.confirmation import confirm

confirm("Remove lines?", yes=False, err=True)
print("{}")
"""


def test_standard_output_has_nothing_of_a_question_that_is_asked_on_standard_error() -> None:
    person, terminal = os.openpty()
    with os.fdopen(person, "w") as keyboard:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        os.close(terminal)
        keyboard.write("y\n")
        keyboard.flush()
        said, asked = process.communicate(timeout=60)
    assert said == "{}\n"
    assert asked == "Remove lines? [y/N]: "
