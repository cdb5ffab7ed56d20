"""Mount and unmount a block store by renaming: while it is not mounted, an empty directory is in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Mount:
    """The mount point `root`; the store need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = root.with_name(f"{root.name}.disk")

    def unmount(self, instead: str = "an empty directory") -> None:
        """Unmount the store, and leave `instead` in its place: an empty directory, or nothing."""
        self.root.rename(self.disk)
        if instead == "an empty directory":
            self.root.mkdir()

    def mount(self) -> None:
        """Mount the store again. Fails if anything was created in its place."""
        if self.root.exists():
            self.root.rmdir()
        self.disk.rename(self.root)

    @property
    def below(self) -> list[str]:
        """Return the names below the mount point."""
        return sorted(path.name for path in self.root.iterdir()) if self.root.exists() else []
