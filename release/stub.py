"""Write `forebay/__init__.pyi`: what type checkers know of the names that `forebay` finds by entry points.

It has the module's own imports, and one for each sink that `pyproject.toml` registers beside them. `python -m
release.stub` writes it, and a test compares.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULE = ROOT / "forebay" / "__init__.py"
STUB = MODULE.with_suffix(".pyi")


def stub() -> str:
    """Return the stub as it should be."""
    places: dict[str, str] = {}
    for node in ast.parse(MODULE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            places |= {name.name: node.module for name in node.names if name.name[0].isupper()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for value in project["entry-points"]["forebay.sinks"].values():
        module, _, name = value.partition(":")
        places.setdefault(name, module)
    imports = sorted(f"from {module} import {name} as {name}" for name, module in places.items())
    return "\n".join(["# Written by `python -m release.stub`.", *imports, ""])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
