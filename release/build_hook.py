"""Put the bill of materials into the wheel, as `.dist-info/sboms/forebay.cdx.json` (PEP 770). Hatchling runs it.

It writes to a temporary directory alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BillOfMaterialsHook(BuildHookInterface):  # type: ignore[misc,type-arg,unused-ignore]
    """Put the bill into a wheel; an editable one gets none, because its packages change without a build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bill, and name it to the builder."""
        if self.target_name != "wheel" or version == "editable":
            return
        # Hatchling loads this file alone, and the root is not on the path of a build.
        sys.path.insert(0, self.root)
        try:
            from release.bill_of_materials import FILE_NAME, bill_of_materials  # noqa: PLC0415
            from release.bundled_programs import read_bundled_programs  # noqa: PLC0415
        finally:
            sys.path.remove(self.root)
        self._directory = tempfile.TemporaryDirectory(prefix="forebay-sbom-")
        path = Path(self._directory.name) / FILE_NAME
        bill = bill_of_materials(Path(self.root), self.metadata.version, read_bundled_programs())
        path.write_text(bill, encoding="utf-8")
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file."""
        del version, build_data, artifact_path
        if hasattr(self, "_directory"):
            self._directory.cleanup()
