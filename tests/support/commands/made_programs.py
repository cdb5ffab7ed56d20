"""Make programs that no Python package has, once, in a folder of the user's cache that outlives the checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SECONDS = 1800.0
_SHOWN_CHARACTERS = 800  # of what a command that failed has said


class NoProgramError(Exception):
    """Signal that a program can't be had here; the message says why."""


def tool(name: str) -> str:
    """Return the path of a program that builds others. Raises NoProgramError."""
    found = shutil.which(name)
    if found is None:
        raise NoProgramError(f"{name} is missing: install it")
    return found


def made(
    name: str,
    sources: Path,
    files: Sequence[str],
    commands: Callable[[str], Sequence[Sequence[str]]],
    env: Mapping[str, str] | None = None,
) -> Path:
    """Return the folder with what the commands make of a folder's files; made once for these files and commands.

    Args:
        name: what the folder is called, before a hash.
        sources: the folder.
        files: what is copied from it.
        commands: they run one after the other; they are given the folder into which they make.
        env: what they find in their environment, beside ours.

    Raises:
        NoProgramError: a command failed.
    """
    contents = [(sources / file).read_bytes() for file in files]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests"
    told = repr(commands("")).encode()
    folder = cache / f"{name}-{hashlib.sha256(b''.join([*contents, told])).hexdigest()[:12]}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Beside it, because an install that is cut off must not be taken for one.
    with tempfile.TemporaryDirectory(dir=cache) as beside:
        whole = Path(beside) / "whole"
        whole.mkdir()
        for file, content in zip(files, contents, strict=True):
            (whole / file).parent.mkdir(parents=True, exist_ok=True)
            (whole / file).write_bytes(content)
        for command in commands(str(whole)):
            done = run_program(command, env={**os.environ, **(env or {})}, cwd=whole, timeout=_SECONDS)
            if done.returncode:
                said = (done.stderr or done.stdout)[-_SHOWN_CHARACTERS:]
                raise NoProgramError(f"{command[0]} could not make {name}: {said}")
        whole.rename(folder)
    return folder
