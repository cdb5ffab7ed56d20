"""Finds the pipelines that a user's module declares."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from orchestration.declarations.pipeline import DeclarationError, Pipeline
from orchestration.declarations.project_code import OWN_PACKAGES
from tracker_store.host.code_in_force import load_code_in_force

if TYPE_CHECKING:
    from types import ModuleType

#: What an error says before the cause, where the module's own code raised it.
IMPORT_FAILS = "fails when it is imported: "


class PipelineModuleError(Exception):
    """No pipelines can be taken from this module: it can't be loaded, or declares none."""


def load_pipelines(module_name: str) -> list[Pipeline]:
    """Import `module_name` (``package.module``, or a path to a .py file) and return its pipelines by name.

    The working directory is importable, as it is for `python -m`. Below a `forebay up` the project's modules are those
    of the version in force (``code_in_force``). Raises PipelineModuleError, and RuntimeError.
    """
    load_code_in_force()
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        search, module_name = str(path.parent), path.stem
    else:
        search = str(Path.cwd())
    if search not in sys.path:
        sys.path.insert(0, search)
    module = _imported(module_name, search)
    found: dict[str, Pipeline] = {}
    for value in vars(module).values():
        if isinstance(value, Pipeline):
            if found.setdefault(value.name, value) is not value:
                message = f"module {module_name!r} declares two pipelines named {value.name!r}: rename one"
                raise PipelineModuleError(message)
            if not value.outputs:
                message = f"pipeline {value.name!r} in module {module_name!r} has no output: add @pipeline.output"
                raise PipelineModuleError(message)
    if not found:
        message = f"module {module_name!r} declares no Pipeline at its top level"
        raise PipelineModuleError(message)
    return [found[name] for name in sorted(found)]


def _imported(module_name: str, search: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        own = module_name.partition(".")[0]
        hint = f": {own} is a package of Forebay's, so give yours another name" if own in OWN_PACKAGES else ""
        message = f"module {module_name!r} can't be imported from {search}: {error}{hint}"
        raise PipelineModuleError(message) from error
    except (DeclarationError, ValidationError) as error:
        message = f"module {module_name!r}: {_said(error)}"
        raise PipelineModuleError(message) from error
    except Exception as error:
        message = f"module {module_name!r} {IMPORT_FAILS}{said_in_a_line(error)}"
        raise PipelineModuleError(message) from error


def said_in_a_line(error: BaseException) -> str:
    """Return what a user's code raised in one line, with the last line of a file that it passed."""
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if isinstance(error, SyntaxError) or not frames or type(error).__module__.startswith("orchestration"):
        return said
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _said(error: DeclarationError | ValidationError) -> str:
    """Return what is wrong with a source's fields, without the values that pydantic would show: one may be a secret."""
    if isinstance(error, DeclarationError):
        return str(error)
    wrong = [
        ": ".join([*map(str, found["loc"]), found["msg"].removeprefix("Value error, ")])
        for found in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return f"{error.title}: {'; '.join(wrong)}"
