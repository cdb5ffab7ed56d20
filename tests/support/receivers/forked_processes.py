"""Fork receiver processes from one that has loaded their code, so that each begins in milliseconds, not in a second.

``python -m`` this module ``FD`` is that process, the template: it has one thread, owns no connection and runs no
receiver. It gets each request on the socket FD, with the descriptors of the new process, and ends with that socket. A
new process has the environment, the directory and a session of its own, as if it were started by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from receiver_runtime.exit_codes import ExitCode

#: Elsewhere than on Linux each process is started by itself.
CAN_FORK = hasattr(os, "pidfd_open")
#: A request is one message of at most this many bytes.
_MOST_BYTES = 1 << 20
_LENGTH = 4
_ROOT = Path(__file__).parents[3]
#: A test may start processes in several threads.
_ONE_REQUEST = threading.Lock()
#: Else numpy and pyarrow start threads when they are loaded, and a process with threads is not forked.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class ForkedProcess(subprocess.Popen[bytes]):
    """A process that another one has forked, with what tests use of Popen. Its exit code comes on a socket."""

    def __init__(self, pid: int, stdin: IO[bytes], status: socket.socket) -> None:
        """Take what the template has made; nothing is started here."""
        self.pid = pid
        self.stdin = stdin
        self.stdout = self.stderr = None
        self.returncode: int | None = None
        self.args = ["forked receiver"]
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
            # Until this is closed the process is a zombie, as a child is that nothing has waited for.
            self._status.close()
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode

    def __del__(self) -> None:
        """Leave the process to the template."""


@functools.cache
def _template(python_path: str | None) -> socket.socket:
    """Start the template of this test process for a PYTHONPATH, which decides what it finds; it ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **_ONE_THREAD},
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def fork_receiver(receiver: tuple[int, int], *, database_url: str, block_store: str, log: IO[bytes]) -> ForkedProcess:
    """Start a process for a receiver and its assignment; it writes to `log`, and ends when its `stdin` closes."""
    request = {
        "receiver": receiver,
        "database_url": database_url,
        "block_store": block_store,
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
    }
    template = _template(os.environ.get("PYTHONPATH"))
    reading, writing = os.pipe()
    status, theirs = socket.socketpair()
    message = json.dumps(request).encode()
    with theirs, _ONE_REQUEST:
        template.sendall(len(message).to_bytes(_LENGTH))
        socket.send_fds(template, [message], [reading, log.fileno(), theirs.fileno()])
        pid = int(template.recv(64))
    os.close(reading)
    return ForkedProcess(pid, os.fdopen(writing, "wb"), status)


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork a process for each request; return its request in each new process, and in the template never."""
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is requests:
                    taken = _receive(requests)
                    if taken is None:
                        sys.exit()
                    request, descriptors = taken
                    pid = os.fork()
                    if pid == 0:
                        _begin(request, descriptors)
                        return request
                    *given, status = descriptors
                    for descriptor in given:
                        os.close(descriptor)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
                    requests.sendall(str(pid).encode())
                else:
                    _follow(selector, key)


def _receive(requests: socket.socket) -> tuple[dict[str, Any], Sequence[int]] | None:
    """Return the next request with its three descriptors, or None at the end."""
    length = requests.recv(_LENGTH, socket.MSG_WAITALL)
    if not length:
        return None
    message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
    while len(message) < int.from_bytes(length):
        message += requests.recv(int.from_bytes(length) - len(message))
    request: dict[str, Any] = json.loads(message)
    return request, descriptors


def _follow(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Report the end of a process, and reap it when the report has been read."""
    pid, status = key.data
    selector.unregister(key.fileobj)
    os.close(key.fd)
    if key.fd == status:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    with contextlib.suppress(OSError):
        os.write(status, str(code).encode())
    selector.register(status, selectors.EVENT_READ, (pid, status))


def _begin(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Make a forked process what it would be if it were started by itself."""
    os.setsid()
    reading, log, _ = descriptors
    for source, target in ((reading, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    # As `python -c` has it.
    sys.path.insert(0, "")


def main() -> ExitCode:
    """Be the template, and in each process that it forks a receiver process."""
    from receiver_runtime.receiver_process import run  # noqa: PLC0415  a test process loads this module, and forks none
    from receiver_runtime.spare_process import load  # noqa: PLC0415  as above

    load()
    # A receiver loads these at its first connection and its first records.
    for module in ("encodings.idna", "pyarrow.compute", "receiver_runtime.receivers.run_receiver"):
        importlib.import_module(module)
    [_only_thread] = Path("/proc/self/task").iterdir()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    receiver_id, assignment = request["receiver"]
    return run([(receiver_id, assignment)], database_url=request["database_url"], block_store=request["block_store"])


if __name__ == "__main__":
    sys.exit(main())
