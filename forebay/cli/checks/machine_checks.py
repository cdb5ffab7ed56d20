"""Check for `forebay doctor` what this machine gives: packages, clock, limits of the system, ports.

It changes nothing and connects to nothing: a connection to the driver log comes from the caller.
"""

from __future__ import annotations

import re
import resource
import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.cli.checks.extras import is_installed
from forebay.cli.checks.findings import Finding, Health
from forebay.cli.instance.dagster_home import URL_FILE
from forebay.cli.services.supervisor_lock import lock_holder
from orchestration.tracker.http.listen_address import ListenAddressError, listen_address
from receiver_runtime.sources.source_registry import source_class, source_kinds
from tracker_store.connection.server_clock import server_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import sqlalchemy as sa

    from orchestration.declarations.settings import Settings

UI_PORT = 3000
TRACKER_ADDRESS_FILE = Path("run", "tracker.url")

# An Http source takes 5,000 connections by default; its process needs a few hundred descriptors more.
ENOUGH_DESCRIPTORS: Final = 5_500
# Threads count as processes: Spark's JVM and its workers, Dagster's sensors and the receivers have hundreds.
ENOUGH_PROCESSES: Final = 2_000
# A difference that people notice when they compare a log's times with a batch's.
CLOCK_LIMIT: Final = timedelta(seconds=1)
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;,]+)$")


def check_packages() -> Iterator[Finding]:
    """Check the packages of which Forebay needs one version: another one was installed beside it."""
    wrong = []
    for requirement in metadata.requires("forebay") or []:
        match = _PIN.match(requirement)
        if match is None:
            continue
        try:
            found = metadata.version(match["name"])
        except metadata.PackageNotFoundError:
            found = "not there"
        if found != match["version"]:
            wrong.append(f"{match['name']} is {found}, and must be {match['version']}")
    forebay = metadata.version("forebay")
    if wrong:
        way_out = f"Install it again in an environment of its own: pip install --force-reinstall forebay=={forebay}"
        yield Finding("packages", Health.FAILED, "; ".join(wrong), way_out)
    else:
        yield Finding("packages", Health.OK, "those of which Forebay needs one version have it")


def check_extras(streams: Mapping[str, str]) -> Iterator[Finding]:
    """Check that what the declared streams need is installed. `streams`: the kind of source by the stream's name."""
    extras = sorted(metadata.metadata("forebay").get_all("Provides-Extra") or [])
    installed = [extra for extra in extras if is_installed(extra)]
    missing: dict[str, list[str]] = {}
    for stream, kind in sorted(streams.items()):
        extra = source_class(kind).needs_extra if kind in source_kinds() else None
        if extra is not None and extra not in installed:
            missing.setdefault(extra, []).append(stream)
    for extra, names in missing.items():
        found = f"{', '.join(names)} can't be received here: the extra {extra} is not installed"
        way_out = f"If this host shall receive it: pip install 'forebay[{extra}]'"
        yield Finding("extras", Health.WARNING, found, way_out)
    if not missing:
        yield Finding("extras", Health.OK, f"installed: {', '.join(installed) or 'none'}")


def check_clock(connection: sa.Connection) -> Iterator[Finding]:
    """Compare this host's clock with the database's; the time that the question takes is allowed for."""
    before = now()
    there = server_time(connection)
    after = now()
    ahead = before + (after - before) / 2 - there
    if abs(ahead) - (after - before) / 2 < CLOCK_LIMIT:
        yield Finding("clock", Health.OK, "it is the database's, as far as can be seen")
        return
    direction = "ahead of" if ahead > timedelta(0) else "behind"
    yield Finding(
        "clock",
        Health.WARNING,
        f"this host's clock is {abs(ahead).total_seconds():,.1f} s {direction} the database's",
        "Let both follow a time server (chrony, systemd-timesyncd). Batch times and events are by the database's "
        "clock, logs and Dagster's runs by this one.",
    )


def now() -> datetime:
    """Return the time on this host's clock."""
    return datetime.now(UTC)


def check_limits() -> Iterator[Finding]:
    """Check how many open files and processes the system allows."""
    # The hard limit: a receiver process raises its own limit that far.
    files = _limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if files is None:
        yield Finding("descriptors", Health.OK, "the system does not limit the open files of a process")
    elif files >= ENOUGH_DESCRIPTORS:
        yield Finding("descriptors", Health.OK, f"a process may have {files:,} open files")
    else:
        yield Finding(
            "descriptors",
            Health.WARNING,
            f"a process may have {files:,} open files: too few for the connections that one listening receiver takes",
            "Raise the hard limit (`ulimit -Hn`; LimitNOFILE= in systemd), or lower max_connections.",
        )
    limits = [limit for limit in (_limit(resource.getrlimit(resource.RLIMIT_NPROC)[0]), tasks_limit()) if limit]
    if not limits:
        yield Finding("processes", Health.OK, "the system does not limit the processes and threads of this account")
    elif min(limits) >= ENOUGH_PROCESSES:
        yield Finding("processes", Health.OK, f"there may be {min(limits):,} processes and threads")
    else:
        yield Finding(
            "processes",
            Health.WARNING,
            f"there may be {min(limits):,} processes and threads: Spark, Dagster and a few receivers can need more",
            "Raise it (`ulimit -u`; TasksMax= in systemd; the container's limit of pids).",
        )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def tasks_limit(proc: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the least `pids.max` of this process's control group and those above it; None: there is no limit."""
    try:
        groups = [line.split(":", 2) for line in proc.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    found = []
    for _, controllers, path in groups:
        if controllers not in ("", "pids"):
            continue
        root = mounts / controllers
        group = root / path.strip().lstrip("/")
        for folder in (group, *group.parents):
            found += _pids_of(folder)
            if folder == root:
                break
    return min(found, default=None)


def _pids_of(group: Path) -> list[int]:
    try:
        text = (group / "pids.max").read_text(encoding="ascii").strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []


def check_ports(settings: Settings) -> Iterator[Finding]:
    """Check that Dagster's UI and the tracker can listen, or do already."""
    try:
        with closing(socket.socket()) as any_port:
            any_port.bind(("127.0.0.1", 0))
    except OSError as error:
        found = f"nothing can listen on 127.0.0.1: {error}"
        yield Finding("ports", Health.FAILED, found, "Bring the loopback interface up (`ip link set lo up`).")
        return
    yield _ui_port(settings)
    yield from _tracker_port(settings)


def _ui_port(settings: Settings) -> Finding:
    if lock_holder(settings.home) is not None:
        return Finding("ports", Health.OK, f"Dagster's UI is at {_written(settings.home / 'dagster' / URL_FILE)}")
    port = UI_PORT if settings.ui_port is None else settings.ui_port
    if not port:
        return Finding("ports", Health.OK, "Dagster's UI takes any free port (FOREBAY_UI_PORT)")
    if (why := _refusal("127.0.0.1", port)) is None:
        return Finding("ports", Health.OK, f"port {port} is free for Dagster's UI")
    if settings.ui_port is None:
        found = f"port {port} is in use ({why}): `forebay up` takes a free one for Dagster's UI, and says which"
        return Finding("ports", Health.WARNING, found, "Or choose one: FOREBAY_UI_PORT, or forebay up --ui-port PORT.")
    found = f"port {port} (FOREBAY_UI_PORT) can't be used for Dagster's UI: {why}"
    return Finding("ports", Health.FAILED, found, "End what uses it, or set another port; 0 means any free one.")


def _tracker_port(settings: Settings) -> Iterator[Finding]:
    try:
        address = listen_address(settings.tracker_http, settings.tracker_token, settings.tracker_write_token)
    except ListenAddressError as error:
        yield Finding("ports", Health.FAILED, str(error), "Correct FOREBAY_TRACKER_HTTP, or the token that it names.")
        return
    if address is None:
        return
    where = f"{address.host}:{address.port}"
    why = _refusal(address.host, address.port)
    if why is None:
        yield Finding("ports", Health.OK, f"the tracker has {where}")
    elif (settings.home / TRACKER_ADDRESS_FILE).exists():
        yield Finding("ports", Health.OK, f"the tracker serves {_written(settings.home / TRACKER_ADDRESS_FILE)}")
    else:
        found = f"the tracker can't listen on {where}: {why}; it works without, and tries again"
        yield Finding("ports", Health.WARNING, found, "Name another address in FOREBAY_TRACKER_HTTP, or free this one.")


def _refusal(host: str, port: int) -> str | None:
    """Return why nothing can listen there, or None. It listens for no moment."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _written(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return "a port that it has not written down yet"
