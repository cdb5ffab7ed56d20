"""Parse the setting ``block_store``: one root, or several with commas between them, each a replica.

A root is a directory (a path or a ``file://`` URL), or a URL of an object store. A comma that belongs to a root is
written ``%2C`` in a URL. This module loads nothing large, because every process reads its settings.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from receiver_runtime.block_store.secret_url import SecretUrl

#: Schemes of stores without append, where a block is an object.
OBJECT_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
#: Bytes that a file system takes for one name.
MOST_NAME_BYTES = 255
# A Path has made one slash of two.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_OF_SHELLS = re.compile(r"^~|[$`*]|%[A-Za-z_]\w*%")
_ODD = re.compile(r"[\x00-\x1f\x7f\\]|^\s|\s$")


def split_roots(block_store: str) -> list[str]:
    """Return the roots that a setting names, in its order; empty ones are left out."""
    return [root for part in block_store.split(",") if (root := part.strip())]


def absolute_roots(block_store: str) -> str:
    """Return the same setting with absolute paths, for a process that runs elsewhere."""
    return ",".join(root if "://" in root else str(Path(root).absolute()) for root in split_roots(block_store))


def one_root(directory: Path) -> str:
    """Return the setting that names one directory, whatever characters are in its path."""
    path = directory.absolute()
    return path.as_uri().replace(",", "%2C") if "," in str(path) else str(path)


def directory_of(root: str) -> Path | None:
    """Return the directory of a root; None if it is a URL of something else."""
    # A path may contain a colon; only scheme:// makes a URL.
    if "://" not in root:
        return Path(root).absolute()
    try:
        parts = urlsplit(root)
    except ValueError:
        # A bracket without its counterpart: whatever it is meant to be, it is no directory.
        return None
    return (
        Path(unquote(parts.path)).absolute() if parts.scheme == "file" and parts.netloc in ("", "localhost") else None
    )


def not_a_directory(path: str) -> str | None:
    """Return why a path would become a local directory of an odd name, and what to write; None if it would not."""
    if not path:
        return "it is empty: write a directory"
    if _URL.match(path):
        return "it is a URL that is none here: write a directory"
    if _OF_SHELLS.search(path):
        return "no shell replaces '~', '$', '*' and the like here: write the directory itself"
    if _ODD.search(path):
        return "it has a control character, a blank at its end, or a backslash: write a directory, with '/' between"
    return too_long(path)


def too_long(path: str) -> str | None:
    """Return why no file system takes a path, by its longest name, and what to write; None if one may."""
    name = max(path.split("/"), key=lambda one: len(os.fsencode(one)))
    if (size := len(os.fsencode(name))) <= MOST_NAME_BYTES:
        return None
    return f"its {name[:20]!r}… has {size} bytes: a file system takes {MOST_NAME_BYTES} for one name, so shorten it"


def root_name(root: str) -> str:
    """Return a root's name, also in the driver log: an absolute path, or a URL without secrets and options."""
    directory = directory_of(root)
    return without_secrets(root) if directory is None else str(directory)


def root_names(block_store: str) -> list[str]:
    """Return the names of a setting's roots, in its order."""
    return [root_name(root) for root in split_roots(block_store)]


def without_secrets(root: str) -> str:
    """Return a root as it may be shown: without user, password and query."""
    return SecretUrl(root).name
