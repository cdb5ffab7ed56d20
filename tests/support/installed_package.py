"""Install a package that registers something by an entry point, as pip does: a module, and its metadata beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def install_package(folder: Path, name: str, group: str, entry: str, module: str = "") -> None:
    """Put the package into a folder that is on the path, with its code in the module `NAME_code`."""
    metadata = folder / f"{name}-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    (folder / f"{name}_code.py").write_text(module)
