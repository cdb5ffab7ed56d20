"""Take a directory as a sink's declaration names it; refuse what would become a local directory of that odd name.

Also names and checks the place of such a declaration. Leaves nothing behind.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import Place, TargetCheck
from receiver_runtime.block_store.roots import not_a_directory, without_secrets


def declared_directory(path: str | Path, sink: str, *, otherwise: str = "") -> Path:
    """Return the absolute path.

    Args:
        path: as declared; relative to the working directory.
        sink: the class, which the message names.
        otherwise: what else the sink takes.

    Raises:
        DeclarationError: it is empty, a URL, or has what a shell would have replaced.
    """
    if why := not_a_directory(str(path)):
        message = f"{sink}: path {without_secrets(str(path))!r}: {why}{otherwise}"
        raise DeclarationError(message)
    return Path(path).absolute()


def directory_place(path: str) -> Place:
    """Return the place of a declared path or URL: its options and other spellings make no difference."""
    plain = path.partition("?")[0] if "://" in path else path
    if path.startswith("/"):
        plain = os.path.normpath(path)
    return Place(("files", *plain.rstrip("/").split("/")), repr(path))


def check_directory(path: Path) -> TargetCheck:
    """Check whether this user could write in a directory, or create it, by a folder that is removed at once.

    What a user may do is no answer: root may write everywhere, and a file system such as /proc takes no folder.
    """
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        return TargetCheck("failed", f"{there} is no directory", "Declare another path, or move the file.")
    try:
        # Readers of results skip names that begin with a dot.
        tried = Path(tempfile.mkdtemp(prefix=".forebay-validate-", dir=there))
    except OSError as error:
        way_out = "Let the account that runs batches write there, or declare another path."
        return TargetCheck("failed", f"{there} can't be written by this user ({error.strerror})", way_out)
    try:
        tried.rmdir()
    except OSError as error:
        way_out = f"Delete {tried}, and let the account that runs batches delete there: a replay replaces results."
        return TargetCheck("failed", f"{there} lets this user delete nothing ({error.strerror})", way_out)
    return TargetCheck("ok", f"{path} can be written" if there == path else f"{path} can be created")
