"""Take a directory as a sink's declaration names it; refuse what would become a local directory of that odd name."""

from __future__ import annotations

import re
from pathlib import Path

from orchestration.pipeline import DeclarationError
from receiver_runtime.block_store.roots import without_secrets

# A Path has made one slash of two.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def declared_directory(path: str | Path, sink: str, *, urls: str) -> Path:
    """Return the absolute path.

    Args:
        path: as declared; relative to the working directory.
        sink: the class, which the message names.
        urls: what to write in place of a URL.

    Raises:
        DeclarationError: it is empty, a URL, or has what a shell would have replaced.
    """
    text = str(path)
    if not text:
        message = f"{sink}: the path is empty: write a directory"
    elif _URL.match(text):
        message = f"{sink}: {without_secrets(text)!r} is a URL: {urls}"
    elif text.startswith("~") or "$" in text:
        message = f"{sink}: {text!r}: no shell replaces '~' and '$' here: write the directory itself"
    else:
        return Path(path).absolute()
    raise DeclarationError(message)
