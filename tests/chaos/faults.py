"""Inject faults, each with the action that heals it. A fault says what it hit; healing is idempotent."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from tests.chaos import disks
from tests.chaos.proxies import Mode
from tests.chaos.system import OneHost, System, TwoHosts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.chaos.schedule import Planned
    from tests.chaos.servers import PostgresServer

T = TypeVar("T")

_STEPS = (-3600, -60, 60, 3600)
# In seconds. This clock stamps blocks, and never stamps a block older than the one before it: when the clock has been
# set forward and is set back, nothing is due for the length of the step. So a step must be shorter than the calm.
_POSTGRES_STEPS = (-20, 20)
_DELAYS = (0.05, 0.2, 0.5)
_SYNC_MILLISECONDS = (200, 800)
_SPARE_DESCRIPTORS = 3
_SPARE_BYTES = 8 * 2**20
_AWAY_POLL = 0.2  # seconds between two kills of a server, or two fillings of a disk


class UnavailableError(Exception):
    """The fault can't be injected now: there is nothing that it could hit."""


class Injected:
    """A fault that lasts until it is healed. `hit`: what it hit, as text for people."""

    def __init__(self, hit: str, heal: Callable[[], object] | None = None) -> None:
        self.hit = hit
        self._heal = heal

    def heal(self) -> None:
        """Remove the fault."""
        heal, self._heal = self._heal, None
        if heal is not None:
            heal()


def inject(system: System, planned: Planned) -> Injected:
    """Inject a fault. Raises UnavailableError."""
    lacking = system.lacks(planned.kind)
    if lacking:
        raise UnavailableError(lacking)
    verb, _, rest = planned.kind.partition("-")
    if verb == "net":
        return _network(system, rest, planned.pick)
    if verb == "block":
        return _damage(system, rest, planned.pick)
    if planned.kind in _NAMED:
        return _NAMED[planned.kind](system, planned.pick)
    if verb == "kill":
        return _kill(system, rest, planned.pick)
    return _stop(system, rest, planned.pick)


def _picked(found: Sequence[T], pick: float, what: str) -> T:
    if not found:
        raise UnavailableError(f"there is no {what} now")
    return found[int(pick * len(found))]


# -- processes -------------------------------------------------------------------------------------------------------


def _kill(system: System, role: str, pick: float) -> Injected:
    if role == "up":
        victims = [root for service in system.services if (root := service.root()) is not None]
    else:
        victims = system.processes(role)
    victim = _picked(victims, pick, role)
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.kill()
    return Injected(f"{role} {victim.pid}")


def _stop(system: System, role: str, pick: float) -> Injected:
    victim = _picked(system.processes(role), pick, role)
    return _stopped(f"{role} {victim.pid}", [victim])


def _stopped(hit: str, victims: list[psutil.Process]) -> Injected:
    _signal(victims, signal.SIGSTOP)
    return Injected(hit, partial(_signal, victims, signal.SIGCONT))


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        # psutil checks that the pid still belongs to the same process.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _limit(system: System, pick: float, what: int, wanted: Callable[[psutil.Process], int]) -> Injected:
    victim = _picked(system.processes("receiver"), pick, "receiver")
    try:
        old = resource.prlimit(victim.pid, what)
        resource.prlimit(victim.pid, what, (wanted(victim), old[1]))
    except (psutil.Error, OSError) as error:
        raise UnavailableError(str(error)) from error

    def heal() -> None:
        if victim.is_running():
            with contextlib.suppress(OSError):
                resource.prlimit(victim.pid, what, old)

    return Injected(f"receiver {victim.pid}", heal)


def _descriptors(system: System, pick: float) -> Injected:
    return _limit(system, pick, resource.RLIMIT_NOFILE, lambda process: process.num_fds() + _SPARE_DESCRIPTORS)


def _memory(system: System, pick: float) -> Injected:
    return _limit(system, pick, resource.RLIMIT_AS, lambda process: process.memory_info().vms + _SPARE_BYTES)


# -- Postgres --------------------------------------------------------------------------------------------------------


def _embedded(system: OneHost) -> list[psutil.Process]:
    try:
        number = int((system.postgres_data / "postmaster.pid").read_text().split("\n", 1)[0])
        postmaster = psutil.Process(number)
        # Its command names no directory: it is started in it.
        if Path(f"/proc/{number}/cwd").samefile(system.postgres_data):
            return [postmaster, *postmaster.children(recursive=True)]
    except (OSError, ValueError, psutil.NoSuchProcess):
        pass
    return []


def _kill_postgres(system: System, _pick: float) -> Injected:
    if isinstance(system, TwoHosts):
        system.primary.kill()
        system.primary.start(synchronous=True)
        return Injected("primary")
    assert isinstance(system, OneHost)
    postmaster = _picked(_embedded(system), 0.0, "postmaster")
    with contextlib.suppress(psutil.NoSuchProcess):
        postmaster.kill()
    return Injected(f"postmaster {postmaster.pid}")


def _stop_postgres(system: System, _pick: float) -> Injected:
    family = system.primary.family() if isinstance(system, TwoHosts) else _embedded_of(system)
    _picked(family, 0.0, "postmaster")
    return _stopped(f"{len(family)} processes", family)


def _embedded_of(system: System) -> list[psutil.Process]:
    assert isinstance(system, OneHost)
    return _embedded(system)


def _postgres_away(system: System, pick: float) -> Injected:
    if isinstance(system, TwoHosts):
        server = system.primary
        server.kill()
        return Injected("primary", partial(_start_again, server))
    healed = threading.Event()

    def keep_away() -> None:
        while not healed.wait(_AWAY_POLL):
            with contextlib.suppress(UnavailableError):
                _kill_postgres(system, pick)

    thread = threading.Thread(target=keep_away, daemon=True)
    thread.start()

    def heal() -> None:
        healed.set()
        thread.join()

    return Injected("postmaster, each time it is started", heal)


def _start_again(server: PostgresServer) -> None:
    if not server.is_running():
        server.start(synchronous=True)


def _filled(disk: disks.Disk) -> Callable[[], None]:
    """Fill a disk and keep it full; return what frees it."""
    disk.fill()
    healed = threading.Event()

    def keep_full() -> None:
        while not healed.wait(_AWAY_POLL):
            disk.keep_full()

    thread = threading.Thread(target=keep_full, daemon=True)
    thread.start()

    def free() -> None:
        healed.set()
        thread.join()
        disk.free()

    return free


def _postgres_full(system: System, _pick: float) -> Injected:
    disk = system.database_disk()
    free = _filled(disk)

    def heal() -> None:
        free()
        # A server that runs out of space for its log shuts down; restart it, as a service manager would.
        if isinstance(system, TwoHosts):
            _start_again(system.primary)

    return Injected(disk.backing.name, heal)


def _failover(system: System, _pick: float) -> Injected:
    assert isinstance(system, TwoHosts)
    dead = system.fail_over()
    return Injected(dead.data.parent.name, lambda: dead.follow(system.primary))


def _kill_target(system: System, _pick: float) -> Injected:
    system.target.kill()

    def heal() -> None:
        if not system.target.is_running():
            system.target.start()

    return Injected("the outputs' server", heal)


def _kill_broker(system: System, _pick: float) -> Injected:
    system.broker.kill()
    return Injected("the broker", system.broker.start)


# -- the block store -------------------------------------------------------------------------------------------------


def _store_full(system: System, pick: float) -> Injected:
    disk = _picked(system.stores, pick, "disk")
    return Injected(f"{disk.backing.name}, which the logs share", _filled(disk))


def _point(system: System, pick: float) -> tuple[str, int, Path]:
    """Choose a host and a root of its block store."""
    places = [
        (host, number, point) for host, points in system.store_points().items() for number, point in enumerate(points)
    ]
    return _picked(places, pick, "mount")


def _store_read_only(system: System, pick: float) -> Injected:
    host, number, point = _point(system, pick)
    disks.make_read_only(point, system.stores[number], "data")

    def heal() -> None:
        disks.unmount(point)
        system.stores[number].mount(point, "data")

    return Injected(f"{host}: {point.name}", heal)


def _store_unmounted(system: System, pick: float) -> Injected:
    host, number, point = _point(system, pick)
    disks.unmount(point)

    def heal() -> None:
        # Data written below the mount point meanwhile is on the wrong disk; mounting again would only hide it.
        left = sorted(point.rglob("*"))
        if left:
            system.wrong_disk.append(f"{len(left)} files and folders below {point.name}, as {left[-1].name}")
            aside = system.root / f"wrong-disk-{len(system.wrong_disk)}"
            aside.mkdir()
            for entry in list(point.iterdir()):
                entry.rename(aside / entry.name)
        system.stores[number].mount(point, "data")

    return Injected(f"{host}: {point.name}", heal)


def _store_slow(system: System, pick: float) -> Injected:
    assert system.shim is not None
    milliseconds = _picked(_SYNC_MILLISECONDS, pick, "delay")
    system.shim.slow_syncs(milliseconds)
    return Injected(f"syncs by {milliseconds} ms", partial(system.shim.slow_syncs, 0))


def _damage(system: System, how: str, pick: float) -> Injected:
    # Only one replica is ever damaged: no store can restore data that both have lost.
    root = next(iter(system.store_points().values()))[0]
    now = time.time()
    files = [
        path
        for path in root.glob("receiver-*/*")
        if path.is_file() and now - path.stat().st_mtime < _RECENT_SECONDS and path.stat().st_size > 0
    ]
    victim = _picked(sorted(files), pick, "segment that was written of late")
    size = victim.stat().st_size
    chance = random.Random(pick)
    try:
        if how == "delete":
            victim.unlink()
        elif how == "cut":
            os.truncate(victim, int(size * chance.uniform(0.3, 0.9)))
        else:
            with victim.open("r+b", buffering=0) as file:
                # In the newer half of the file, because that has not been read yet.
                for _ in range(_FLIPS):
                    at = int(size * chance.uniform(0.5, 1.0))
                    file.seek(at)
                    byte = file.read(1)
                    if byte:
                        file.seek(at)
                        file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))
    except OSError as error:
        raise UnavailableError(str(error)) from error
    return Injected(f"{how} {victim.relative_to(root)} of replica 1")


_RECENT_SECONDS = 60.0
_FLIPS = 5


# -- network and clocks ----------------------------------------------------------------------------------------------


def _network(system: System, what: str, pick: float) -> Injected:
    link, _, trouble = what.partition("-")
    names = [name for name in system.proxies if name == link or name.startswith(f"{link}-")]
    name = _picked(sorted(names), pick, "link")
    proxy = system.proxies[name]
    if trouble == "reset":
        proxy.reset()
        return Injected(name)
    proxy.set(Mode(trouble), delay_seconds=_picked(_DELAYS, pick, "delay"))
    return Injected(name, partial(proxy.set, Mode.PASS))


def _clock_hosts(system: System, pick: float) -> Injected:
    assert system.shim is not None
    seconds = _picked(_STEPS, pick, "step")
    system.shim.step_clock(seconds)
    return Injected(f"hosts by {seconds:+} s", partial(system.shim.step_clock, 0))


def _clock_postgres(system: System, pick: float) -> Injected:
    assert isinstance(system, TwoHosts)
    assert system.postgres_shim is not None
    seconds = _picked(_POSTGRES_STEPS, pick, "step")
    system.postgres_shim.step_clock(seconds)
    return Injected(f"Postgres by {seconds:+} s", partial(system.postgres_shim.step_clock, 0))


_NAMED: dict[str, Callable[[System, float], Injected]] = {
    "kill-postgres": _kill_postgres,
    "stop-postgres": _stop_postgres,
    "postgres-away": _postgres_away,
    "postgres-full": _postgres_full,
    "postgres-failover": _failover,
    "kill-target": _kill_target,
    "kill-broker": _kill_broker,
    "store-full": _store_full,
    "store-read-only": _store_read_only,
    "store-unmounted": _store_unmounted,
    "store-slow": _store_slow,
    "clock-hosts": _clock_hosts,
    "clock-postgres": _clock_postgres,
    "descriptors": _descriptors,
    "memory": _memory,
}
