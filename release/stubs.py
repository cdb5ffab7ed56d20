"""Write ``forebay/sources.pyi``: the kinds of source that come with Forebay, for type checkers.

``python -m release.stubs`` writes it from the entry points in pyproject.toml; a test compares. It imports no kind.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "forebay" / "sources.pyi"
_TLS = "receiver_runtime.sources.fields.tcp:Tls"


def stub() -> str:
    """Return the stub's text."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = sorted([_TLS, *project["entry-points"]["forebay.sources"].values()])
    imports = (f"from {module} import {name} as {name}" for module, _, name in (one.partition(":") for one in entries))
    names = sorted(entry.partition(":")[2] for entry in entries)
    return "\n".join(
        [
            "# Written by `python -m release.stubs`.",
            *imports,
            "",
            "__all__ = [",
            *(f'    "{one}",' for one in names),
            "]",
        ]
    )


if __name__ == "__main__":
    STUB.write_text(stub() + "\n", encoding="utf-8")
