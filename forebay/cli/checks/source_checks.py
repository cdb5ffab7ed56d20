"""Check, without changing anything, whether a stream's source could be received from here.

It connects to brokers and senders and hangs up, and binds listeners' addresses for a moment without listening. It never
reads a record, and never logs in.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic

from forebay.cli.checks.extras import is_installed
from forebay.cli.checks.findings import Finding, Health
from forebay.cli.checks.own_ports import Holder, holder_of
from receiver_runtime.record_formats.registries.registry_check import check_registry
from receiver_runtime.sources.fields.schema_registry import Registry
from receiver_runtime.sources.fields.secret import Secret, SecretError
from receiver_runtime.sources.fields.tcp import Tls, parse_listen
from receiver_runtime.sources.fields.verification import Verification
from receiver_runtime.sources.plugins import registered
from receiver_runtime.sources.records.ddl import type_name
from receiver_runtime.sources.records.registry import RecordsError, parse_records
from receiver_runtime.sources.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from orchestration.declarations.pipeline import Stream
    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.source import Source

T = TypeVar("T")

#: The fields that say where a source listens.
LISTENING = ("listen", "bind", "endpoints", "transports")
_CONNECT_SECONDS = 3.0
# The kind of source whose topics name the subjects of a registry.
_KAFKA = "kafka"
_PATTERN = re.compile(r"[*?\[]")
# Addresses that stand for every one of a host; "::" takes connections of IPv4 too.
_ALL_HOSTS = frozenset({"*", "::"})
_ALL_IPV4 = "0.0.0.0"  # noqa: S104  compared, never bound
_TCP_ENDPOINT = re.compile(r"tcp://(\[[^\]]+\]|[^:/;]+):(\d+)")


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Name an address that a source uses. `datagrams`: by UDP."""

    host: str
    port: int
    datagrams: bool = False

    def overlaps(self, other: SourcePlace) -> bool:
        """Return whether two listeners can't have both. Port 0 is any free one."""
        if self.port != other.port or not self.port or self.datagrams != other.datagrams:
            return False
        hosts = {self.host, other.host}
        return len(hosts) == 1 or bool(hosts & _ALL_HOSTS) or (_ALL_IPV4 in hosts and not any(map(_is_ipv6, hosts)))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{' (UDP)' if self.datagrams else ''}"


def check_declaration(stream: Stream) -> Iterator[Finding]:
    """Check what needs no network: the extra is installed, and a receiver class of yours can be loaded."""
    name, source = f"stream {stream.name}", stream.source
    if source.needs_extra is not None and not is_installed(source.needs_extra):
        found = f"{source.kind} needs the extra {source.needs_extra}, which is not installed in this environment"
        yield Finding(name, Health.WARNING, found, f"Where its agent runs: pip install 'forebay[{source.needs_extra}]'")
    for group, names in source.plugins.items():
        for missing in set(names) - set(registered(group)):
            found = f"{missing!r} is registered under {group} by no package in this environment"
            yield Finding(name, Health.FAILED, found, f"Use some of {', '.join(registered(group))}, or install it.")
    if not source.columns:
        try:
            receiver = source.load_fitting()
        except SourceError as error:
            yield Finding(name, Health.FAILED, str(error), "Correct the class, or install its package.")
        else:
            if stream.records is not None and not getattr(receiver, "record_column", ""):
                found = f"records=: {source.address} names no column to parse"
                yield Finding(name, Health.FAILED, found, "Set its record_column, or leave out records=.")
    if stream.records is not None:
        yield check_records(name, stream.records.model_dump(mode="json"))


def check_records(name: str, declaration: Mapping[str, Any]) -> Finding:
    """Check that this environment can parse the records of a typed stream, given as they are stored."""
    try:
        records = parse_records(declaration)
        records.load_reader()(records)
    except (RecordsError, ImportError, ValueError) as error:
        return Finding(name, Health.FAILED, f"its records can't be parsed here: {error}", "Correct it, or install it.")
    columns = [
        f"{column} {type_name(kind)}{' NOT NULL' if column in records.required else ''}"
        for column, kind in records.columns
    ]
    return Finding(name, Health.OK, f"{records.kind} records: {', '.join(columns) or 'columns of their schemas'}")


def check_registries(
    name: str, source: Source | None, records: Records, columns: Iterable[tuple[str, str]]
) -> Iterator[Finding]:
    """Check the schema registries of a typed stream, as a receiver on this host would find them.

    columns: those that the stream has. source: None if it is of no kind that is installed here.
    """
    types = {column.lower(): kind for column, kind in columns}
    for part in records.parts:
        registry = getattr(part, "registry", None)
        if not isinstance(registry, Registry):
            continue
        is_key = part is not records
        unset = sorted({str(error) for error in map(_missing, _parts_of(registry, Secret)) if error is not None})
        if unset:
            # Only the agent's environment counts, which may be another one.
            found = f"the schema registry {registry.url} was not asked: {'; '.join(unset)}"
            yield Finding(name, Health.WARNING, found, "Set it where the receiver's agent runs.")
            continue
        # By the strategy that serializers have by default.
        subjects = [f"{topic}-{'key' if is_key else 'value'}" for topic in getattr(source, "topics", ())]
        if source is None or source.kind != _KAFKA:
            subjects = []
        for one in check_registry(part, registry, subjects, types, is_key=is_key):
            health = Health.FAILED if one.is_broken else Health.WARNING if one.fix else Health.OK
            yield Finding(name, health, one.found, one.fix)


def _missing(secret: Secret) -> SecretError | None:
    try:
        secret.resolve()
    except SecretError as error:
        return error
    return None


def check_listening(
    stream: Stream, *, ours: Callable[[], Collection[int]], is_here: bool, unseen: Health = Health.WARNING
) -> Iterator[Finding]:
    """Check whether this host has the addresses free at which a stream listens, or a receiver of ours holds them.

    ours: returns the pids of this installation's receivers. is_here: receivers are to run on this host. unseen: the
    health of an address whose holder this account can't see.
    """
    for place in listens_at(stream.source):
        yield _can_listen(f"stream {stream.name}", place, ours, is_here=is_here, unseen=unseen)


def check_source(stream: Stream) -> Iterator[Finding]:
    """Check other programs' addresses, paths and secrets as a receiver on this host would find them."""
    name, source = f"stream {stream.name}", stream.source
    yield from check_means(stream)
    answering = [(place, _refusal(place)) for place in _connects_to(source)]
    yield from _reached(name, source, answering)
    path = getattr(source, "path", None)
    if isinstance(path, str):
        yield _readable(name, path, is_pattern=source.path_is_pattern)
    if not listens_at(source) and not answering and path is None:
        yield Finding(name, Health.OK, f"{source.kind} {source.address}: its receiver knows where it reads; not tried")


def check_means(stream: Stream) -> Iterator[Finding]:
    """Check what a receiver reads on its host before it receives: secrets, and files of TLS. Nothing is connected."""
    name, source = f"stream {stream.name}", stream.source
    yield from _secrets(name, source)
    for tls in _parts_of(source, Tls):
        for field in ("ca_file", "certificate_file", "key_file"):
            path = getattr(tls, field)
            if path is not None and (why := _unreadable_file(path)):
                found = f"tls: {field} {path} {why}"
                yield Finding(name, Health.WARNING, found, "Put it where the receiver's agent runs, readable for it.")


def _unreadable_file(path: str) -> str:
    """Return why a file can't be read, or an empty text."""
    try:
        with Path(path).open("rb") as file:
            return "" if file.read(1) else "is empty"
    except OSError as error:
        return f"can't be read: {error.strerror or error}"


def _reached(name: str, source: Source, answering: list[tuple[SourcePlace, str]]) -> Iterator[Finding]:
    for place, why in answering:
        if not why:
            yield Finding(name, Health.OK, f"{place} answers")
        else:
            others = source.any_server_suffices and any(not why for _, why in answering)
            health = Health.WARNING if others else Health.FAILED
            way_out = "Start it, correct the address, or open the network between: receivers try again until then."
            yield Finding(name, health, f"{place} does not answer: {why}", way_out)


def _secrets(name: str, source: Source) -> Iterator[Finding]:
    checks: list[Callable[[], object]] = [secret.resolve for secret in _parts_of(source, Secret)]
    verify = getattr(source, "verify", None)
    if isinstance(verify, Verification):
        # Whether they are written as their sender writes them, too.
        checks.append(verify.check_secrets)
    said = set()
    for check in checks:
        try:
            check()
        except SecretError as error:
            said.add(str(error))
    for why in sorted(said):
        # Only the agent's environment counts, which may be another one.
        yield Finding(name, Health.WARNING, why, "Set it where the receiver's agent runs.")


def _parts_of(value: Any, kind: type[T]) -> Iterator[T]:  # noqa: ANN401  any field
    """Yield what a declaration holds of this kind, however deep."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, pydantic.BaseModel):
        for field in type(value).model_fields:
            yield from _parts_of(getattr(value, field), kind)
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _parts_of(one, kind)


def listens_at(source: Source) -> list[SourcePlace]:
    """Return the addresses at which a source listens, as far as it says them in the usual fields."""
    if getattr(source, "bind", False):
        return _endpoints(source)
    listen = getattr(source, "listen", None)
    if not isinstance(listen, str):
        # None, or what a kind of another package has, as several addresses in a list.
        return []
    transports = getattr(source, "transports", ("tcp",))
    return [
        SourcePlace(*parse_listen(address), datagrams=transport == "udp")
        for address in (listen, *source.further_addresses)
        for transport in transports
    ]


def _is_ipv6(host: str) -> bool:
    return ":" in host


def _connects_to(source: Source) -> list[SourcePlace]:
    if getattr(source, "endpoints", None) and not getattr(source, "bind", False):
        return _endpoints(source)
    servers = getattr(source, "bootstrap_servers", None) or getattr(source, "servers", None)
    if servers is not None:
        found = (server.strip().rpartition(":") for server in servers.split(","))
        return [SourcePlace(host.strip("[]"), int(port)) for host, _, port in found if port.isdecimal()]
    host, port = getattr(source, "host", None), getattr(source, "broker_port", None) or getattr(source, "port", None)
    return [] if host is None or port is None else [SourcePlace(host, port)]


def _endpoints(source: Source) -> list[SourcePlace]:
    found = map(_TCP_ENDPOINT.fullmatch, getattr(source, "endpoints", ()))
    return [SourcePlace(tcp[1].strip("[]"), int(tcp[2])) for tcp in found if tcp is not None]


def _can_listen(
    name: str, place: SourcePlace, ours: Callable[[], Collection[int]], *, is_here: bool, unseen: Health
) -> Finding:
    bad = Health.FAILED if is_here else Health.WARNING
    flags = socket.AI_PASSIVE if is_here else socket.AI_PASSIVE | socket.AI_NUMERICHOST
    host = _ALL_IPV4 if place.host == "*" else place.host
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, place.port, type=socket.SOCK_DGRAM if place.datagrams else socket.SOCK_STREAM, flags=flags
        )[0]
        with socket.socket(family, kind) as probe:
            if not place.datagrams:
                # As the receiver does it: a connection of an earlier process that still closes is no obstacle.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if not is_here and error.errno != errno.EADDRINUSE:
            return Finding(name, Health.OK, f"{place}: not looked up, and no port of this host that is in use")
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(str(address[0]), place.port, datagrams=place.datagrams, ours=ours)
            if holder is Holder.OURS:
                return Finding(name, Health.OK, f"{place} is in use by a receiver of ours")
            if holder is Holder.UNKNOWN:
                way_out = "All is well if it is a receiver of ours; else stop it, or declare another port."
                found = f"{place} is in use, and this account can't see by which process"
                return Finding(name, unseen, found, way_out)
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            way_out = "If it is the address of the host where the receiver runs, all is well: check it there."
            return Finding(name, Health.WARNING, f"{place} is no address of this host: {error.strerror}", way_out)
        way_out = {
            errno.EADDRINUSE: "Stop what listens there (`ss -ltnup` names it), or declare another port.",
            errno.EACCES: "Take a port from 1024 on, or give the agent the right to bind this one.",
        }.get(error.errno or 0, "Correct the address.")
        return Finding(name, bad, f"can't listen at {place}: {error.strerror}", way_out)
    return Finding(name, Health.OK, f"can listen at {place}")


def _refusal(place: SourcePlace) -> str:
    """Return why no connection comes about, or an empty text."""
    try:
        socket.create_connection((place.host, place.port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _readable(name: str, path: str, *, is_pattern: bool) -> Finding:
    if "://" in path:
        return Finding(name, Health.OK, f"{path} is in an object store: not tried")
    pattern = _PATTERN.search(path) if is_pattern else None
    # Of a pattern, the folder above its first part that is one.
    fixed = Path(path) if pattern is None else Path(f"{path[: pattern.start()]}*").parent
    if not fixed.exists():
        way_out = "Create it, or correct the path: the receiver reads it as soon as it is there."
        return Finding(name, Health.WARNING, f"{fixed} does not exist on this host", way_out)
    if not os.access(fixed, os.R_OK | (os.X_OK if fixed.is_dir() else 0)):
        return Finding(name, Health.FAILED, f"{fixed} can't be read by this user", "Let the agent's account read it.")
    if is_pattern and pattern is None and fixed.is_dir():
        way_out = f"Write its files, as '{fixed}/*.log*': it is a pattern of files."
        return Finding(name, Health.FAILED, f"{fixed} is a directory, which has no lines", way_out)
    return Finding(name, Health.OK, f"{fixed} can be read")
