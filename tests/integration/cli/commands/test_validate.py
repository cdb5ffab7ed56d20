"""Test `forebay validate`: declarations alone, and sources, sinks and what is applied, without any change."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from forebay import DeltaSink
from forebay.cli.checks import plan_checks
from forebay.cli.checks.source_checks import check_listening
from forebay.cli.commands import validate
from forebay.cli.main import app
from forebay.cli.services.supervisor_lock import take_lock
from orchestration.declarations.apply import apply
from orchestration.declarations.asked_targets import NO_STOP, ORDER
from orchestration.declarations.modules import load_pipelines
from orchestration.spark.session.java import JavaNotFoundError
from tests.integration.orchestration.target_database import Target
from tracker_store.blocks.stream_schemas import register_schema
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    from forebay.testing.postgres import TestServer

HEAD = """
from forebay import EnvVar, ParquetSink, Pipeline, PostgresSink, Stream
from forebay.sources import Datagrams, FileLines, FollowedFiles, Http, Kafka, SocketText, Syslog

def counted(pipeline, stream, sink, name):
    @pipeline.output(inputs=[stream], sink=sink, name=name)
    def output(frame):
        return frame
    return output
"""


@pytest.fixture(autouse=True)
def _environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOREBAY_HOME", str(home / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(home)


@pytest.fixture
def module(home: Path) -> Callable[[str], str]:
    """Write a module of pipelines; return its path. Each test has one of another name."""
    made: list[str] = []

    def write(text: str) -> str:
        name = f"validated_{home.name.replace('-', '_')}_{len(made)}"
        made.append(name)
        path = home / f"{name}.py"
        path.write_text(HEAD + textwrap.dedent(text))
        return str(path)

    return write


def forebay(*arguments: str, plans: bool = False) -> Result:
    return CliRunner().invoke(app, ["validate", *arguments, *([] if plans else ["--no-plans"])])


def findings(*arguments: str, well: bool, plans: bool = False) -> list[dict[str, Any]]:
    done = forebay("--json", *arguments, plans=plans)
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"]) == ((0, True) if well else (1, False)), told
    failed = [one for one in told["findings"] if one["health"] == "failed"]
    assert bool(failed) != well
    assert all(one["way_out"] for one in failed)
    found: list[dict[str, Any]] = told["findings"]
    return found


def about(found: list[dict[str, Any]], check: str) -> list[tuple[str, str]]:
    return [(one["health"], one["found"]) for one in found if one["check"] == check]


PARQUET = "ParquetSink('{}/out')"


def one_stream(source: str, home: Path) -> str:
    return f"""
        lines = Stream("lines", {source})
        words = Pipeline("words", interval="10s")
        counted(words, lines, ParquetSink({str(home / "out")!r}), "counts")
    """


def contents(connection: sa.Connection) -> list[tuple[str, int]]:
    """Return how many rows each table of the driver log has."""
    names = connection.execute(
        sa.text("SELECT tablename FROM pg_tables WHERE schemaname = 'forebay' ORDER BY 1")
    ).scalars()
    return [(name, connection.execute(sa.text(f"SELECT count(*) FROM forebay.{name}")).scalar_one()) for name in names]


def test_without_a_driver_log_declarations_and_sinks_are_checked(module: Callable[[str], str], home: Path) -> None:
    path = module(one_stream("SocketText(host='127.0.0.1', port=1)", home))
    for arguments in ((path,), (path, "--offline")):
        [declared, *others] = findings(*arguments, well=True)
        assert declared["found"].endswith("1 pipeline(s), 1 stream(s), 1 output(s)")
        checked = [one["check"] for one in others]
        assert checked == ([] if "--offline" in arguments else ["driver log", "output words/counts"])
    assert "ok" in (shown := forebay(path).stdout)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('no \\x1b[2J')", "RuntimeError: no"),
        ("Stream('lines', SocketText(host='127.0.0.1'))", "a host without its port"),
        ("x = 1", "declares no Pipeline"),
    ],
)
def test_a_module_that_can_not_be_loaded_is_a_finding(text: str, said: str, module: Callable[[str], str]) -> None:
    path = module(text)
    [found] = findings(path, well=False)
    assert said in found["found"]
    assert "\x1b" not in forebay(path).stdout


def test_declarations_that_exclude_each_other_are_found(module: Callable[[str], str], home: Path) -> None:
    path = module(f"""
        one = Stream("lines", SocketText(listen="127.0.0.1:0"))
        other = Stream("lines", SocketText(listen="localhost:0"))
        third = Stream("third", Http(listen="no-host.invalid:7003"))
        fourth = Stream("fourth", Http(listen="no-host.invalid:7003"))
        a, b = Pipeline("a", interval="10s"), Pipeline("b", interval="10s")
        sink = ParquetSink({str(home / "out")!r})
        counted(a, one, sink, "of_one")
        counted(b, other, sink, "of_other")
        counted(b, third, ParquetSink({str(home / "3")!r}), "of_third")
        counted(b, fourth, ParquetSink({str(home / "4")!r}), "of_fourth")
    """)
    found = findings(path, "--offline", well=False)
    assert about(found, "stream third") == [], "another host's name is not looked up"
    assert about(found, "stream lines") == [("failed", "two streams have the name 'lines', and different declarations")]
    [(health, said)] = about(found, "streams")
    shared = "fourth (http), third (http) listen at the same address, no-host.invalid:7003"
    assert (health, shared in said) == ("failed", True)
    [(health, said)] = about(found, "outputs")
    assert (health, str(home / "out") in said) == ("failed", True)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("Http(listen='127.0.0.1:7005')", "OtlpLogs(listen='127.0.0.1:7005')", "127.0.0.1:7005"),
        ("Http(listen='127.0.0.1:7005')", "OtlpLogs(listen='127.0.0.1:7006', grpc='0.0.0.0:7005')", "127.0.0.1:7005"),
        ("Http(listen='127.0.0.1:7005')", "SocketText(listen='[::]:7005')", "127.0.0.1:7005"),
        ("Syslog(listen='127.0.0.1:7005', transports=['udp'])", "Http(listen='127.0.0.1:7005')", ""),
        ("SocketText(listen='0.0.0.0:7005')", "Http(listen='[::1]:7005')", ""),
        ("OtlpTraces(listen='127.0.0.1:7005')", "OtlpLogs(listen='127.0.0.1:7005')", ""),
    ],
)
def test_listeners_of_several_kinds_at_one_port_are_named(
    first: str, second: str, said: str, module: Callable[[str], str], home: Path
) -> None:
    path = module(f"""
        from forebay.sources import OtlpLogs, OtlpTraces, Syslog
        a, b = Stream("a", {first}), Stream("b", {second})
        pipeline = Pipeline("p", interval="10s")
        counted(pipeline, a, ParquetSink({str(home / "a")!r}), "of_a")
        counted(pipeline, b, ParquetSink({str(home / "b")!r}), "of_b")
    """)
    found = about(findings(path, "--offline", well=not said), "streams")
    kinds = [kind for kind in ("(http)", "(otlp_logs)", "(socket_text)") if kind in f"{found}"]
    assert (len(found), len(kinds)) == ((1, 2) if said else (0, 0))
    assert f"listen at the same address, {said}" in f"{found}" or not said


def test_sources_are_tried_from_here(
    module: Callable[[str], str], home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    with socket.create_server(("127.0.0.1", 0)) as answering, socket.create_server(("127.0.0.1", 0)) as taken:
        port, used = answering.getsockname()[1], taken.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as closed:
            free = closed.getsockname()[1]
        (home / "arriving").mkdir()
        path = module(f"""
            servers = "127.0.0.1:{free},127.0.0.1:{port}"
            streams = [
                Stream("answers", SocketText(host="127.0.0.1", port={port})),
                Stream("silent", SocketText(host="127.0.0.1", port={free})),
                Stream("cluster", Kafka(bootstrap_servers=servers, topics=["topic"], group="g")),
                Stream("taken", Http(listen="127.0.0.1:{used}")),
                Stream("free", Syslog(listen="127.0.0.1:{free}")),
                Stream("datagrams", Datagrams(listen="127.0.0.1:{used}")),
                Stream("elsewhere", Http(listen="192.0.2.7:80")),
                Stream("files", FollowedFiles(path={str(home / "arriving" / "*.log")!r})),
                Stream("folder", FollowedFiles(path={str(home / "arriving")!r})),
                Stream("missing", FileLines(path={str(home / "missing")!r})),
            ]
            words = Pipeline("words", interval="10s")
            for stream in streams:
                counted(words, stream, ParquetSink({str(home)!r} + "/" + stream.name), stream.name)
        """)
        found = findings(path, well=False)
        answering.settimeout(10)
        answering.accept()[0].close()

    def told(stream: str) -> list[tuple[str, str]]:
        return [one for one in about(found, f"stream {stream}") if one[1] != "is new, and not applied yet"]

    assert told("answers") == [("ok", f"127.0.0.1:{port} answers")]
    assert told("silent") == [("failed", f"127.0.0.1:{free} does not answer: Connection refused")]
    assert [health for health, said in told("cluster") if str(port) in said] == ["ok"]
    assert [health for health, said in told("cluster") if str(free) in said] == ["warning"]
    assert told("taken") == [("failed", f"can't listen at 127.0.0.1:{used}: Address already in use")]
    assert told("free") == [
        ("ok", f"can listen at 127.0.0.1:{free} (UDP)"),
        ("ok", f"can listen at 127.0.0.1:{free}"),
    ]
    assert told("datagrams") == [("ok", f"can listen at 127.0.0.1:{used} (UDP)")]
    assert [health for health, _ in told("elsewhere")] == ["warning"]
    assert told("files") == [("ok", f"{home / 'arriving'} can be read")]
    assert told("folder") == [("failed", f"{home / 'arriving'} is a directory, which has no lines")]
    assert told("missing") == [("warning", f"{home / 'missing'} does not exist on this host")]


def test_a_port_that_a_process_of_the_driver_log_holds_is_well(
    module: Callable[[str], str], home: Path, database_url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    with socket.create_server(("127.0.0.1", 0)) as taken, connect(engine) as connection:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        # Of `forebay up` and of the driver log are also processes that keep a port which no receiver can take.
        monkeypatch.setattr(validate, "pids_of_home", lambda _: {os.getpid()})
        register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="driver", host="h", pid=os.getpid())
        # A stream that is not applied yet, as another name of one that is: its receiver may be there first.
        path = module(one_stream(f"SocketText(listen='{place}')", home))
        assert about(findings(path, well=False), "stream lines") == [
            ("ok", "is new, and not applied yet"),
            ("failed", f"can't listen at {place}: Address already in use"),
        ]
        apply(connection, load_pipelines(path))
        findings(path, well=False)
        register_process(connection, kind=ProcessKind.RECEIVER, name="receiver-1", host="h", pid=os.getpid())
        assert about(findings(path, well=True), "stream lines") == [("ok", f"{place} is in use by a receiver of ours")]
        renamed = one_stream(f"SocketText(listen='{place}')", home).replace('"lines"', '"rows"')
        found = findings(module(renamed), well=False)
        assert about(found, "stream rows") == [
            ("ok", "is new, and not applied yet"),
            ("ok", f"{place} is in use by a receiver of ours"),
        ]
        assert ("failed", "`forebay apply` asks first, and writes nothing") in about(found, "driver log")
        mistyped = module(renamed.replace('"rows", ', '"rows", renamed_from="lnes", source='))
        [_, (health, hint), *_] = about(findings(mistyped, well=False), "driver log")
        assert health == "warning"
        assert hint.endswith("did you mean lines?")
        findings(module(renamed.replace('"rows", ', '"rows", renamed_from="lines", source=')), well=True)


def test_a_port_is_looked_at_without_a_driver_log_and_those_of_this_home_are_well(
    module: Callable[[str], str], home: Path
) -> None:
    listen = "import socket; held = socket.create_server(('127.0.0.1', 0)); print(held.getsockname()[1], flush=True)"
    command = [sys.executable, "-S", "-c", f"{listen}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        place = f"127.0.0.1:{int(holder.stdout.readline())}"
        path = module(one_stream(f"SocketText(listen='{place}')", home))
        taken = f"can't listen at {place}: Address already in use"
        assert about(findings(path, well=False), "stream lines") == [("failed", taken)]
        # Another host may be the one that receives.
        assert about(findings(path, "--offline", well=True), "stream lines") == [("warning", taken)]
        (home / "state").mkdir()
        with take_lock(home / "state"):
            held = [("ok", f"{place} is in use by a receiver of ours")]
            assert about(findings(path, well=True), "stream lines") == held
            assert about(findings(path, "--offline", well=True), "stream lines") == []
        holder.communicate("", timeout=60)


def test_the_addresses_of_a_packages_kind_may_be_a_list() -> None:
    of_list: Any = SimpleNamespace(name="rows", source=SimpleNamespace(listen=["a:1", "b:1"]))
    assert list(check_listening(of_list, ours=set, is_here=True)) == []


def test_sinks_are_asked_for_rights_and_nothing_is_written(
    module: Callable[[str], str],
    home: Path,
    engine: sa.Engine,
    database_url: str,
    postgres_server: TestServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    (home / "file").write_text("")
    with postgres_server.database(migrated=False) as target, connect(engine) as connection:
        monkeypatch.setenv("TARGET", target)
        monkeypatch.setenv("NOBODY", "postgresql://me:pl4nted@127.0.0.1:1/none")
        monkeypatch.delenv("UNSET", raising=False)
        path = module(f"""
            lines = Stream("lines", SocketText(listen="127.0.0.1:0"))
            words = Pipeline("words", interval="10s")
            sinks = {{
                "made": ParquetSink({str(home / "out" / "deep")!r}),
                "file": ParquetSink({str(home / "file" / "deep")!r}),
                "proc": ParquetSink("/proc/deep"),
                "table": PostgresSink(EnvVar("TARGET"), "counts"),
                "schema": PostgresSink(EnvVar("TARGET"), "missing.counts"),
                "away": PostgresSink(EnvVar("NOBODY"), "counts"),
                "secret": PostgresSink(EnvVar("UNSET"), "counts"),
            }}
            for name, sink in sinks.items():
                counted(words, lines, sink, name)
        """)

        def there() -> list[Path]:
            return sorted(found for found in home.iterdir() if found.name != "__pycache__")

        before = contents(connection), sorted(home.rglob("*.py")), there()
        found = findings(path, well=False)
        assert (contents(connection), sorted(home.rglob("*.py")), there()) == before
        health = {
            name: about(found, f"output words/{name}") for name in ("made", "file", "proc", "table", "schema", "away")
        }
        assert health["made"] == [("ok", f"{home / 'out' / 'deep'} can be created")]
        assert health["file"] == [("failed", f"{home / 'file'} is no directory")]
        assert health["proc"] == [("failed", "/proc can't be written by this user (No such file or directory)")]
        assert health["table"] == [("ok", "public.counts: its Postgres answers, and may be written to")]
        assert health["schema"] == [("failed", "there is no schema missing")]
        assert health["away"][0][0] == "failed"
        assert about(found, "output words/secret")[0][0] == "warning"
        assert "pl4nted" not in json.dumps(found)
        Target(target).rows(
            "CREATE TABLE forebay_commits AS SELECT 'public.counts' target, 'words' pipeline, 'was' output"
        )
        owned = "the table public.counts is written by output 'was' of pipeline 'words'"
        assert about(findings(path, well=False), "output words/table") == [("failed", owned)]
        done = CliRunner().invoke(app, ["apply", path], env={"COLUMNS": "500"})
        assert f"Nothing was written. output 'table' of pipeline 'words': {owned}" in done.output
        assert (done.exit_code, "DELETE FROM" in done.output) == (1, True)
        assert contents(connection) == before[0]


def test_what_apply_would_change_or_refuse_is_told(
    module: Callable[[str], str], home: Path, database_url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    listener = "SocketText(listen='127.0.0.1:0')"
    path = module(one_stream(listener, home))
    found = findings(path, well=True)
    assert ("ok", "is new, and not applied yet") in about(found, "pipeline words")
    with connect(engine) as connection:
        apply(connection, load_pipelines(path))
        assert about(findings(path, well=True), "driver log") == [("ok", "code and driver log agree")]
        other = module(one_stream(listener, home).replace('"10s"', '"20s"'))
        [(_, said)] = about(findings(other, well=True), "pipeline words")
        assert said.startswith("differs from what is applied: ")
        assert "interval" in said
        merged = "PostgresSink('env:T', 'counts', mode='merge', key='value')"
        apply(connection, load_pipelines(module(one_stream(listener, home).replace(PARQUET.format(home), merged))))
        appended = module(one_stream(listener, home).replace(PARQUET.format(home), "PostgresSink('env:T', 'counts')"))
        step = "if it has a unique constraint on (value), drop that"
        warned = [one for one in findings(appended, well=True) if step in str(one)]
        assert [(one["health"], one["way_out"]) for one in warned] == [
            ("warning", f"{ORDER.format('words')} {NO_STOP}")
        ]
        done = CliRunner().invoke(app, ["apply", "--dry-run", appended], env={"COLUMNS": "500"})
        assert f"the table public.counts: {step}. It can't be looked at: the environment variable T is" in done.output
        apply(connection, load_pipelines(path))
        twice = module(f"{one_stream(listener, home)}    counted(words, lines, {PARQUET.format(home)}, 'more')\n")
        [(check, said)] = [
            (one["check"], one["found"]) for one in findings(twice, well=False) if one["health"] == "failed"
        ]
        assert (check, str(home / "out") in said) == ("outputs", True), "once"
        shared = module(one_stream(listener, home).replace('"words"', '"others"'))
        [(health, said)] = about(findings(shared, well=False), "driver log")
        assert (health, "pipeline 'words'" in said) == ("failed", True)
        [receiver] = placements(connection)
        register_schema(connection, receiver_id=receiver.receiver_id, fingerprint="1", columns=[("value", "string")])
        assert not [one for one in findings(path, well=True) if "column" in one["found"]]
        connection.execute(sa.text("TRUNCATE forebay.stream_schemas"))
        register_schema(connection, receiver_id=receiver.receiver_id, fingerprint="2", columns=[("Value", "int64")])
        [said] = [one["found"] for one in findings(path, well=False) if one["health"] == "failed"]
        assert "value STRING is Value BIGINT in the stream" in said


def test_a_typed_stream_shows_its_columns_which_are_not_those_of_its_source(
    module: Callable[[str], str], home: Path, engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    # The column `id` of Http is a STRING.
    declared = "Http(listen='127.0.0.1:0'), records=Json('id BIGINT NOT NULL, tags ARRAY<STRING>')"
    path = module("from forebay.records import Json\n" + textwrap.dedent(one_stream(declared, home)))
    with connect(engine) as connection:
        apply(connection, load_pipelines(path))
        [receiver] = placements(connection)
        register_schema(connection, receiver_id=receiver.receiver_id, fingerprint="1", columns=[("id", "int64")])
    said = about(findings(path, well=True), "stream lines")
    assert ("ok", "json records: id BIGINT NOT NULL, tags ARRAY<STRING>") in said


def test_a_driver_log_that_does_not_answer_fails(
    module: Callable[[str], str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    found = findings(module(one_stream("SocketText(listen='127.0.0.1:0')", home)), well=False)
    assert about(found, "driver log")[0][0] == "failed"
    assert about(found, "stream lines") == [("ok", "can listen at 127.0.0.1:0")]


EVENTS = """
    from forebay import EventJoin, EventWindow, SessionWindow
    from forebay.records import Json
    clicks = Stream("clicks", Http(listen="127.0.0.1:0"), records=Json("user STRING, at TIMESTAMP, text STRING"))
    p = Pipeline("p", interval="10s")
    url = EnvVar("TARGET_URL")

    def output(name, *columns, window=None, **more):
        timed = [clicks.by_event_time(column, lateness="1m") for column in columns or ["at"]]
        p.output(inputs=timed, window=window, name=name, **more)(lambda frame: frame)

    merged = PostgresSink(url, "merged", mode="merge", key=["window_start", "user"])
    output("merged", window=EventWindow("5m"), sink=merged, late=ParquetSink("never/late"))
    output("appended", window=SessionWindow("5m", key="user"), sink=PostgresSink(url, "appended"))
    output("files", window=EventWindow("5m"), sink=ParquetSink("never/files"))
    output("pairs", "at", "at", join=EventJoin("user", between=("0s", "1m")), sink=ParquetSink("never/pairs"))
"""


def test_which_windows_a_sink_gets(module: Callable[[str], str]) -> None:
    found = findings(module(EVENTS), "--offline", well=True)
    counted = "Records that are too late are only counted: late=SINK would keep them"
    said = {
        "merged": "each window as soon as it has a record, and its rows again, in place of those, when it has more. "
        "Records that are too late are in output merged_late",
        "appended": "each window once, when it is final; with mode='merge' it would get it again as it changes. "
        + counted,
        "files": f"each window once, when it is final. {counted}",
        "pairs": f"each pair once, in the batch in which its later record comes. {counted}",
    }
    expected = {name: [("ok", f"its sink gets {what}")] for name, what in said.items()} | {"merged_late": []}
    assert {name: about(found, f"output p/{name}") for name in expected} == expected


PLANS = """
    import os
    from forebay import ConsoleSink, EventWindow, ForeachBatchSink
    from forebay.parsing import from_json_records
    events = Stream("events", Http(listen="127.0.0.1:0"))
    p = Pipeline("p", interval="10s")

    def output(name, select, sink=None):
        sink = sink or ParquetSink(f"never/{name}")
        p.output(inputs=[events], sink=sink, name=name)(select)

    output("good", lambda frame: from_json_records(frame, "n INT", column="body").groupBy("n").count())
    output("none", lambda frame: os.write(1, b"printed") and None)
    output("pandas", lambda frame: frame.limit(1).toPandas())
    output("column", lambda frame: frame.where("nosuch = 1"))
    output("fails", lambda frame: 1 / frame.count())
    output("folder", lambda frame: frame.selectExpr("path AS date"))
    output("long", lambda frame: frame.selectExpr("path AS `" + "é" * 32 + "`"), PostgresSink(EnvVar("URL"), "t"))
    output("type", lambda frame: frame.selectExpr("INTERVAL 1 MONTH AS span"))
    output("merged", lambda frame: frame.select("path"), PostgresSink(EnvVar("URL"), "u", mode="merge", key="id"))

    def called(frame, batch_id):
        raise AssertionError("the function of a ForeachBatchSink is not run")

    output("effects", lambda frame: frame, ForeachBatchSink(called))

    def ends(frame):
        raise SystemExit("it ends")

    output("ends", ends)
    def timed(name, column):
        inputs = [events.by_event_time(column, lateness="1m")]
        sink = ParquetSink(f"never/{name}")
        p.output(inputs=inputs, window=EventWindow("5m"), sink=sink, name=name)(lambda frame: frame)

    timed("windows", "to_timestamp(CAST(body AS STRING))")
    timed("notime", "body")
    timed("missing", "at")
    other = Pipeline("other", interval="10s")
    other.spark_configuration = {"spark.sql.caseSensitive": "true"}
    other.output(inputs=[events], sink=ConsoleSink(), name="case")(lambda frame: frame.select("BODY"))
"""


@pytest.mark.spark
@pytest.mark.usefixtures("session")
def test_outputs_are_planned_on_empty_frames(
    module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = module(PLANS)
    found = findings(path, "--offline", well=False, plans=True)
    said = {one["check"].rpartition("/")[2]: one["found"] for one in found if one["health"] == "failed"}
    expected = {
        "none": "output 'none' of pipeline 'p' returned nothing (None), and its sink needs a Spark DataFrame",
        "pandas": "returned a pandas.core.frame.DataFrame",
        "column": "its function fails on empty frames in line ",
        "fails": "ZeroDivisionError: division by zero",
        "ends": "SystemExit: it ends",
        "case": "[UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        "folder": "its result has a column 'date', which is the target's own: rename it",
        "long": "é" * 32,
        "type": "its column span is a interval month",
        "merged": "its result has no column id, which its sink has as key",
        "notime": "event time 'body' of stream 'events' is BINARY, and must be TIMESTAMP: declare the column",
        "missing": "event time 'at' of stream 'events': [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
    }
    assert said.keys() == expected.keys()
    assert [name for name, part in expected.items() if part not in said[name]] == []
    assert "nosuch" in said["column"]
    [(health, counted)] = about(found, "plans")
    assert (health, counted.partition(":")[0]) == ("ok", "3 of 15 output(s) can be planned")
    assert "printed" not in capfd.readouterr().out
    # What a local Spark lacks may be there where the batches run; what its sink refuses is refused there too.
    monkeypatch.setenv("FOREBAY_SPARK_MASTER", "spark://127.0.0.1:1")
    path = module(
        re.sub(r'    (output|timed)\("(good|none|pandas|long|merged|effects|windows|notime|missing)".*\n', "", PLANS)
    )
    found = findings(path, "--offline", well=False, plans=True)
    warned = [one["check"].rpartition("/")[2] for one in found if one["health"] == "warning"]
    assert sorted(warned) == ["case", "column", "ends", "fails"]


def test_without_spark_the_plans_are_not_checked(
    module: Callable[[str], str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object, **__: object) -> None:
        raise JavaNotFoundError([])

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(plan_checks, "spark_session", no_spark)
    found = findings(module(one_stream("SocketText(listen='127.0.0.1:0')", home)), "--offline", well=True, plans=True)
    [(health, said)] = about(found, "plans")
    assert (health, said.partition(",")[0]) == ("warning", "the plans were not checked")


def test_a_sinks_missing_package_and_a_short_interval_are_found(
    module: Callable[[str], str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert DeltaSink(home).declaration()
    text = one_stream("SocketText(listen='127.0.0.1:0')", home).replace('"10s"', '"1s"')
    found = findings(
        module("\n        from forebay import DeltaSink" + text.replace("ParquetSink", "DeltaSink")), well=False
    )
    [(health, said)] = about(found, "output words/counts")
    assert (health, "pip install 'forebay[delta]'" in said) == ("failed", True)
    [(health, said)] = about(found, "pipeline words")
    assert (health, said.partition(":")[0]) == ("warning", "its interval of 1 s is short")


@pytest.mark.spark
@pytest.mark.usefixtures("session")
def test_results_are_compared_with_targets_and_made_of_the_columns_that_receivers_registered(
    module: Callable[[str], str],
    database_url: str,
    engine: sa.Engine,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    target.rows("CREATE TABLE counts (value integer, _batch_time timestamptz)")
    path = module("""
        lines = Stream("lines", SocketText(listen="127.0.0.1:0"))
        words = Pipeline("words", interval="10s")
        counted(words, lines, PostgresSink(EnvVar("TARGET_URL"), "counts"), "counts")
        words.output(inputs=[lines], sink=ParquetSink("never"), name="more")(lambda frame: frame.select("more"))
    """)
    with connect(engine) as connection:
        apply(connection, load_pipelines(path))
        found = findings(path, well=False, plans=True)
        assert "nosuch" not in json.dumps(found)
        assert [health for health, _ in about(found, "output words/more")] == ["failed", "ok"]
        [receiver] = placements(connection)
        register_schema(
            connection,
            receiver_id=receiver.receiver_id,
            fingerprint="1",
            columns=[("value", "string"), ("more", "int32")],
        )
    found = findings(path, well=False, plans=True)
    assert [health for health, _ in about(found, "output words/more")] == ["ok"]
    [(health, said)] = about(found, "output words/counts")
    assert health == "failed"
    assert "the table has no column more (integer)" in said
