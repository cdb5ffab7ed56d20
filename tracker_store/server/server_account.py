"""Decide the account that the embedded server runs as if Forebay is root, and give that account the programs to run.

Postgres refuses to run as root. The account never needs a way through the directories above its data: it starts inside
the data directory, and names it by `STARTED_IN`. If it can't reach the installed programs, it gets a copy in
`PROGRAMS_DIRECTORY`. This module never changes the mode or the owner of a directory that it did not make.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = structlog.get_logger(__name__)

PROGRAMS_DIRECTORY = Path("/var/lib/forebay")
"""Holds copies of the server's programs, which are public: root owns it, every account may read it."""

_LOCK = "account.lock"
"""A file in PROGRAMS_DIRECTORY that only root can open, and so only root can lock."""

STARTED_IN = Path("/proc/self/cwd")
"""Leads a process to its working directory, although it may not pass through the directories above it (Linux)."""

_UNPRIVILEGED_USER = "pgserver"
"""The account that the wheel itself uses where it runs as root."""

SHARED_USER = "nobody"
"""The account where no other can be made: other programs of the machine may run as it too."""

# Not needed to run a server.
_LEFT_OUT = shutil.ignore_patterns("include")


_OTHER_ACCOUNT = "Run Forebay as another user than root, or name a server of yours in FOREBAY_DATABASE_URL."


@dataclasses.dataclass(frozen=True, slots=True)
class ServerUser:
    """Identify the account that the server runs as if Forebay itself runs as root."""

    name: str
    uid: int
    gid: int


def account_of(uid: int) -> ServerUser:
    """Return the account with this uid. Raises DriverLogError."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise DriverLogError(
            f"the data belongs to uid {uid}, which is no account of this machine", _OTHER_ACCOUNT
        ) from None
    return ServerUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def unprivileged_user() -> ServerUser:
    """Return the account for a server that root starts; create it if the machine allows, else use `nobody`."""
    with contextlib.suppress(KeyError):
        return account_of(pwd.getpwnam(_UNPRIVILEGED_USER).pw_uid)
    with contextlib.suppress(OSError, DriverLogError, subprocess.CalledProcessError, KeyError), _alone():
        # Of two at the same time, the second useradd gives the account another uid, and the data of the first none.
        with contextlib.suppress(KeyError):
            return account_of(pwd.getpwnam(_UNPRIVILEGED_USER).pw_uid)
        subprocess.run(  # noqa: S603 - constants only
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _UNPRIVILEGED_USER],  # noqa: S607
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        return account_of(pwd.getpwnam(_UNPRIVILEGED_USER).pw_uid)
    try:
        return account_of(pwd.getpwnam(SHARED_USER).pw_uid)
    except KeyError:
        raise DriverLogError("this machine has no account besides root", _OTHER_ACCOUNT) from None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes out that make the account. Raises OSError, DriverLogError."""
    _require_own_directory()
    with os.fdopen(os.open(PROGRAMS_DIRECTORY / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as lock:
        # Its holder runs useradd, which waits for a bounded time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_as(user: ServerUser | None) -> dict[str, object]:
    """Return subprocess's arguments that run a program as the account; None: the caller's own."""
    if user is None:
        return {"umask": 0o077}
    return {"umask": 0o077, "user": user.uid, "group": user.gid, "extra_groups": []}


def directory_as_started(directory: Path, user: ServerUser | None) -> Path:
    """Return the name of a directory for a program that is started in it. Raises DriverLogError."""
    if user is None:
        return directory
    if not STARTED_IN.exists():
        raise DriverLogError(f"this system has no {STARTED_IN}", _OTHER_ACCOUNT)
    return STARTED_IN


def programs_for(binaries: Path, user: ServerUser | None) -> Path:
    """Return a folder with the server's programs that the account can reach: `binaries`, or a copy, made once.

    The copy has the libraries beside the package too, at the same place. Raises DriverLogError.
    """
    if user is None or can_execute(binaries / "postgres", user):
        return binaries
    installation = binaries.parent.resolve()
    package = installation.parent
    found = (binaries / "postgres").stat()
    key = hashlib.sha256(f"{installation}\0{found.st_size}\0{found.st_mtime_ns}".encode()).hexdigest()[:16]
    copy = PROGRAMS_DIRECTORY / f"postgres-{key}"
    programs = copy / package.name / installation.name / binaries.name
    try:
        _require_own_directory()
        if not copy.exists():
            _copy(installation, copy)
    except OSError as error:
        raise DriverLogError(
            f"the account {user.name} can't execute {binaries}, and a copy in {PROGRAMS_DIRECTORY} failed: {error}",
            _OTHER_ACCOUNT,
        ) from error
    if not can_execute(programs / "postgres", user):
        raise DriverLogError(f"the account {user.name} can execute neither {binaries} nor {programs}", _OTHER_ACCOUNT)
    return programs


def can_execute(program: Path, user: ServerUser) -> bool:
    """Return whether the modes let the account read and execute a file and reach it; access lists do not count."""
    program = program.resolve()
    return _has_rights(program.stat(), user, os.R_OK | os.X_OK) and all(
        _has_rights(folder.stat(), user, os.X_OK) for folder in program.parents
    )


def _has_rights(status: os.stat_result, user: ServerUser, rights: int) -> bool:
    shift = 6 if status.st_uid == user.uid else 3 if status.st_gid == user.gid else 0
    return (status.st_mode >> shift) & rights == rights


def _require_own_directory() -> None:
    """Make `PROGRAMS_DIRECTORY`; refuse one in which another account could put programs. Raises as programs_for."""
    with contextlib.suppress(FileExistsError):
        PROGRAMS_DIRECTORY.mkdir(parents=True)
        PROGRAMS_DIRECTORY.chmod(0o755)
    status = PROGRAMS_DIRECTORY.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise DriverLogError(f"{PROGRAMS_DIRECTORY} is no directory that only root can write", _OTHER_ACCOUNT)


def _copy(installation: Path, copy: Path) -> None:
    package = installation.parent
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=copy.parent))
    try:
        shutil.copytree(installation, making / package.name / installation.name, symlinks=True, ignore=_LEFT_OUT)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, making / libraries.name, symlinks=True)
        # Every account may read the copy, whatever the umask was at the installation.
        for path in (making, *making.rglob("*")):
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | stat.S_IRGRP | stat.S_IROTH | (0o011 if mode & stat.S_IXUSR else 0))
        # Two starts at the same time: the first copy stays.
        with contextlib.suppress(FileExistsError):
            making.rename(copy)
            _log.info("copied the embedded server's programs for its account", path=str(copy))
    finally:
        shutil.rmtree(making, ignore_errors=True)
