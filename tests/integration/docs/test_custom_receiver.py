"""Test docs/how-to/custom-receiver.md: its class in a real receiver process, named by its path and an entry point."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay import Stream
from forebay.sources import CustomSource
from forebay.testing.receiver_processes import eventually
from orchestration.declarations.modules import load_pipelines
from receiver_runtime.block_store.frames.columns import FINGERPRINT_KEY, fingerprint_of
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig, exit_code
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log

if TYPE_CHECKING:
    import subprocess

    import pyarrow as pa
    import sqlalchemy as sa

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "custom-receiver.md"
COLUMNS = (("file", "string"), ("line", "string"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working directory with the page's files in it."""
    receiver, pipeline = blocks("python")[:2]
    (tmp_path / "my_spool.py").write_text(receiver, encoding="utf-8")
    (tmp_path / "my_pipeline.py").write_text(pipeline, encoding="utf-8")
    (tmp_path / "incoming").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(directory: Path) -> None:
    """Put into site-packages what an installer makes of the page's pyproject.toml: the module and its metadata."""
    [text] = blocks("toml")
    project = tomllib.loads(text)["project"]
    information = directory / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    (information / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        ),
        encoding="utf-8",
    )
    (directory / "my_spool.py").write_text(blocks("python")[0], encoding="utf-8")


def stored(rig: ReceiverRig) -> list[pa.RecordBatch]:
    """Return the record batches of every registered block, in order."""
    store = LocalBlockStore(rig.root / "blocks")
    return [
        batch
        for row in rig.execute(
            'SELECT s.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
            "JOIN forebay.log_segments s ON s.id = b.segment_id ORDER BY b.sequence"
        )
        for batch in store.read_batches(row.path, row.offset, row.length, row.crc32c)
    ]


def put(path: Path, text: str) -> None:
    """Write a file so that it appears only when it is complete."""
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    path.with_suffix(".new").rename(path)


def assert_it_empties_the_directory(rig: ReceiverRig, incoming: Path) -> None:
    """Check the page's promise: each file becomes one registered block and is deleted; a stop drains."""
    put(incoming / "one.txt", "to be\nor not\n")
    process = rig.start()
    eventually(lambda: not any(incoming.iterdir()), f"an empty directory ({rig.state()})")
    # The file is deleted after its block is registered, so there is no need to wait.
    assert rig.records() == 2
    put(incoming / "nothing.txt", "")
    put(incoming / "two.txt", "to be")
    eventually(lambda: not any(incoming.iterdir()), "an empty directory again")
    eventually(lambda: rig.state() == ("ACTIVE", "connected to incoming"), "its state")
    process.terminate()
    assert exit_code(process) == ExitCode.STOPPED, rig.logs()
    batches = stored(rig)
    assert [batch.to_pylist() for batch in batches] == [
        [{"file": "one.txt", "line": "to be"}, {"file": "one.txt", "line": "or not"}],
        [{"file": "two.txt", "line": "to be"}],
    ]
    assert {batch.schema.metadata[FINGERPRINT_KEY].decode() for batch in batches} == {fingerprint_of(COLUMNS)}
    assert rig.execute("SELECT source_rule FROM forebay.log_segments") == [("sent_again",)]
    assert rig.execute("SELECT version, columns FROM forebay.stream_schemas") == [(1, [list(c) for c in COLUMNS])]


def test_the_class_is_short() -> None:
    text = blocks("python")[0]
    assert len(text[text.index("class ") :].splitlines()) < 30


def test_r05_a_receiver_that_the_pipeline_names_stores_and_then_acknowledges(
    database_url: str, tmp_path: Path, package: Path
) -> None:
    [pipeline] = load_pipelines("my_pipeline")
    # The declaration is read without the class: nothing has imported it so far.
    assert "my_spool" not in sys.modules
    declaration = pipeline.streams[0].declaration()
    rig = ReceiverRig.make(database_url, tmp_path / "receiver", declaration["source"])
    try:
        assert_it_empties_the_directory(rig, package / "incoming")
    finally:
        rig.close()


def test_a_receiver_of_an_installed_package_by_its_entry_point(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    install(site)
    (work / "incoming").mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", str(site))
    source = CustomSource(receiver="spool", options={"directory": "incoming", "every": 0.05})
    rig = ReceiverRig.make(database_url, tmp_path / "receiver", source.model_dump(mode="json"))
    try:
        assert_it_empties_the_directory(rig, work / "incoming")
    finally:
        rig.close()


def test_forebay_sources_lists_the_receivers_of_installed_packages(tmp_path: Path) -> None:
    install(tmp_path)
    done = run("forebay sources --json", tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    listed: list[dict[str, Any]] = json.loads(done.stdout)["sources"]
    [spool] = [kind for kind in listed if kind["receiver"] == "spool"]
    assert spool == {
        "kind": "custom",
        "receiver": "spool",
        "declaration": 'CustomSource(receiver="spool")',
        "fields": {"directory": None, "every": "0.5"},
        "guarantee": "at least once",
        "guarantees": ["at least once"],
        "columns": {"file": "string", "line": "string"},
        "record_column": "",
        "extra": None,
        "installed": True,
        "choices": {},
        "package": "my-spool 1.0",
        "error": None,
    }
    [text] = [kind for kind in listed if kind["kind"] == "socket_text"]
    assert text["declaration"] == "SocketText"
    assert text["guarantee"] == "at most once"
    assert "encoding" in text["fields"]
    # The text output lists it too.
    assert "SpoolReceiver" not in (plain := run("forebay sources", tmp_path, PYTHONPATH=str(tmp_path))).stderr
    assert 'spool: CustomSource(receiver="spool"), my-spool 1.0\n' in plain.stdout
    assert "directory, every=0.5" in plain.stdout, "nothing is cut where the terminal is narrow"
    assert "at least once, deduplicated" in plain.stdout


def test_a_receiver_that_is_not_installed_fails_with_the_name_of_its_package(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rig = ReceiverRig.make(
        database_url,
        tmp_path / "receiver",
        Stream("lines", CustomSource(receiver="my_spool:SpoolReceiver")).declaration()["source"],
    )
    try:
        assert exit_code(rig.start()) == ExitCode.FAILED
        assert rig.state() == (
            "FAILED",
            (
                "receiver: 'my_spool:SpoolReceiver' is in the package 'my_spool', which is not installed here: "
                "install it where the agent runs, into the environment of `forebay agent`"
            ),
        )
        # No process has claimed the receiver.
        assert rig.epochs() == []
    finally:
        rig.close()


def test_the_pages_statement(connection: sa.Connection) -> None:
    make_log(connection)
    for statement in blocks("sql"):
        connection.exec_driver_sql(statement)


def test_the_pages_commands(package: Path) -> None:
    """Run all commands except the one that runs until Ctrl-C, whose argument is checked."""
    commands = "".join(blocks("sh"))
    assert "forebay up my_pipeline\n" in commands
    done = run(commands.replace("forebay up my_pipeline\n", ""), package)
    assert done.returncode == 0, done.stderr
    assert (package / "incoming" / "one.txt").read_text(encoding="utf-8") == "to be or not to be\n"


def run(command: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program(["sh", "-euc", command], env={**os.environ, **environment, **programs()}, cwd=directory)
