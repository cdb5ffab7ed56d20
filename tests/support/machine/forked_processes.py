"""Fork processes from one that has loaded their code, so that each begins in milliseconds, not in a second.

``python -m`` this module ``FD SOCKET PROGRAM`` is that process, the template: it has one thread, owns no connection and
runs nothing itself. PROGRAM is a module with two functions: ``load`` imports what its processes need, and ``main`` runs
one of them with its arguments. Each request is a connection to SOCKET, with the descriptors that the new process gets
as its standard ones; the exit code comes back on it. A new process has the environment, the directory and a session of
its own, as if it were started by itself. The template ends when FD closes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import IO

#: Elsewhere than on Linux each process is started by itself.
CAN_FORK: Final = hasattr(os, "pidfd_open")
_LENGTH: Final = 4  # bytes of a message's length, before the message
_START_SECONDS: Final = 120.0  # how long a template may load, on a busy machine
_REAP_SECONDS: Final = 10.0  # how long a template may take to reap a process that has ended
_ROOT: Final = Path(__file__).parents[3]
#: Else numpy and pyarrow start threads when they are loaded, and a process with threads is not forked.
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
#: Several threads of a test may need the first process of a program at the same time.
_ONE_START = threading.Lock()


class ForkedProcess(subprocess.Popen[bytes]):
    """A process that a template has forked, with what tests use of Popen. Its exit code comes on a socket."""

    def __init__(self, pid: int, stdin: IO[bytes] | None, status: socket.socket) -> None:
        """Take what the template has made; nothing is started here."""
        self.pid = pid
        self.stdin = stdin
        self.stdout = self.stderr = None
        self.returncode: int | None = None
        self.args = ["forked process"]
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._read_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raises TimeoutExpired as Popen does."""
        code = self._read_status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _read_status(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return None
            text = self._status.recv(64)
            # Until this is shut down the process is a zombie, as a child is that nothing has waited for. The template
            # closes its end when it has reaped it.
            self._status.settimeout(_REAP_SECONDS)
            with contextlib.suppress(OSError):
                self._status.shutdown(socket.SHUT_WR)
                self._status.recv(1)
            self._status.close()
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode

    def __del__(self) -> None:
        """Leave the process to the template."""


def template(program: str) -> Path:
    """Return the socket of this test process's template for a program, which is started by the first call."""
    with _ONE_START:
        return _template(program, os.environ.get("PYTHONPATH"))


@functools.cache
def _template(program: str, python_path: str | None) -> Path:
    directory = tempfile.TemporaryDirectory(prefix="forebay-test-fork-", ignore_cleanup_errors=True)
    path = Path(directory.name) / "socket"
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(theirs.fileno()), str(path), program],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **_ONE_THREAD},
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(directory.cleanup)
    atexit.register(process.wait)
    atexit.register(ours.close)
    ours.settimeout(_START_SECONDS)
    if ours.recv(1) != b"!":
        raise RuntimeError(f"the template of {program} has ended: its output is that of this process")
    return path


def fork(
    program: str,
    arguments: Sequence[str],
    *,
    descriptors: tuple[int, int, int],
    stdin: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> ForkedProcess:
    """Start a process of a program with these standard descriptors; `stdin` is the other end of the first, if any."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(template(program)))
    request = {
        "arguments": list(arguments),
        "environment": dict(os.environ if environment is None else environment),
        "directory": str(directory or Path.cwd()),
    }
    message = json.dumps(request).encode()
    socket.send_fds(connection, [len(message).to_bytes(_LENGTH)], descriptors)
    connection.sendall(message)
    return ForkedProcess(int.from_bytes(connection.recv(_LENGTH, socket.MSG_WAITALL)), stdin, connection)


def run(
    program: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    stdin: int | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run a process of a program to its end; return its exit code, and what it writes to both of its outputs."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, Path(os.devnull).open("rb") as nothing:
        descriptors = (nothing.fileno() if stdin is None else stdin, output.fileno(), errors.fileno())
        process = fork(program, arguments, descriptors=descriptors, environment=environment, directory=directory)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said = [(stream.seek(0), stream.read().decode())[1] for stream in (output, errors)]
    return subprocess.CompletedProcess([program, *arguments], code, *said)


def _serve(owner: socket.socket, listener: socket.socket) -> dict[str, Any]:
    """Fork a process for each request; return its request in each new process, and in the template never."""
    with selectors.DefaultSelector() as selector:
        for end in (owner, listener):
            selector.register(end, selectors.EVENT_READ, (0, end))
        while True:
            for key, _ in selector.select():
                if key.fileobj is owner:
                    os._exit(0)
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    received = _receive(connection)
                    if received is None:
                        continue
                    request, descriptors = received
                    pid = os.fork()
                    if pid == 0:
                        for end in (connection, *(other.data[1] for other in selector.get_map().values())):
                            end.detach()
                        _begin(request, descriptors)
                        return request
                    for descriptor in descriptors:
                        os.close(descriptor)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
                    with contextlib.suppress(OSError):
                        connection.sendall(pid.to_bytes(_LENGTH))
                else:
                    _follow(selector, key)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], Sequence[int]] | None:
    """Return a request with its three descriptors, or None if the one that sent it has ended."""
    length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    if not length:
        connection.close()
        return None
    message = connection.recv(int.from_bytes(length), socket.MSG_WAITALL)
    request: dict[str, Any] = json.loads(message)
    return request, descriptors


def _follow(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Report the end of a process, and reap it when the report has been read."""
    pid: int
    connection: socket.socket
    pid, connection = key.data
    selector.unregister(key.fileobj)
    if key.fileobj is connection:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        connection.close()
        return
    os.close(key.fd)
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    with contextlib.suppress(OSError):
        connection.sendall(str(code).encode())
    selector.register(connection, selectors.EVENT_READ, (pid, connection))


def _begin(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Make a forked process what it would be if it were started by itself."""
    os.setsid()
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
    os.closerange(3, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    # A test may write a module again within the second and of the same size: Python would take it for the compiled one.
    sys.dont_write_bytecode = True
    # As `python -c` has it.
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = ["", *(folder for folder in added if folder and folder not in sys.path)]


def main() -> int:
    """Be the template, and in each process that it forks the program."""
    owner, path, name = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3]
    program: ModuleType = importlib.import_module(name)
    program.load()
    # Else the first collection in a forked process copies all that the template has loaded.
    gc.collect()
    gc.freeze()
    [_only_thread] = Path("/proc/self/task").iterdir()
    # No `with`: a forked process has detached it.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    owner.sendall(b"!")
    request = _serve(owner, listener)
    try:
        code: int = program.main(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code


def _end(code: int) -> None:
    """End without what the interpreter does last: to free all modules takes longer than most commands."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
