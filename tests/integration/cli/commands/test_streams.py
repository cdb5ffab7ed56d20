"""Test `forebay streams` on a real driver log: what it lists, what it refuses to remove, and what a removal leaves."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.cli.terminal import confirmation
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.sources.records.json_records import Json
from tests.support.driver_log.declared_records import declare_records
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tests.support.driver_log.stored_letters import Letters
from tracker_store.batches.pipeline_states import stop_pipelines
from tracker_store.batches.pipelines import apply_stream, remove_pipeline
from tracker_store.batches.readers import attach_reader, remove_reader
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.receivers import add_host_receiver, placements

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture
def log(connection: sa.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    return make_log(connection, receivers=2)


def forebay(*arguments: str, **options: Any) -> Result:  # noqa: ANN401  the runner's own
    return CliRunner().invoke(app, arguments, **options)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def give_up_pipeline(log: Log) -> None:
    stop_pipelines(log.connection)
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    remove_pipeline(log.connection, "words")


def streams() -> list[str]:
    return [row["stream"] for row in json.loads(forebay("streams", "--json").stdout)["streams"]]


def test_each_stream_with_what_reads_it_and_what_it_stores(log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON, NOON)
    attach_reader(log.connection, name="query", stream="lines")
    [row] = json.loads(forebay("streams", "list", "--json").stdout)["streams"]
    assert (row["stream"], row["pipelines"], row["readers"]) == ("lines", ["words"], ["query"])
    assert (row["receivers"], row["active_receivers"], row["stored_records"]) == (2, 0, 20)
    assert row["retention"] == timedelta(days=7).total_seconds()
    assert said(forebay("streams")) == said(forebay("streams", "list"))
    assert "query (reader)" in said(forebay("streams"))


def test_a_typed_stream_shows_its_columns_and_what_did_not_fit(log: Log, tmp_path: Path) -> None:
    declare_records(log.connection, Json("item STRING NOT NULL, pieces BIGINT"))
    letters = Letters(log.connection, str(tmp_path / "blocks"), log.receiver_ids[1])
    letters.add(DeadLetterReason.DOES_NOT_FIT, [b"{}", b"[]"], dropped=1)
    letters.close()
    log.add_at(log.receiver_ids[0], NOON, NOON)
    [row] = json.loads(forebay("streams", "--json").stdout)["streams"]
    assert row["columns"] == [
        {"name": "item", "type": "STRING", "nullable": False},
        {"name": "pieces", "type": "BIGINT", "nullable": True},
    ]
    assert (row["stored_records"], row["dead_letters"]) == (20, 3)
    assert "lines: item STRING NOT NULL, pieces BIGINT" in said(forebay("streams"))


def test_a_stream_whose_source_takes_no_channels_says_so(log: Log) -> None:
    def listed(kind: str) -> Result:
        log.connection.execute(
            sa.text("UPDATE forebay.streams SET declaration = CAST(:declaration AS jsonb)"),
            {"declaration": json.dumps({"source": {"kind": kind}})},
        )
        return forebay("channels", "lines")

    refused = listed("followed_files")
    assert (refused.exit_code, "followed_files takes no channels" in said(refused)) == (1, True), refused.output
    assert listed("http").exit_code == 0


def test_a_stream_is_removed_only_when_nothing_reads_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_reader(log.connection, name="query", stream="lines")
    refused = forebay("streams", "remove", "lines", "--yes")
    assert refused.exit_code == 1
    assert "stream 'lines' is read by pipeline words, reader query." in said(refused)
    assert "`forebay pipelines remove words`, `forebay readers remove query`" in said(refused)
    remove_reader(log.connection, "query")
    assert forebay("streams", "remove", "lines", "--yes").exit_code == 1
    give_up_pipeline(log)
    assert streams() == ["lines"]
    assert forebay("streams", "remove", "lines", input="y\n").exit_code == 1
    assert streams() == ["lines"], "a pipe is nobody who could be asked"
    monkeypatch.setattr(confirmation, "is_terminal", lambda: True)
    assert forebay("streams", "remove", "lines", input="n\n").exit_code == 1
    assert streams() == ["lines"], "it asked, and was told no"
    removed = forebay("streams", "remove", "lines", input="y\n")
    assert (removed.exit_code, streams()) == (0, [])
    assert "with 2 receiver(s)" in said(removed)
    assert placements(log.connection) == []
    unknown = forebay("streams", "remove", "lines", "--yes")
    assert (unknown.exit_code, "stream 'lines' is not in the driver log" in said(unknown)) == (1, True)


def test_a_removal_is_said_as_json_and_asked_about_elsewhere(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = forebay("streams", "remove", "lines", "--yes", "--json")
    assert (refused.exit_code, refused.stdout) == (1, "")
    give_up_pipeline(log)
    monkeypatch.setattr(confirmation, "is_terminal", lambda: True)
    removed = forebay("streams", "remove", "lines", "--json", input="y\n")
    # The runner shows the answer that is typed on standard output.
    assert json.loads(removed.stdout.splitlines()[-1]) == {"stream": "lines", "removed": True, "receivers": 2}
    assert "Remove lines?" not in removed.stdout
    assert "Remove lines?" in removed.stderr
    assert streams() == []


def test_records_that_no_batch_had_are_given_up_only_by_name(log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1))
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    log.end_batch(NOON + INTERVAL)
    # The first receiver's block was in a batch; the second one's never is.
    log.add_at(log.receiver_ids[1], NOON + 2 * INTERVAL, records=7)
    give_up_pipeline(log)
    refused = forebay("streams", "remove", "lines", "--yes")
    assert refused.exit_code == 1
    assert "stream 'lines' has 7 records that no pipeline has read" in said(refused)
    assert "forebay streams remove lines --with-records" in said(refused)
    assert forebay("streams", "remove", "lines", "--yes", "--with-records").exit_code == 0
    assert streams() == []


def test_a_stream_applied_again_is_a_new_one(log: Log) -> None:
    give_up_pipeline(log)
    assert forebay("streams", "remove", "lines", "--yes").exit_code == 0
    again = apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=1)
    assert again != log.stream_id
    [receiver] = placements(log.connection)
    assert receiver.receiver_id not in log.receiver_ids


def test_a_leader_that_still_knows_a_removed_stream_gives_it_no_receiver(log: Log) -> None:
    give_up_pipeline(log)
    assert forebay("streams", "remove", "lines", "--yes").exit_code == 0
    term = take_leadership(log.connection, seen=read_leadership(log.connection), holder="t")
    assert term is not None
    assert add_host_receiver(log.connection, term=term, stream_id=log.stream_id, host="h") is False
    assert placements(log.connection) == []
