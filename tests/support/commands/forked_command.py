"""The command `forebay` in a process that is forked: a program of ``tests.support.machine.forked_processes``.

A process of the command costs a second of imports or more, and a page of documentation runs several. `forebay` runs one
from a test; `programs` is a folder for the beginning of PATH, in which a shell finds `forebay` as one that is forked.
That an interpreter of its own runs a command is tested by those tests that start ``python -m forebay.cli``.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.machine.forked_processes import CAN_FORK, run, template

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

_SOCKET = "TEST_FOREBAY_SOCKET"
# What `forebay` is in `programs`. It loads no site-packages, and so begins in 30 ms.
_SHIM = f"""#!{sys.executable} -ISE
import json, os, signal, socket, sys
request = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd()}}
message = json.dumps(request).encode()
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["{_SOCKET}"])
socket.send_fds(connection, [len(message).to_bytes(4, "big")], [0, 1, 2])
connection.sendall(message)
pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(connection.recv(64))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def load() -> None:
    """Import every command, and what those load that run batches or read a code location."""
    import forebay.cli.main  # noqa: PLC0415  a test process loads this module, and not those

    for module, _ in forebay.cli.main._COMMANDS.values():
        importlib.import_module(f"forebay.cli.commands.{module}")
    for module in ("orchestration.declarations.modules", "sqlalchemy.dialects.postgresql.psycopg2", "psycopg2.extras"):
        importlib.import_module(module)


def main(arguments: Sequence[str]) -> int:
    """Run the command, as its entry point does."""
    from forebay.cli.entry import main as command  # noqa: PLC0415  as above

    sys.argv = ["forebay", *arguments]
    command()
    return 0


def forebay(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    stdin: int | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit code, and what it writes to both of its outputs."""
    return run(__name__, *arguments, environment=environment, directory=directory, stdin=stdin, timeout=timeout)


def programs() -> dict[str, str]:
    """Return PATH, and what else a shell's environment needs, so that `forebay` is forked there if it can be."""
    here = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if not CAN_FORK:
        return {"PATH": os.pathsep.join(here)}
    return {"PATH": os.pathsep.join([str(_folder()), *here]), _SOCKET: str(template(__name__))}


@functools.cache
def _folder() -> Path:
    folder = template(__name__).parent / "bin"
    folder.mkdir()
    (folder / "forebay").write_text(_SHIM, encoding="utf-8")
    (folder / "forebay").chmod(0o755)
    return folder
