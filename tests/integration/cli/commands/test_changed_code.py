"""Test what becomes of changed code beside a running `forebay up`: in force, waiting for a person, or refused."""

from __future__ import annotations

import errno
import json
import socket
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Never

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay import ConsoleSink, DeclarationError, Pipeline, Stream
from forebay.cli.checks import code_change, code_watch, source_checks
from forebay.cli.checks.code_change import CodeAnswer, Outcome, Request, put_in_force
from forebay.cli.checks.code_watch import OTHER, REMOVED, CodeWatch
from forebay.cli.checks.own_ports import Holder
from forebay.cli.commands.up import CODE_SERVER, Services, _disagreement, apply_at_start
from forebay.cli.commands.validate import _compare
from forebay.cli.main import app
from forebay.cli.services.supervisor_lock import take_lock
from forebay.sources import SocketText
from orchestration.declarations import compatibility
from orchestration.declarations.apply import apply, difference, refuse
from orchestration.declarations.asked_targets import ORDER, PAUSED
from orchestration.declarations.project_code import CodeCopies, ProjectReader
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import TargetCheck, TargetUnavailableError
from tests.support.polling import eventually
from tracker_store.batches.pipeline_states import stop_pipelines
from tracker_store.batches.pipelines import get_pipeline, list_pipelines, remove_pipeline
from tracker_store.batches.streams import remove_stream
from tracker_store.blocks.stream_schemas import register_schema
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import SharedPlaceError, sentence
from tracker_store.host.code_in_force import CODE_VARIABLE
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from orchestration.declarations.project_code import ProjectCode

MODULE = """\
import own
from forebay import ConsoleSink, ParquetSink, Pipeline, Stream
from forebay.sources import CustomSource, SocketText

lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
tail = Stream("tail", CustomSource(receiver="own:Tail"))
pipeline = Pipeline("words", interval="10s")


@pipeline.output(inputs=[lines], sink=ConsoleSink())
def counts(lines):
    return lines


@pipeline.output(inputs=[tail], sink=ParquetSink("data/tails"))
def tails(tail):
    return tail
"""
Edit = tuple[str, str]


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory with the project `shop`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "own.py").write_text("class Tail: ...\n")
    return tmp_path


def edit(project: Path, *edits: Edit, file: str = "shop.py") -> None:
    text = (project / file).read_text()
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    (project / file).write_text(text)


@pytest.fixture
def loaded(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Pipeline]]:
    """Return a function that loads the project as the process that checks a new version of it."""

    def load() -> list[Pipeline]:
        copies = CodeCopies(home)
        monkeypatch.setenv(CODE_VARIABLE, str(copies.keep(ProjectReader("shop").read())))
        monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if type(one).__name__ != "CodeCopy"])
        for name in ("shop", "own"):
            sys.modules.pop(name, None)
        from orchestration.declarations.modules import load_pipelines  # noqa: PLC0415  beside what it stands for

        pipelines = load_pipelines("shop")
        for name in ("shop", "own"):
            sys.modules.pop(name, None)
        return pipelines

    return load


def first_in_force(home: Path) -> CodeCopies:
    """Put the version that the project has now in force."""
    copies = CodeCopies(home)
    copies.put_in_force(copies.file_of(ProjectReader("shop").read().version))
    return copies


MORE = """@pipeline.output(inputs=[lines], sink=ConsoleSink())
def more(lines):
    return lines


"""
SECOND_PIPELINE = """others = Pipeline("others", interval="10s")


@others.output(inputs=[lines], sink=ConsoleSink())
def shown(lines):
    return lines


"""
SOCKET = 'SocketText(host="127.0.0.1", port=9999)'
CUSTOM = 'CustomSource(receiver="own:Tail")'


@pytest.mark.parametrize(
    ("edits", "waits_for"),
    [
        ([('interval="10s"', 'interval="5s"')], ""),
        ([("port=9999", "port=9998")], ""),
        ([("    return lines", "    return lines.distinct()")], ""),
        ([("@pipeline.output(inputs=[lines]", MORE + "@pipeline.output(inputs=[lines]")], ""),
        ([("def counts", "def numbers")], "output 'counts' of words is gone (renamed? new is numbers)"),
        (
            [('Stream("lines"', 'Stream("rows"')],
            (
                "stream 'lines' is gone (renamed? new is rows; if it is renamed: Stream(…, renamed_from='lines'), and "
                "the URL of HTTP senders changes with it)"
            ),
        ),
        (
            [('Stream("lines", ', 'Stream("rows", renamed_from="lines", source=')],
            "stream 'lines' is renamed to rows",
        ),
        (
            [('Pipeline("words"', 'Pipeline("terms"'), ("data/tails", "data/others")],
            (
                "pipeline 'words' is gone (renamed? new is terms: under a new name it is a new pipeline. To replace "
                'words by it: write start="latest" in one that takes its place (else it begins with all records that '
                "are kept), then `forebay stop --pipeline words`, `forebay pipelines remove words`, `forebay apply`)"
            ),
        ),
        ([("data/tails", "data/others")], "output words.tails writes to another place"),
        (
            [(SOCKET, CUSTOM)],
            "records of stream 'lines' get the columns of another kind of source (socket_text becomes custom)",
        ),
    ],
)
def test_a_change_waits_for_a_person_or_is_applied(
    engine: sa.Engine,
    home: Path,
    project: Path,
    loaded: Callable[[], list[Pipeline]],
    edits: list[Edit],
    waits_for: str,
) -> None:
    before = loaded()
    copies = first_in_force(home)
    first = copies.in_force()
    request = Request(compatibility.declared(before), agreed=False)
    with connect(engine) as connection:
        apply(connection, before)
        edit(project, *edits)
        after = loaded()
        result = put_in_force(connection, copies, after, request)
        if waits_for:
            assert (result.outcome, result.why) == (Outcome.WAITS, waits_for)
            assert difference(connection, before) == []
            assert copies.in_force() == first
            result = put_in_force(connection, copies, after, replace(request, agreed=True))
        assert result.outcome is Outcome.IN_FORCE
        assert difference(connection, after) == []
        assert copies.in_force() == copies.file_of(ProjectReader("shop").read().version)
        assert result.declared == compatibility.declared(after)
        assert result.is_new is (edits[0][0] != "    return lines")


def test_an_output_that_its_target_refuses_waits(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loaded()
    copies = first_in_force(home)
    first = copies.in_force()
    edit(project, ("@pipeline.output(inputs=[lines]", MORE + "@pipeline.output(inputs=[lines]"))
    held = TargetCheck("failed", "the table is written by output 'old'", "Give it a table of its own.")
    monkeypatch.setattr(ConsoleSink, "check_writer", lambda *_: held)
    with connect(engine) as connection:
        apply(connection, before)
        result = put_in_force(connection, copies, loaded(), Request(compatibility.declared(before), agreed=False))
        assert (result.outcome, "'more' of pipeline 'words': the table" in result.why) == (Outcome.WAITS, True)
        assert difference(connection, before) == []
    assert copies.in_force() == first


def test_a_change_that_needs_a_step_in_a_target_waits_also_at_a_start(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loaded()
    copies = first_in_force(home)
    first = copies.in_force()
    request = Request(compatibility.declared(before), agreed=False)
    edit(project, ("sink=ConsoleSink()", "sink=ConsoleSink(rows=1)"))
    monkeypatch.setattr(ConsoleSink, "step_after", lambda _, was: f"rows were {was['rows']}, drop its key")
    step = "output 'counts' of pipeline 'words': rows were 20, drop its key."
    with connect(engine) as connection:
        apply(connection, before)
        result = put_in_force(connection, copies, loaded(), request)
        assert (result.outcome, result.why) == (Outcome.WAITS, f"{step} {ORDER.format('words')}")
        assert difference(connection, before) == []
        assert copies.in_force() == first
        waits = f"{step} {PAUSED}"
        assert apply_at_start(connection, loaded(), print) == ([], waits)
        assert difference(connection, before) == []
        said: list[str] = []
        watch = CodeWatch("shop", home, tell=said.append)
        version = watch.first()
        watch.runs(compatibility.declared(loaded()), {}, (), waits=waits)
        watch.look()
        assert (said, watch.copies.notice()) == ([waits], waits)
        apply(connection, loaded())
        watch.look(rung=True, differs=partial(_disagreement, connection))
        assert said == [waits, f"That is over: code {version} runs, as the files have it."]
        apply(connection, before)
        assert put_in_force(connection, copies, loaded(), replace(request, agreed=True)).outcome is Outcome.IN_FORCE


def test_a_change_whose_target_is_away_is_tried_again_and_not_left_to_a_person(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(*_: object) -> Never:
        raise TargetUnavailableError("Connection refused")

    before = loaded()
    copies = first_in_force(home)
    request = Request(compatibility.declared(before), agreed=False)
    edit(project, ("sink=ConsoleSink()", "sink=ConsoleSink(rows=1)"))
    monkeypatch.setattr(ConsoleSink, "step_after", is_away)
    with connect(engine) as connection:
        apply(connection, before)
        result = put_in_force(connection, copies, loaded(), request)
        assert (result.outcome, result.why) == (
            Outcome.UNKNOWN,
            "output 'counts' of pipeline 'words': Connection refused",
        )
        assert difference(connection, before) == []
        assert put_in_force(connection, copies, loaded(), replace(request, agreed=True)).outcome is Outcome.IN_FORCE


def test_what_waits_says_also_why_apply_would_refuse_it(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]]
) -> None:
    more = MORE.replace("ConsoleSink()", 'ParquetSink("data/more")')
    edit(project, ("@pipeline.output(inputs=[lines]", more + "@pipeline.output(inputs=[lines]"))
    before = loaded()
    copies = first_in_force(home)
    edit(project, ("data/more", "data/tails"))
    after = loaded()
    with connect(engine) as connection:
        apply(connection, before)
        result = put_in_force(connection, copies, after, Request(compatibility.declared(before), agreed=False))
        with pytest.raises(SharedPlaceError) as refused:
            refuse(connection, after)
    moved = "output words.more writes to another place."
    assert (result.outcome, result.why) == (Outcome.WAITS, f"{moved} {refused.value}")


def test_records_that_leave_a_column_out_are_refused_and_what_runs_goes_on(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]]
) -> None:
    untyped = loaded()
    edit(project, ("from forebay.sources", "from forebay.records import Json\nfrom forebay.sources"))
    edit(project, (SOCKET, f'{SOCKET}, records=Json("item STRING, pieces BIGINT", raw=True)'))
    before = loaded()
    copies = first_in_force(home)
    first = copies.in_force()
    request = Request(compatibility.declared(before), agreed=False)
    with connect(engine) as connection:
        apply(connection, untyped)
        waits = put_in_force(connection, copies, before, Request(compatibility.declared(untyped), agreed=False))
        assert (waits.outcome, "'lines' are parsed: new rows have item, pieces" in waits.why) == (Outcome.WAITS, True)
        apply(connection, before)
        [receiver] = [one.receiver_id for one in placements(connection) if one.stream_name == "lines"]
        columns = (("item", "string"), ("pieces", "int64"), ("_raw", "string"))
        register_schema(connection, receiver_id=receiver, fingerprint="f", columns=columns)
        for ddl, said in {
            "item STRING": "pieces BIGINT is left out",
            "item DATE, pieces BIGINT": "item DATE is item",
        }.items():
            edit(project, ("item STRING, pieces BIGINT", ddl))
            with pytest.raises(DeclarationError, match=said):
                put_in_force(connection, copies, loaded(), request)
            edit(project, (ddl, "item STRING, pieces BIGINT"))
        assert difference(connection, before) == []
        assert copies.in_force() == first
        edit(project, ("pieces BIGINT", "pieces BIGINT NOT NULL, price DOUBLE"))
        assert put_in_force(connection, copies, loaded(), request).outcome is Outcome.IN_FORCE


def test_a_listener_that_moves_to_a_taken_port_is_looked_at_again(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loaded()
    copies = first_in_force(home)
    request = Request(compatibility.declared(before), agreed=False)
    with socket.create_server(("127.0.0.1", 0)) as taken, connect(engine) as connection:
        apply(connection, before)
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        edit(project, (SOCKET, f'SocketText(listen="{place}")'))
        moved = loaded()
        result = put_in_force(connection, copies, moved, request)
        assert result.outcome is Outcome.UNKNOWN
        assert result.why.startswith(f"stream lines: can't listen at {place}: Address already in use. Stop what")
        with monkeypatch.context() as of_another_account:
            of_another_account.setattr(source_checks, "holder_of", lambda *_, **__: Holder.UNKNOWN)
            result = put_in_force(connection, copies, moved, request)
            assert (result.outcome, "can't see by which process" in result.why) == (Outcome.UNKNOWN, True)
        assert difference(connection, before) == []
        agreed = put_in_force(connection, copies, moved, replace(request, agreed=True))
        assert (agreed.outcome, f"can't listen at {place}: Address already in use" in agreed.why) == (
            Outcome.IN_FORCE,
            True,
        )
        # As after an apply from elsewhere: the version before makes no batch, and the receivers move in any case.
        assert put_in_force(connection, copies, moved, request).outcome is Outcome.IN_FORCE
        edit(project, ('interval="10s"', 'interval="5s"'))
        stays = Request(compatibility.declared(moved), agreed=False)
        assert put_in_force(connection, copies, loaded(), stays).outcome is Outcome.IN_FORCE, "it listens there already"
        apply(connection, before)
        taken.close()
        assert put_in_force(connection, copies, loaded(), request).outcome is Outcome.IN_FORCE


def test_a_sink_whose_variable_is_not_set_is_not_put_in_force(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RESULTS_URL", raising=False)
    before = loaded()
    copies = first_in_force(home)
    request = Request(compatibility.declared(before), agreed=False)
    more = MORE.replace("ConsoleSink()", 'ParquetSink(EnvVar("RESULTS_URL"))')
    imports = ("import ConsoleSink, ", "import ConsoleSink, EnvVar, ")
    edit(project, imports, ("@pipeline.output(inputs=[lines]", more + "@pipeline.output(inputs=[lines]"))
    after = loaded()
    with connect(engine) as connection:
        apply(connection, before)
        result = put_in_force(connection, copies, after, request)
        assert result.outcome is Outcome.REFUSED
        assert result.why.startswith("output 'more' of pipeline 'words' refers to RESULTS_URL, which")
        assert difference(connection, before) == []
        apply(connection, before)
        agreed = put_in_force(connection, copies, after, replace(request, agreed=True))
        # `forebay apply` writes before `forebay up` looks.
        applied = put_in_force(connection, copies, after, request)
        assert [(one.outcome, one.why) for one in (agreed, applied)] == [(Outcome.IN_FORCE, result.why)] * 2
        knows = replace(request, declared=compatibility.declared(after))
        assert put_in_force(connection, copies, after, knows).why == ""


def test_a_new_pipeline_that_may_repeat_results_waits(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loaded()
    copies = first_in_force(home)
    first = copies.in_force()
    edit(project, ("    return lines", "    return lines.distinct()"))
    monkeypatch.setattr(code_change, "undecided", lambda *_: "May records come out again?")
    with connect(engine) as connection:
        apply(connection, before)
        result = put_in_force(connection, copies, loaded(), Request(compatibility.declared(before), agreed=False))
        assert (result.outcome, result.why) == (Outcome.WAITS, "May records come out again?")
        assert difference(connection, before) == []
    assert copies.in_force() == first


def test_code_without_a_pipeline_waits_for_apply_also_once_it_is_removed(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]]
) -> None:
    edit(project, ("pipeline = ", SECOND_PIPELINE + "pipeline = "))
    before = loaded()
    copies = first_in_force(home)
    request = Request(compatibility.declared(before), agreed=False)
    edit(project, (SECOND_PIPELINE, ""))
    after = loaded()
    with connect(engine) as connection:
        apply(connection, before)
        waiting = put_in_force(connection, copies, after, request)
        assert waiting.outcome is Outcome.WAITS
        assert waiting.why.startswith("pipeline 'others' is gone; until it is removed too")
        stop_pipelines(connection, name="others")
        remove_pipeline(connection, "others")
        waiting = put_in_force(connection, copies, after, request)
        assert waiting.outcome is Outcome.WAITS, "its code runs until apply"
        assert waiting.why == "pipeline 'others', which was removed, is gone from the code too"
        assert put_in_force(connection, copies, after, replace(request, agreed=True)).outcome is Outcome.IN_FORCE


@pytest.mark.parametrize("state", [PipelineState.STOPPING, PipelineState.STOPPED])
def test_a_pipeline_that_is_put_back_runs_unless_a_stop_of_it_goes_on(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], state: PipelineState
) -> None:
    without = loaded()
    copies = first_in_force(home)
    request = Request(compatibility.declared(without), agreed=False)
    edit(project, ("pipeline = ", SECOND_PIPELINE + "pipeline = "))
    both = loaded()
    with connect(engine) as connection:
        apply(connection, both)
        stop_pipelines(connection, name="others")
        connection.execute(sa.text("UPDATE forebay.pipelines SET state = :s WHERE name = 'others'"), {"s": state})
        assert put_in_force(connection, copies, both, request).outcome is Outcome.IN_FORCE
        is_ended = state is PipelineState.STOPPING
        assert get_pipeline(connection, "others").state is (state if is_ended else PipelineState.RUNNING)


def test_a_name_before_that_renames_nothing_is_said_of_the_code_that_has_it(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]]
) -> None:
    copies = CodeCopies(home)
    before = loaded()
    edit(project, ('Stream("lines", ', 'Stream("lines", renamed_from="tail", source='))
    with connect(engine) as connection:
        apply(connection, before)
        result = put_in_force(connection, copies, loaded(), Request(compatibility.declared(before), agreed=False))
    said: list[str] = []
    watch = CodeWatch("shop", home, tell=said.append)
    watch.runs(compatibility.declared(before), {}, [])
    watch._concluded(ProjectReader("shop").read(), result)
    [line] = said
    assert line.endswith(
        "runs. stream 'lines': renamed_from='tail' has no effect, because both streams exist: leave it out."
    )


@pytest.mark.parametrize(("file", "restarted"), [("own.py", ["tail"]), ("shop.py", [])])
def test_receivers_of_own_classes_start_again_with_changed_code(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]], file: str, restarted: list[str]
) -> None:
    before = loaded()
    copies = first_in_force(home)
    with connect(engine) as connection:
        apply(connection, before)
        # Else none runs, and one that waits for its start finds the new code.
        connection.exec_driver_sql("UPDATE forebay.receivers SET state = 'SCHEDULED'")
        connection.exec_driver_sql("UPDATE forebay.receivers SET state = 'ACTIVE'")
        was = {row.stream_name: row.assignment for row in placements(connection)}
        (project / file).write_text((project / file).read_text() + "\nmore = 1\n")
        put_in_force(connection, copies, loaded(), Request(compatibility.declared(before), agreed=False))
        now = {row.stream_name: row.assignment for row in placements(connection)}
    assert [name for name in now if now[name] != was[name]] == restarted


def test_nothing_is_in_force_that_the_driver_log_does_not_take(
    engine: sa.Engine,
    home: Path,
    project: Path,
    loaded: Callable[[], list[Pipeline]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = loaded()
    copies = first_in_force(home)
    first = copies.in_force()

    def fails(*_: object) -> None:
        assert copies.in_force() != first, "a receiver with a new declaration is to start with the new code"
        raise ConnectionError

    edit(project, ('interval="10s"', 'interval="5s"'))
    monkeypatch.setattr("forebay.cli.checks.code_change.apply", fails)
    with connect(engine) as connection:
        apply(connection, before)
        with pytest.raises(ConnectionError):
            put_in_force(connection, copies, loaded(), Request(compatibility.declared(before), agreed=False))
    assert copies.in_force() == first


def test_a_watch_checks_each_version_in_a_process_and_says_one_line(
    database_url: str,
    engine: sa.Engine,
    home: Path,
    project: Path,
    loaded: Callable[[], list[Pipeline]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    watch = CodeWatch("shop", home, tell=said.append)
    first = watch.first()
    assert watch.copies.module() == "shop"
    pipelines = loaded()
    with connect(engine) as connection:
        apply(connection, pipelines)
    environment = {"FOREBAY_DATABASE_URL": database_url, "FOREBAY_MODULE": "shop"}
    watch.runs(compatibility.declared(pipelines), environment, ())
    assert [watch.look() for _ in range(3)] == [None] * 3
    edit(project, ("def counts(lines):", "def counts(lines:"))
    eventually(lambda: watch.look() or said, "the broken module is refused")
    assert "shop.py changed and can't be used: SyntaxError" in said[-1]
    assert f"code {first} runs on" in said[-1]
    assert watch.copies.notice() == said[-1]
    edit(project, ("def counts(lines:", "def counts(lines):"))
    eventually(lambda: watch.look() or not watch.copies.notice(), "the file is as it was")
    assert said[1:] == [f"That is over: code {first} runs, as the files have it."]
    edit(project, ('interval="10s"', 'interval="5s"'))
    found: list[CodeAnswer] = []

    def is_found() -> bool:
        found.extend(filter(None, [watch.look()]))
        return bool(found)

    eventually(is_found, "the change is in force")
    version = ProjectReader("shop").read().version
    assert said[2:] == [f"shop.py changed: from the next batch on, code {version} runs (words: interval 10s → 5s)."]
    assert found[0].declared["pipelines"]["words"]["interval_ms"] == 5000
    began: list[object] = []
    monkeypatch.setattr(watch, "_begin", began.append)
    edit(project, ('interval="5s"', 'interval="6s"'))
    for _ in range(3):
        watch.look(waits=lambda: True)
    assert began == [], "a batch waits for a driver with the change before"
    assert len(said) == 3
    monkeypatch.setattr(code_watch, "SAID_AFTER_SECONDS", 0)
    watch.look(waits=lambda: True)
    assert said[3:] == ["shop.py changed and is looked at when a batch driver has the version before, or in a minute."]
    watch.look()
    assert len(began) == 1
    monkeypatch.setattr(code_watch, "HELD_SECONDS", 0)
    edit(project, ('interval="6s"', 'interval="7s"'))
    for _ in range(2):
        watch.look(waits=lambda: True)
    assert len(began) == 2
    for seconds, checks in ((60, 2), (0, 3)):
        monkeypatch.setattr(code_watch, "AGAIN_SECONDS", seconds)
        watch._again_at = 0.0
        watch._concluded(ProjectReader("shop").read(), CodeAnswer(Outcome.UNKNOWN, "its target is away"))
        watch.look()
        assert len(began) == checks, "each check is a process of seconds"
    assert "changed and is looked at again: its target is away. Until then, code" in said[-1]
    watch.close()


def test_declarations_that_were_applied_from_elsewhere_are_told(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]]
) -> None:
    said: list[str] = []
    watch = CodeWatch("shop", home, tell=said.append)
    version = watch.first()
    here = loaded()
    watch.runs(compatibility.declared(here), {}, ())
    with connect(engine) as connection:

        def look(applied: list[Pipeline]) -> str:
            apply(connection, applied)
            watch.look(rung=True, differs=partial(_disagreement, connection))
            for _ in range(2):
                watch.look(differs=partial(_disagreement, connection))
            return watch.copies.notice()

        assert look(here) == ""
        edit(project, ('interval="10s"', 'interval="5s"'))
        elsewhere = loaded()
        edit(project, ('interval="5s"', 'interval="10s"'))
        assert look(elsewhere) == OTHER.format(version)
        assert look(here) == ""
    assert said == [OTHER.format(version), f"That is over: code {version} runs, as the files have it."]


def test_a_removed_pipeline_is_told_and_no_saved_change_brings_it_back(
    engine: sa.Engine, home: Path, project: Path, loaded: Callable[[], list[Pipeline]]
) -> None:
    said: list[str] = []
    watch = CodeWatch("shop", home, tell=said.append)
    watch.first()
    before = loaded()
    watch.runs(compatibility.declared(before), {}, ())
    with connect(engine) as connection:
        apply(connection, before)
        stop_pipelines(connection, name="words")
        remove_pipeline(connection, "words")
        for stream in ("lines", "tail"):
            remove_stream(connection, stream, with_waiting=False)
        watch.look(rung=True, differs=partial(_disagreement, connection))
        assert said == [REMOVED.format("words")]
        edit(project, ('interval="10s"', 'interval="5s"'))
        request = Request(compatibility.declared(before), agreed=False)
        result = put_in_force(connection, watch.copies, loaded(), request)
        assert (result.outcome, result.why) == (Outcome.WAITS, "pipeline 'words' was removed, and begins again")
        assert list_pipelines(connection) == []
        agreed = put_in_force(connection, watch.copies, loaded(), replace(request, agreed=True))
        assert agreed.outcome is Outcome.IN_FORCE


def test_a_full_disk_is_told_and_tried_again(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    watch = Checks("shop", home, tell=said.append)
    watch.checked = []
    watch.first()

    def full(_code: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    edit(project, ('interval="10s"', 'interval="5s"'))
    with monkeypatch.context() as patched:
        patched.setattr(watch, "_begin", full)
        for _ in range(4):
            assert watch.look() is None
    assert len(said) == 1
    assert "No space left on device" in said[0]
    watch.look()
    assert watch.checked


class Agreements(CodeWatch):
    """A watch that puts each version in force at once, and notes to which a person has agreed."""

    agreed: list[bool]

    def _begin(self, code: ProjectCode) -> None:
        self.agreed.append(self._agreed == code.version)
        self._concluded(code, CodeAnswer(Outcome.IN_FORCE, declared=self._declared))


def test_a_person_agrees_to_a_change_and_not_to_a_later_one_back_to_it(home: Path, project: Path) -> None:
    watch = Agreements("shop", home, tell=lambda _: None)
    watch.agreed = []
    watch.first()
    watch.runs(compatibility.declared([]), {}, ())

    def save(before: str, after: str, *, applies: bool = False) -> None:
        edit(project, (before, after))
        if applies:
            watch.copies.apply(ProjectReader("shop").read().version)
        for _ in range(3):
            watch.look()

    # Other lengths: a clock of some kernels ticks more slowly than these looks.
    save("10s", "110s", applies=True)
    save("110s", "1200s")
    save("1200s", "110s")
    assert watch.agreed == [True, False, False]
    watch.copies.apply(ProjectReader("shop").read().version)
    watch.look()
    save("110s", "1200s")
    save("1200s", "110s")
    assert watch.agreed[3:] == [False, False], "it was in force when it was applied"
    # Saved once more before the watch looked at what was applied.
    edit(project, ("110s", "1200s"))
    watch.copies.apply(ProjectReader("shop").read().version)
    save("1200s", "13000s")
    save("13000s", "1200s")
    assert watch.agreed[5:] == [False, False], "that change was never in force"


def test_a_check_knows_what_receivers_are_not_given(home: Path, project: Path) -> None:
    watch = CodeWatch("shop", home, tell=lambda _: None)
    watch.runs(compatibility.declared([]), {}, (), {"TARGET"})
    assert watch._request(watch.first()).of_outputs == ["TARGET"]


class Checks(CodeWatch):
    """A watch that only notes which versions it would check."""

    checked: list[bool]

    def _begin(self, code: object) -> None:
        self.checked.append(self._applied is not None and code is not None)


@pytest.mark.parametrize(
    ("watches", "how", "begins"),
    [
        (True, "", [False]),
        (True, "apply", [True]),
        (False, "", []),
        (False, "apply", [True]),
        (False, "applied elsewhere", [False]),
        (False, "a pipeline is removed", []),
    ],
)
def test_without_a_watch_only_apply_takes_changed_files(
    home: Path, project: Path, watches: bool, how: str, begins: list[bool]
) -> None:
    watch = Checks("shop", home, tell=print, watches=watches)
    watch.checked = []
    watch.first()
    edit(project, ('interval="10s"', 'interval="5s"'))
    if how == "apply":
        watch.copies.apply(ProjectReader("shop").read().version)
    elif how:
        watch.look(rung=True, is_applied=how == "applied elsewhere")
    for _ in range(3):
        watch.look()
    assert watch.checked[:1] == begins
    assert ("waits for `forebay apply` (--no-watch)" in watch.copies.notice()) != bool(begins)


def test_apply_says_that_code_takes_effect_though_no_declaration_changed(
    database_url: str, home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    copies = CodeCopies(home)
    copies.of("shop")
    with take_lock(home):
        for code, said in (("Code ", "No declaration changed"), ("Nothing to apply", "code and driver log agree")):
            CliRunner().invoke(app, ["apply", "shop"])
            done = CliRunner().invoke(app, ["apply", "shop"], env={"COLUMNS": "200"})
            assert done.exit_code == 0, done.output
            assert done.output.startswith(code)
            assert said in done.output
            copies.put_in_force(copies.keep(ProjectReader("shop").read()))
    edit(project, ("return lines", "return lines.limit(1)"))
    assert "Nothing to apply" in CliRunner().invoke(app, ["apply", "shop"]).output, "nothing runs that would take it"


def test_apply_says_what_a_running_up_would_not_do_by_itself(
    engine: sa.Engine,
    database_url: str,
    home: Path,
    project: Path,
    loaded: Callable[[], list[Pipeline]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    edit(project, ("pipeline = ", SECOND_PIPELINE + "pipeline = "))
    before = loaded()
    copies = first_in_force(home)
    copies.of("shop")
    copies.declares(compatibility.declared(before))
    with connect(engine) as connection:
        apply(connection, before)
    edit(project, (SECOND_PIPELINE, ""))
    after = loaded()
    told = "pipeline 'others' is gone; until it is removed too"

    def forebay(*arguments: str) -> str:
        monkeypatch.delenv(CODE_VARIABLE, raising=False)
        for name in ("shop", "own"):
            sys.modules.pop(name, None)
        return " ".join(CliRunner().invoke(app, arguments, env={"COLUMNS": "300"}).output.split())

    assert told not in forebay("apply", "shop", "--dry-run"), "nothing runs that has it"
    with take_lock(home):
        dry = forebay("apply", "shop", "--dry-run")
        assert told in dry
        assert "would take effect at the next batch: the running `forebay up` checks it first. No declaration" in dry
        assert not dry.endswith("agree.")
        assert "No batch is made of it, while receivers of its streams go on. Put it back into" in forebay(
            "apply", "shop"
        )
        with connect(engine) as connection:
            assert any(told in finding.found for finding in _compare(connection, "shop", after, []))
            # Once the code without it is in force.
            copies.declares(compatibility.declared(after))
            assert any("also has others" in finding.found for finding in _compare(connection, "shop", after, []))


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--dry-run", "--json"], ["--json"], []])
def test_apply_says_which_variable_is_not_set_here(
    arguments: list[str],
    engine: sa.Engine,
    database_url: str,
    project: Path,
    loaded: Callable[[], list[Pipeline]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.delenv("RESULTS_URL", raising=False)
    with connect(engine) as connection:
        apply(connection, loaded())
    edit(
        project,
        ("import ConsoleSink, ", "import ConsoleSink, EnvVar, "),
        ('ParquetSink("data/tails")', 'ParquetSink(EnvVar("RESULTS_URL"))'),
    )
    loaded()
    monkeypatch.delenv(CODE_VARIABLE, raising=False)
    line = (
        "output 'tails' of pipeline 'words' refers to RESULTS_URL, which this process does not have: its batches are "
        "BLOCKED where it is not set."
    )
    done = CliRunner().invoke(app, ["apply", "shop", *arguments])
    assert done.exit_code == 0, done.output
    if "--json" in arguments:
        assert json.loads(done.stdout)["effects"] == [line]
    else:
        assert sentence(line) in done.output.splitlines()


@pytest.mark.parametrize("is_new", [True, False])
def test_the_code_server_starts_again_for_new_declarations(
    engine: sa.Engine, home: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    class Found:
        """Stands for a watch that has a result."""

        rung = is_applied = False

        def look(
            self,
            *,
            rung: bool,
            is_applied: bool,
            differs: Callable[[Mapping[str, Any], str], str],
            waits: Callable[[], bool],
        ) -> CodeAnswer:
            assert callable(differs)
            assert waits(), "no driver is ready"
            self.rung, self.is_applied = rung, is_applied
            return CodeAnswer(Outcome.IN_FORCE, declared={"pipelines": {"words": {"interval_ms": 5000}}}, is_new=is_new)

    services = Services(Settings(home=home))
    restarted: list[str] = []
    monkeypatch.setattr(services._supervisor, "restart", restarted.append)
    watch = Found()
    monkeypatch.setattr(services, "_code", watch)
    with connect(engine) as connection:
        services._look_at_the_code(connection)
        assert not watch.rung
        pipeline = Pipeline("words", interval="5s")
        pipeline.output(inputs=[Stream("lines", SocketText(host="h", port=1))], sink=ConsoleSink(), name="counts")(
            lambda lines: lines
        )
        for changed in (pipeline, Pipeline("words", interval="6s")):
            changed.outputs = changed.outputs or pipeline.outputs
            apply(connection, [changed])
            services._look_at_the_code(connection)
            assert (watch.rung, watch.is_applied) == (True, True), "the driver log's declarations are others"
            services._look_at_the_code(connection)
            assert (watch.rung, watch.is_applied) == (False, False)
        stop_pipelines(connection, name="words")
        remove_pipeline(connection, "words")
        services._look_at_the_code(connection)
        assert (watch.rung, watch.is_applied) == (True, False), "nothing of the code is applied by that"
    assert set(restarted) == ({CODE_SERVER} if is_new else set())
    assert [row.name for row in services._pipelines] == ["words"]
