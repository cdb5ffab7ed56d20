"""Run ``dagster definitions validate`` for each of many files or modules, in processes forked from one with Dagster.

``python -m tests.support.dagster.validation MODULE…``: each module as a module, and its file in this folder as a file.
Given all targets at once, Dagster starts a server for each, which imports Dagster again; for one alone it loads it in
the command's own process.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import TYPE_CHECKING

import dagster._cli

# What the examples load.
import forebay.dagster  # noqa: F401
import orchestration.dagster_defs.build_definitions  # noqa: F401
from tests.support.polling import joined

if TYPE_CHECKING:
    from collections.abc import Sequence


def _command(option: str, target: str) -> None:
    sys.argv = ["dagster", "definitions", "validate", option, target]
    dagster._cli.main()  # type: ignore[no-untyped-call]


def _validate(option: str, target: str) -> int | None:
    """Return the exit code of the command for one target."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(option, target))
    process.start()
    joined(process, 240)
    return process.exitcode


def main(modules: Sequence[str]) -> int:
    """Return 0 if Dagster takes all of them."""
    asked = [one for module in modules for one in (("-m", module), ("-f", f"{module}.py"))]
    refused = [" ".join(one) for one in asked if _validate(*one)]
    if refused:
        print("refused:", *refused)  # noqa: T201  for the test
    return len(refused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
