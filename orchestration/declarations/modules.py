"""Finds the pipelines that a user's module declares."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.project_code import OWN_PACKAGES, is_of_project
from tracker_store.close_names import did_you_mean
from tracker_store.host.code_in_force import load_code_in_force

if TYPE_CHECKING:
    from collections.abc import Callable

#: What an error says before the cause, where the module's own code raised it.
IMPORT_FAILS = "fails when it is imported: "
# What Python says of ParquetSink(fromat=…): the class or function, and the argument.
_UNKNOWN_ARGUMENT = re.compile(
    r"(?P<name>\w+)(\.__(init|new)__)?\(\) got an unexpected keyword argument '(?P<given>\w+)'"
)
# What Python says of Pipeline("words", "10s"), and of Kafka("host:9092"), where it names pydantic's class.
_POSITIONAL = re.compile(
    r"(?P<name>\w+)(\.__(init|new)__)?\(\) takes .*positional arguments? but \d+ .*(was|were) given"
)
_CALL = re.compile(r"(\w+\.)*(?P<name>\w+)\(")


class PipelineModuleError(Exception):
    """No pipelines can be taken from this module: it can't be loaded, or declares none."""


def load_pipelines(module_name: str) -> list[Pipeline]:
    """Import `module_name` (``package.module``, or a path to a .py file) and return its pipelines by name.

    The working directory is importable, as it is for `python -m`. Below a `forebay up` the project's modules are those
    of the version in force (``code_in_force``). Raises PipelineModuleError, and RuntimeError.
    """
    copy = load_code_in_force()
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        if copy is None and not path.is_file():
            message = f"there is no file {path}"
            raise PipelineModuleError(message)
        search, module_name = str(path.parent), path.stem
    else:
        search = str(Path.cwd())
    if search not in sys.path:
        sys.path.insert(0, search)
    module = imported(module_name, search)
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


def imported(module_name: str, search: str, *, role: str = "") -> ModuleType:
    """Import a module of the user's. Raises PipelineModuleError, which names the user's file and line.

    search: the folder of the project, which is importable. role: follows the module's name in the error.
    """
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        if is_missing:
            own = module_name.partition(".")[0]
            hint = f": {own} is a package of Forebay's, so give yours another name" if own in OWN_PACKAGES else ""
            said = f" can't be imported from {search}: {error}{hint}"
        elif isinstance(error, DeclarationError | ValidationError):
            said = f": {said_in_a_line(error, module_name)}"
        else:
            said = f" {IMPORT_FAILS}{said_in_a_line(error, module_name)}"
        message = f"module {module_name!r}{role}{said}"
        raise PipelineModuleError(message) from error


def said_in_a_line(error: BaseException, module_name: str = "") -> str:
    """Return what a user's code raised in one line, with the last line of a file of the user's that it passed.

    module_name: counts as the user's wherever it is installed.
    """
    match error:
        case DeclarationError():
            said = str(error)
        case ValidationError():
            said = _wrong_fields(error)
        case _:
            text = ""
            # An exception of the user's may fail to give its text.
            with contextlib.suppress(Exception):
                text = str(error).strip()
            said = ": ".join([type(error).__name__, *text.splitlines()[:1]])
            said += _missing_package(error) + _meant_argument(error) + _named_argument(error)
    # These say it themselves; a SyntaxError of a text that is evaluated has no file.
    has_place = (isinstance(error, SyntaxError) and Path(error.filename or "").is_file()) or (
        isinstance(error, DeclarationError) and error.location is not None
    )
    return said if has_place else said + _place(error, module_name)


def _place(error: BaseException, module_name: str) -> str:
    passed = [
        (file, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not (file := Path(frame.f_code.co_filename)).name.startswith("<")
        and ((name := str(frame.f_globals.get("__name__"))) == module_name or is_of_project(name, file))
    ]
    if not passed:
        return ""
    file, line = passed[-1]
    return f" ({file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file.name}, line {line})"


def _missing_package(error: BaseException) -> str:
    """Return what to do where an import finds no package or module of a name; "" for other errors."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or "." in error.name:
        return ""
    return (
        f": install it where Forebay runs (pip install {error.name}, if its package has that name); if it is yours, is "
        "its file in the project's folder?"
    )


def _meant_argument(error: BaseException) -> str:
    """Return which argument was meant where a call has one that its function does not know; "" if none is close.

    It serves each sink and source, and classes of the user, none of which needs to take all arguments to say so.
    """
    found = _UNKNOWN_ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    # Python 3.13 says some of it itself.
    if found is None or "Did you mean" in str(error):
        return ""
    called = _called(error, found["name"])
    meant = did_you_mean(found["given"], [one.name for one in _parameters(called)] if called else [])
    return f": {meant}" if meant else ""


def _named_argument(error: BaseException) -> str:
    """Return how to give an argument for which a call has no place; "" if its function takes none by name alone."""
    found = _POSITIONAL.search(str(error)) if isinstance(error, TypeError) else None
    trace = _innermost(error)
    if found is None or trace is None:
        return ""
    frame = traceback.extract_tb(trace)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0, trace.tb_frame.f_globals)
    call = _CALL.match(line.encode()[frame.colno or 0 :].decode(errors="replace"))
    called = _called(error, call["name"] if call and found["name"] == "BaseModel" else found["name"])
    if called is None:
        return ""
    by_name = [one for one in _parameters(called) if one.kind is one.KEYWORD_ONLY and one.name != "kind"]
    by_name.sort(key=lambda one: one.default is not one.empty)
    return f": {called.__name__} takes the others by name, as {by_name[0].name}=…" if by_name else ""


def _innermost(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _called(error: BaseException, name: str) -> Callable[..., object] | None:
    """Return the class or function of this name that the innermost frame of the error could call."""
    if (trace := _innermost(error)) is None:
        return None
    here = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}.values()
    modules = [_attribute(one, name) for one in here if isinstance(one, ModuleType)]
    known = [one for one in (*here, *modules) if callable(one) and getattr(one, "__name__", "") == name]
    return known[0] if known else None


def _attribute(module: ModuleType, name: str) -> object:
    # A module may import its names when they are asked for, and fail: the error that is told is another one.
    with contextlib.suppress(Exception):
        return getattr(module, name, None)
    return None


def _parameters(called: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # a builtin may have none
        return []


def _wrong_fields(error: ValidationError) -> str:
    """Return what is wrong with a source's fields, without the values that pydantic would show: one may be a secret."""
    wrong = [
        ": ".join([*map(str, found["loc"]), found["msg"].removeprefix("Value error, ")])
        for found in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return f"{error.title}: {'; '.join(wrong)}"
