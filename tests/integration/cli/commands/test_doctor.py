"""Test `forebay doctor` on a machine that lacks one thing after another: each is found with a way out."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
import typer
from typer.testing import CliRunner

from forebay import shadowing
from forebay.cli.checks import machine_checks
from forebay.cli.checks.findings import Health
from forebay.cli.commands import doctor as doctor_module
from forebay.cli.commands.doctor import doctor, examine
from forebay.cli.services.supervisor import Supervisor
from forebay.testing.postgres import PostgresProcess
from orchestration.declarations.settings import Settings
from receiver_runtime.sources.records.json_records import Json
from tests.support.driver_log.declared_records import declare_records
from tests.support.driver_log.log import NOON, make_log
from tests.support.machine.held_ports import held_port
from tests.support.receivers.block_keys import key_id, new_key
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.commit_settings import commit_settings
from tracker_store.connection.engine import connect, create_engine
from tracker_store.install import migrate
from tracker_store.schema.declarations import RECORDS_FIELD
from tracker_store.server.data_directory import EmbeddedPostgresError
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from forebay.cli.checks.findings import Finding
    from forebay.testing.postgres import TestServer


@pytest.fixture(autouse=True)
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up a machine with nothing but a home."""
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOREBAY_HOME", str(home / "state"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def _finding(check: str) -> Finding:
    return next(finding for finding in examine() if finding.check == check)


def _findings(check: str) -> list[Finding]:
    return [finding for finding in examine() if finding.check == check]


def _run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_a_fresh_machine_is_healthy_and_nothing_is_created(home: Path) -> None:
    answer = _run()
    assert answer.exit_code == 0, answer.output
    assert "embedded postgres (PostgreSQL) 18" in answer.output
    assert list(home.iterdir()) == []


def test_json_is_one_object(home: Path) -> None:
    answer = _run("--json")
    told = json.loads(answer.stdout)
    assert told["ok"] is True
    assert {finding["check"] for finding in told["findings"]} >= {
        "package names",
        "java",
        "postgres",
        "block store",
        "home",
        "ports",
    }


def test_a_failure_has_a_way_out_and_exit_code_1(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file in the place of a folder stops even root.
    (home / "file").write_text("")
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("orchestration.spark.session.java.importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(
        shadowing, "find_shadows", lambda: [shadowing.Shadow("orchestration", home / "site" / "orchestration", home)]
    )
    monkeypatch.setattr(doctor_module, "_LEAST_FREE_BYTES", 1 << 62)
    answer = _run("--json")
    assert answer.exit_code == 1
    failed = [finding for finding in json.loads(answer.stdout)["findings"] if finding["health"] == "failed"]
    assert [finding["check"] for finding in failed] == ["package names", "java", "postgres", "block store"]
    assert all(finding["way_out"] for finding in failed)


def test_an_unusable_java_home_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = [finding for finding in examine() if finding.check == "java"]
    assert [finding.health for finding in found] == [Health.OK, Health.WARNING]


def test_an_external_server_is_examined(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    assert "is Postgres 18" in _finding("postgres").found
    assert _finding("driver log").health is Health.OK
    assert "***" in _finding("postgres").found, "the password is not shown"


def test_a_database_without_a_driver_log_is_reported(
    postgres_server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server.database(migrated=False) as url:
        monkeypatch.setenv("FOREBAY_DATABASE_URL", url)
        assert _finding("driver log").health is Health.WARNING


def test_a_driver_log_of_an_older_release_is_reported(
    database_url: str, monkeypatch: pytest.MonkeyPatch, version_after: str
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    finding = _finding("driver log")
    assert finding.health is Health.WARNING
    assert re.fullmatch(rf"at revision \d+, this code expects {version_after}", finding.found)
    assert finding.way_out == "`forebay up` migrates it, and so does `forebay db upgrade`."


def test_a_driver_log_of_a_newer_release_is_reported(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    engine = create_engine(database_url, application_name="tests")
    with connect(engine) as connection:
        connection.exec_driver_sql("UPDATE forebay.alembic_version SET version_num = '9999'")
    engine.dispose()
    finding = _finding("driver log")
    assert finding.health is Health.WARNING
    assert finding.found == f"at revision 9999, this code expects {migrate.newest_revision()}"
    assert finding.way_out == "Install the newer Forebay here."


def test_a_server_that_is_too_old_is_refused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setattr(doctor_module, "OLDEST_POSTGRES", 99)
    assert "99 or newer" in _finding("postgres").way_out


@pytest.mark.parametrize("url", ["mysql://x/y", "not a url"])
def test_an_invalid_url_is_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", url)
    assert _finding("postgres").health is Health.FAILED
    assert "FOREBAY_DATABASE_URL" in _finding("postgres").way_out


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pl4nted@127.0.0.1:1/none",
        "postgresql://me@127.0.0.1:1/none?password=pl4nted&connect_timeout=1",
        "postgresql://me:pl4nted/x7k9q@127.0.0.1:1/none",
        "postgresql://me:pl4nted:pl4nted@127.0.0.1:pl4nted/none",
    ],
)
def test_no_secret_of_an_address_is_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", url)
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", "s3://AKIAPL:pl4nted/x7k9q@bucket/a")
    shown = json.dumps([asdict(finding) for finding in examine()])
    assert "FOREBAY_BLOCK_STORE" in shown, "a slash in a key is refused"
    twice = "s3://AKIAPL:pl4nted%2Fx7k9q@bucket/a"
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", f"{twice},{twice}")
    shown += json.dumps([asdict(finding) for finding in examine()]) + repr(Settings())
    assert "s3://***@bucket/a" in shown
    assert not [secret for secret in ("pl4nted", "x7k9q", "AKIAPL") if secret in shown]


def test_the_running_embedded_server_is_examined(home: Path) -> None:
    with PostgresProcess(EmbeddedPostgres(home / "state" / "postgres")) as process:
        process.server.ensure_database()
        migrate.upgrade(process.server.url())
        process.server.ensure_services_login()
        found = [finding for finding in examine() if finding.check in {"postgres", "commits", "driver log"}]
    assert [finding.health for finding in found] == [Health.OK] * 4
    assert "fsync on, full_page_writes on, synchronous_commit on in Forebay's sessions" in found[2].found
    assert "synchronous_standby_names" in found[2].way_out
    assert "running as process" in found[0].found
    assert str(process.server.data_directory) in found[0].found
    if os.geteuid() == 0:
        assert f"belongs to {process.server.data_directory.owner()}" in found[0].found


def test_a_server_whose_commits_a_crash_may_lose_is_reported(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' own server is one: it runs without fsync."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    assert _finding("commits").health is Health.FAILED
    assert "fsync off" in _finding("commits").found
    assert "set fsync = on" in _finding("commits").way_out
    url = sa.make_url(database_url)
    with connect(create_engine(database_url, application_name="tests", pool_size=1)) as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{url.database}" SET synchronous_commit = off')
        assert commit_settings(connection).fsync == "off"
    assert "and off in others" in _finding("commits").found


@pytest.mark.parametrize("mode", [0o755, 0o710])
def test_a_home_that_others_may_enter_is_reported(home: Path, mode: int) -> None:
    state = home / "state"
    state.mkdir()
    state.chmod(mode)
    assert _finding("home").health is Health.WARNING
    assert f"{mode:04o}" in _finding("home").found
    state.chmod(0o700)
    assert _finding("home").health is Health.OK


@pytest.mark.parametrize(("removed", "way_out"), [(False, "start it"), (True, "declare it again")])
def test_segments_that_no_process_will_salvage_are_reported(
    postgres_server: TestServer, monkeypatch: pytest.MonkeyPatch, *, removed: bool, way_out: str
) -> None:
    with postgres_server.database() as url:
        monkeypatch.setenv("FOREBAY_DATABASE_URL", url)
        engine = create_engine(url, application_name="tests", pool_size=1)
        with connect(engine) as connection:
            log = make_log(connection, stream="orders")
            log.add_at(log.receiver_ids[0], NOON)
            if removed:
                connection.exec_driver_sql("UPDATE forebay.receivers SET removed_at = clock_timestamp()")
            connection.exec_driver_sql("UPDATE forebay.receivers SET state = 'ACTIVE'")
            assert [finding for finding in examine() if finding.check == "segments"] == []
            connection.exec_driver_sql("UPDATE forebay.receivers SET state = 'INACTIVE'")
        engine.dispose()
        found = _finding("segments")
    assert found.health is Health.WARNING
    assert "1 segments of receiver 1 of stream 'orders' were never sealed" in found.found
    assert way_out in found.way_out


def test_a_missing_embedded_server_for_this_machine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_self: EmbeddedPostgres) -> Path:
        raise EmbeddedPostgresError

    monkeypatch.setattr(EmbeddedPostgres, "binaries", property(missing))
    assert _finding("postgres").health is Health.FAILED


def test_a_block_store_that_cant_be_synced_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    assert "Input/output error" in _finding("block store").found


def test_a_block_store_that_gives_back_other_bytes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _: b"\0" * 7)
    found = _finding("block store")
    assert (found.health, "not what is read" in found.found) == (Health.FAILED, True)


def test_a_clock_that_is_not_the_databases_is_reported(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    assert _finding("clock").health is Health.OK
    for seconds, said in ((90, "90.0 s ahead of"), (-90, "90.0 s behind")):
        moved = timedelta(seconds=seconds)
        monkeypatch.setattr(machine_checks, "now", lambda moved=moved: datetime.now(UTC) + moved)
        found = _finding("clock")
        # A busy machine may take a while between the two looks.
        assert found.health is Health.WARNING
        assert said.split(" s ")[1] in found.found
        assert "time server" in found.way_out


def test_a_kind_of_records_that_this_environment_lacks_is_named(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Json("item STRING NOT NULL").model_dump(mode="json")
    declaration = {"source": {"kind": "http", RECORDS_FIELD: records}}
    engine = create_engine(database_url, application_name="tests", pool_size=1)
    with connect(engine) as connection:
        apply_stream(connection, name="orders", declaration=declaration, receivers=1)
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    found = _finding("stream orders")
    assert (found.health, found.found) == (Health.OK, "json records: item STRING NOT NULL")
    with connect(engine) as connection:
        declare_records(connection, Json("item STRING").model_copy(update={"kind": "odd"}))
    engine.dispose()
    found = _finding("stream orders")
    assert (found.health, "'odd' is no kind of records" in found.found) == (Health.FAILED, True)


def test_an_extra_that_a_declared_stream_needs_is_named(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    engine = create_engine(database_url, application_name="tests", pool_size=1)
    with connect(engine) as connection:
        apply_stream(connection, name="orders", declaration={"source": {"kind": "kafka"}}, receivers=1)
    engine.dispose()
    assert "kafka" in _finding("extras").found
    monkeypatch.setattr(machine_checks, "is_installed", lambda extra: extra != "kafka")
    found = _finding("extras")
    assert (found.health, found.way_out) == (
        Health.WARNING,
        "If this host shall receive it: pip install 'forebay[kafka]'",
    )
    assert "orders can't be received here" in found.found


def test_an_object_store_is_written_read_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    held = MemoryObjects()
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", "s3://bucket/blocks")
    monkeypatch.setattr("receiver_runtime.block_store.stores.objects.open_objects", lambda _: held)
    found = _finding("block store")
    assert (found.health, found.found) == (Health.OK, "s3://bucket/blocks: writes, reads and deletes"), found
    assert held.objects == {}
    monkeypatch.setattr(held, "get", lambda *_: b"\0" * 200)
    found = _finding("block store")
    assert (found.health, "rights to list, read, write and delete" in found.way_out) == (Health.FAILED, True)
    assert held.objects == {}


def test_a_nearly_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_LITTLE_FREE_BYTES", 1 << 62)
    assert _finding("block store").health is Health.WARNING


def test_a_running_supervisor_is_named(home: Path) -> None:
    with Supervisor(home / "state"):
        assert f"as process {os.getpid()}" in _finding("home").found
    assert "process" not in _finding("home").found


def test_a_port_in_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(machine_checks, "UI_PORT", other.getsockname()[1])
        assert _finding("ports").health is Health.WARNING


def test_the_ports_that_are_configured_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_port() as port:
        monkeypatch.setenv("FOREBAY_UI_PORT", str(port))
        monkeypatch.setenv("FOREBAY_TRACKER_HTTP", f"127.0.0.1:{port}")
        with socket.create_server(("127.0.0.1", port)):
            ui, tracker = _findings("ports")
        assert (ui.health, tracker.health) == (Health.FAILED, Health.WARNING)
        assert f"port {port} (FOREBAY_UI_PORT)" in ui.found
        assert f"can't listen on 127.0.0.1:{port}" in tracker.found
        assert {finding.health for finding in _findings("ports")} == {Health.OK}
    monkeypatch.setenv("FOREBAY_UI_PORT", "0")
    monkeypatch.setenv("FOREBAY_TRACKER_HTTP", "off")
    assert [finding.found for finding in _findings("ports")] == ["Dagster's UI takes any free port (FOREBAY_UI_PORT)"]


def test_where_forebay_up_runs_its_own_port_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as webserver:
        webserver.bind(("127.0.0.1", 0))
        webserver.listen()
        port = webserver.getsockname()[1]
        monkeypatch.setenv("FOREBAY_UI_PORT", str(port))
        # The tracker's own default is one fixed port, where another test's system may listen.
        monkeypatch.setenv("FOREBAY_TRACKER_HTTP", "127.0.0.1:0")
        (home / "state" / "dagster").mkdir(parents=True)
        (home / "state" / "dagster" / "url").write_text(f"http://127.0.0.1:{port}")
        with Supervisor(home / "state"):
            found = _findings("ports")
    assert [finding.health for finding in found] == [Health.OK, Health.OK]
    assert f"http://127.0.0.1:{port}" in found[0].found


def test_an_invalid_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HEARTBEAT_LIMIT_SECONDS", "soon")
    assert "FOREBAY_HEARTBEAT_LIMIT_SECONDS" in _finding("settings").found


def test_a_check_that_raises_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_folder: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor_module, "write_and_sync", broken)
    assert "ZeroDivisionError" in _finding("block store").found
    assert _finding("ports").check == "ports"


def test_block_keys_are_shown_by_reference_and_id_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _finding("block keys").found == "blocks are stored without encryption"
    key = new_key()
    monkeypatch.setenv("BLOCKS", key)
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", "env:BLOCKS")
    monkeypatch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", f"file:{home}/before")
    found = [finding for finding in examine() if finding.check == "block keys"]
    assert [finding.health for finding in found] == [Health.OK, Health.FAILED]
    assert found[0].found == f"FOREBAY_BLOCK_KEY: env:BLOCKS is key {key_id('env:BLOCKS')}, which encrypts blocks"
    assert found[1].found.startswith("FOREBAY_BLOCK_KEYS_FOR_READING: No such file")
    assert found[1].found.endswith(f"file:{home}/before")
    assert key not in _run("--json").output
    # A key that was given itself is not repeated.
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", key)
    answer = _run("--json")
    assert answer.exit_code == 1
    assert "a secret is given by reference" in answer.output
    assert key not in answer.output


def test_the_sources_of_a_project_are_looked_at(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(doctor_module._sources(Settings())) == []
    module = tmp_path / "my_pipeline.py"
    monkeypatch.setenv("FOREBAY_MODULE", str(module))
    monkeypatch.delenv("A_HOOK", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        module.write_text(
            "from forebay import ConsoleSink, EnvVar, Pipeline, Stream\n"
            "from forebay.sources import Http\n"
            "from forebay.web_hooks import GitHub\n"
            f"hooks = Stream('hooks', Http(listen='127.0.0.1:{port}', verify=GitHub(EnvVar('A_HOOK'))))\n"
            "plain = Stream('plain', Http(listen='127.0.0.1:0'))\n"
            "pipeline = Pipeline('p', interval='10s')\n"
            "@pipeline.output(inputs=[hooks, plain], sink=ConsoleSink())\n"
            "def shown(hooks, plain):\n    return hooks\n",
            encoding="utf-8",
        )
        answer = _run("--json")
        found = [one for one in json.loads(answer.stdout)["findings"] if one["check"].startswith("stream ")]
        said = [(one["check"], one["health"], one["found"]) for one in found]
        in_use = f"can't listen at 127.0.0.1:{port}: Address already in use"
        assert ("stream hooks", "failed", in_use) in said
        assert any(one[1] == "warning" and "A_HOOK is not set" in one[2] for one in said)
        assert {one[1] for one in said if one[0] == "stream plain"} == {"ok"}
        assert answer.exit_code == 1
    monkeypatch.setenv("A_HOOK", "a-secret")
    assert {one.health for one in doctor_module._sources(Settings())} == {Health.OK}
    (tmp_path / "no_pipeline.py").write_text("x = 1", encoding="utf-8")
    monkeypatch.setenv("FOREBAY_MODULE", str(tmp_path / "no_pipeline.py"))
    [finding] = doctor_module._sources(Settings())
    assert (finding.health, "declares no Pipeline" in finding.found) == (Health.FAILED, True)
