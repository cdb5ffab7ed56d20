"""Write the stubs of the modules that find names by entry points: what type checkers know of them.

A stub has the module's own imports, those of its `_PLACES`, and one for each class that `pyproject.toml` registers.
`python -m release.stub` writes them, and a test compares.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The modules, each with the entry point group of the classes that it finds.
MODULES = {
    ROOT / "forebay" / "__init__.py": "forebay.sinks",
    ROOT / "forebay" / "records.py": "forebay.records",
    ROOT / "forebay" / "sources.py": "forebay.sources",
    ROOT / "forebay" / "web_hooks.py": "forebay.web_hooks",
}


def stub(module: Path) -> str:
    """Return a module's stub as it should be."""
    places: dict[str, str] = {}
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            places |= {name.name: node.module for name in node.names if re.match("[A-Z].*[a-z]", name.name)}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PLACES":
            places |= ast.literal_eval(node.value)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for value in project["entry-points"][MODULES[module]].values():
        found, _, name = value.partition(":")
        places.setdefault(name, found)
    imports = sorted(f"from {found} import {name} as {name}" for name, found in places.items())
    return "\n".join(["# Written by `python -m release.stub`.", *imports, ""])


if __name__ == "__main__":
    for path in MODULES:
        path.with_suffix(".pyi").write_text(stub(path), encoding="utf-8")
