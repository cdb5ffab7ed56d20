"""Azure's blob storage for tests: Azurite, with its objects in memory, and without the hierarchical endpoint `dfs`.

npm installs it once (about 190 MB) into a folder of the user's cache that outlives the checkout, for the first test
that needs it or for ``python -m tests.support.servers.azurite``.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow.fs import AzureFileSystem, FileSelector, FileType

from tests.support.commands.run_program import run_program
from tests.support.machine.held_ports import held_ports
from tests.support.servers.listening import started

if TYPE_CHECKING:
    import subprocess

VERSION = "3.35.0"  # later ones need Node 22
ACCOUNT = "forebay"
KEY = base64.b64encode(b"forebay-secret").decode()
CONTAINER = "blocks"
_INSTALL_SECONDS = 600.0
_START_FROM = Path(__file__).with_name("azurite_start_from.js")


class NoAzuriteError(Exception):
    """There is no Azurite to test against: install Node and npm."""


def program() -> list[str]:
    """Return the server's command; install it if it is missing. Raises NoAzuriteError."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NoAzuriteError(NoAzuriteError.__doc__)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests"
    made = cache / f"azurite-{VERSION}"
    if not made.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Beside it, because an install that is cut off must not be taken for one.
        with tempfile.TemporaryDirectory(dir=cache) as beside:
            whole = Path(beside) / "whole"
            installed = run_program(
                [
                    *(npm, "install", "--prefix", str(whole), "--ignore-scripts", "--no-audit", "--no-fund"),
                    f"azurite@{VERSION}",
                ],
                timeout=_INSTALL_SECONDS,
            )
            if installed.returncode != 0:
                raise NoAzuriteError(f"{NoAzuriteError.__doc__} {installed.stderr[-500:]}")
            whole.rename(made)
    return [
        node,
        "--require",
        str(_START_FROM),
        str(made / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"),
    ]


class AzuriteServer:
    """One server with one container, on a free port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        [self.port] = held_ports(self, 1)
        self._program = program()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def authority(self) -> str:
        """Return its host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        """Return the account's address."""
        return f"http://{self.authority}/{ACCOUNT}"

    def url(self, prefix: str) -> str:
        """Return the URL of what is below a prefix, as pyarrow takes it: it has no account key, but a signature."""
        from azure.storage.blob import (  # noqa: PLC0415  slow to load, and most tests need none
            AccountSasPermissions,
            ResourceTypes,
            generate_account_sas,
        )

        signed = generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes(container=True, object=True),
            AccountSasPermissions(read=True, write=True, delete=True, list=True),
            datetime.now(UTC) + timedelta(days=1),
        )
        return (
            f"abfs://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/{prefix}?blob_storage_authority={self.authority}"
            f"&dfs_storage_authority={self.authority}&enable_tls=false&{signed}"
        )

    @property
    def connection(self) -> str:
        """Return the account's connection string, with its key."""
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.endpoint};"

    @property
    def _files(self) -> Any:  # noqa: ANN401  pyarrow has no types
        return AzureFileSystem(
            ACCOUNT,
            account_key=KEY,
            blob_storage_authority=self.authority,
            blob_storage_scheme="http",
            dfs_storage_authority=self.authority,
            dfs_storage_scheme="http",
        )

    def folder(self, prefix: str) -> Path:
        """Return a directory with copies of the objects that are below a prefix now."""
        copies, files = Path(tempfile.mkdtemp(dir=self._directory)), self._files
        below = f"{CONTAINER}/{prefix}"
        for info in files.get_file_info(FileSelector(below, recursive=True, allow_not_found=True)):
            if info.type == FileType.File:
                copy = copies / info.path.removeprefix(f"{below}/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                with files.open_input_stream(info.path) as stream:
                    copy.write_bytes(stream.read())
        return copies

    def start(self) -> None:
        """Start the server and make its container; return when it answers."""
        self._process = started(
            [
                *self._program,
                *("--blobPort", str(self.port), "--inMemoryPersistence", "--silent", "--disableTelemetry"),
                # pyarrow's client speaks a later version than Azurite knows.
                "--skipApiVersionCheck",
            ],
            ("127.0.0.1", self.port),
            self._directory / "log",
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        )
        self._files.create_dir(CONTAINER)

    def kill(self) -> None:
        """Kill the server, if it runs; its objects are gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


if __name__ == "__main__":
    program()
