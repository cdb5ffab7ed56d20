"""Take a directory as a sink's declaration names it; refuse what would become a local directory of that odd name."""

from __future__ import annotations

from pathlib import Path

from orchestration.declarations.pipeline import DeclarationError
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
