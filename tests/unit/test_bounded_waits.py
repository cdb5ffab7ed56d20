"""Check that no test and no fixture waits without a bound: what hangs would end its run, and not say where."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: Without an argument each of these waits for ever. `polling.joined` joins a thread, and fails if it goes on.
ENDLESS = ("communicate", "join", "result", "wait")
RUN = ("call", "check_call", "check_output", "run")
#: Programs of their own, each with a limit on its whole run, and a class whose own `join` has a bound.
EXCEPT = ("chaos/", "stress/", "unit/receiver_runtime/test_supervisor_model.py")
_MAY_HAVE_ONE = re.compile(rf"\.({'|'.join(ENDLESS)})\(\)|subprocess\.({'|'.join(RUN)})\(")


def endless_waits(code: str) -> list[str]:
    """Return each call that waits without a bound, with its line. What is awaited, its event loop can end."""
    if not _MAY_HAVE_ONE.search(code):
        return []
    nodes = list(ast.walk(ast.parse(code)))
    awaited = {id(inner) for node in nodes if isinstance(node, ast.Await) for inner in ast.walk(node)}
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in nodes
        if isinstance(node, ast.Call) and id(node) not in awaited and _is_endless(node)
    ]


def _is_endless(call: ast.Call) -> bool:
    given = {keyword.arg for keyword in call.keywords}
    match call.func:
        case ast.Attribute(ast.Name("subprocess"), name):
            return name in RUN and not given & {"timeout", None}
        case ast.Attribute(_, name):
            return name in ENDLESS and not call.args and "timeout" not in given
    return False


def test_each_wait_has_a_bound() -> None:
    paths = [path for path in sorted(TESTS.rglob("*.py")) if not str(path.relative_to(TESTS)).startswith(EXCEPT)]
    paths += sorted(TESTS.parent.glob("forebay_contrib/*/tests/*.py"))
    found = {path: endless_waits(path.read_text(encoding="utf-8")) for path in paths}
    assert {str(path): waits for path, waits in found.items() if waits} == {}


def test_an_endless_wait_is_found() -> None:
    assert endless_waits("process.wait()\nprocess.wait(5)\nawait event.wait()") == ["line 1: process.wait()"]
    assert endless_waits("subprocess.run(['ls'])\nsubprocess.run(['ls'], timeout=5)") == [
        "line 1: subprocess.run(['ls'])"
    ]
