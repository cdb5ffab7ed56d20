"""A block store at a mount point, by renaming: while it is not mounted an empty directory lies there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Mount:
    """What is at `root` now, or will be; it need not be a store yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = root.with_name(f"{root.name}.disk")

    def unmount(self, instead: str = "an empty directory") -> None:
        """Take the store away, and leave `instead`: an empty directory, or nothing."""
        self.root.rename(self.disk)
        if instead == "an empty directory":
            self.root.mkdir()

    def mount(self) -> None:
        """Bring it back. Fails where anything was made in its place."""
        if self.root.exists():
            self.root.rmdir()
        self.disk.rename(self.root)

    @property
    def below(self) -> list[str]:
        """What lies below the mount point."""
        return sorted(path.name for path in self.root.iterdir()) if self.root.exists() else []
