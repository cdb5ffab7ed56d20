"""A pytest plugin that records every statement `tracker_store` sends, to test the next version's schema with them.

Run it at a release, and commit the file that it writes:

    python -m pytest -p tests.support.postgres.recorded_statements tests/integration/tracker_store

It writes `tests/integration/upgrade/statements.json`: the commit, and for each role, each statement once, with the
values of one call.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

import tracker_store.blocks.blocks
import tracker_store.receivers.processes
from tests.support.commands.run_program import run_program
from tracker_store.connection.engine import Prepared

if TYPE_CHECKING:
    import pytest

_ROOT = Path(__file__).parents[3]
STATEMENTS = _ROOT / "tests" / "integration" / "upgrade" / "statements.json"
_IMPORT = re.compile(r"^from tracker_store\.[\w.]+ import (?P<names>\([^)]*\)|[^\n]*)", re.MULTILINE)
_MODULE = re.compile(r"^from tracker_store(?:\.\w+)? import (?P<names>[^\n]*)", re.MULTILINE)
# Modules with an owner's commands, which are no part of a running system.
_OWNERS = ("checks.py", "event_triggers.py", "migrate.py", "programs.py", "roles.py", "schema_reference.py", "env.py")
_QUERY = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
# The packages whose processes act in each role.
_CALLERS = {"forebay_receiver": ("receiver_runtime",), "forebay_driver": ("orchestration", "forebay")}


def _used(packages: tuple[str, ...]) -> set[str]:
    """Return the functions and classes of tracker_store that these packages use."""
    used: set[str] = set()
    for text in (path.read_text(encoding="utf-8") for package in packages for path in (_ROOT / package).rglob("*.py")):
        for found in _IMPORT.finditer(text):
            used.update(re.findall(r"\w+", found["names"]))
        for found in _MODULE.finditer(text):
            for module in re.findall(r"\w+(?: as (\w+))?", found["names"]) + re.findall(r"\w+", found["names"]):
                used.update(re.findall(rf"\b{module}\.(\w+)", text) if module else ())
    return used


class _Recorder:
    def __init__(self) -> None:
        self._names = {role: _used(packages) for role, packages in _CALLERS.items()}
        self._found: dict[str, dict[str, str]] = {role: {} for role in _CALLERS}

    def note(self, _connection: object, cursor: Any, statement: str, parameters: Any, *_: object) -> None:  # noqa: ANN401  psycopg2's
        callers: set[str] = set()
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename.endswith(tuple(f"/{owner}" for owner in _OWNERS)):
                return
            if "/tracker_store/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
                callers.update(frame.f_code.co_qualname.split("."))
            frame = frame.f_back  # type: ignore[assignment]
        for role, names in self._names.items():
            if names & callers and "forebay." in statement and _QUERY.match(statement):
                text = cursor.mogrify(statement, parameters or None).decode()
                self._found[role].setdefault(statement, text)

    def write(self) -> None:
        STATEMENTS.parent.mkdir(exist_ok=True)
        found = {role: sorted(statements.values()) for role, statements in self._found.items()}
        # These are not sent through SQLAlchemy; blocks come from receivers only.
        for module, roles in (
            (tracker_store.blocks.blocks, ("forebay_receiver",)),
            (tracker_store.receivers.processes, tuple(found)),
        ):
            prepared = [each.preparation for each in vars(module).values() if isinstance(each, Prepared)]
            for role in roles:
                found[role] += prepared
        commit = run_program(["git", "rev-parse", "HEAD"], cwd=_ROOT, check=True).stdout.strip()
        text = json.dumps({"commit": commit, "statements": found}, indent=1)
        STATEMENTS.write_text(f"{text}\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Listen to every engine."""
    recorder = _Recorder()
    sa.event.listen(sa.Engine, "before_cursor_execute", recorder.note)
    config.add_cleanup(recorder.write)
