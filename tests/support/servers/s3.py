"""A real S3 server for tests: versitygw, on a directory.

It is built once with Go (a minute or two) into a folder of the user's cache that outlives the checkout, by the first
test that needs it or by ``python -m tests.support.servers.s3``; FOREBAY_TEST_VERSITYGW names an existing one instead.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.commands.run_program import run_program
from tests.support.machine.held_ports import held_ports
from tests.support.servers.listening import started

if TYPE_CHECKING:
    import subprocess

VERSION = "v1.8.0"
ACCESS_KEY = "forebay"
SECRET_KEY = "forebay-secret"
BUCKET = "blocks"
_ATTEMPTS = 3


class NoServerError(Exception):
    """There is no S3 server to test against: install Go, or name a versitygw in FOREBAY_TEST_VERSITYGW."""


def program() -> Path:
    """Return the server's program; build it if it is missing. Raises NoServerError."""
    named = os.environ.get("FOREBAY_TEST_VERSITYGW")
    if named:
        return Path(named)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests"
    made = folder / "versitygw"
    if not made.exists():
        go = shutil.which("go")
        if go is None:
            raise NoServerError(NoServerError.__doc__)
        folder.mkdir(parents=True, exist_ok=True)
        # The build downloads a hundred modules and may fail; a retry downloads none of them again.
        for _ in range(_ATTEMPTS):
            built = run_program(
                [go, "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
                env={**os.environ, "GOBIN": str(folder)},
            )
            if built.returncode == 0:
                return made
        raise NoServerError(f"{NoServerError.__doc__} {built.stderr[-500:]}")
    return made


class S3Server:
    """One server with one bucket, on a free port that it keeps over restarts."""

    def __init__(self, directory: Path, *, address: str = "127.0.0.1") -> None:
        self._directory = directory
        self._address = address
        self.objects.mkdir(parents=True)
        [self.port] = held_ports(self, 1, address=address)
        self._program = program()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def objects(self) -> Path:
        """Return the directory of the bucket's objects."""
        return self._directory / "objects" / BUCKET

    def folder(self, prefix: str) -> Path:
        """Return the directory of the objects below a prefix."""
        return self.objects / prefix

    def url(self, prefix: str) -> str:
        """Return the URL of the block store below a prefix."""
        return (
            f"s3://{ACCESS_KEY}:{SECRET_KEY}@{BUCKET}/{prefix}"
            f"?endpoint_override={self._address}:{self.port}&scheme=http&region=us-east-1"
        )

    def start(self) -> None:
        """Start the server; return when it accepts connections."""
        self._process = started(
            [
                *(str(self._program), "--access", ACCESS_KEY, "--secret", SECRET_KEY),
                *("--port", f"{self._address}:{self.port}", "--quiet"),
                *("posix", str(self._directory / "objects")),
            ],
            (self._address, self.port),
            self._directory / "log",
        )

    def signal(self, number: int) -> None:
        """Send the server a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the server, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


if __name__ == "__main__":
    program()
