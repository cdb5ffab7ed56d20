"""Run the suite of upkeep on a Delta table."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from forebay import DeltaSink
from forebay_contrib.delta import retention, upkeep
from forebay_contrib.delta.retention import interval
from forebay_contrib.delta.tests.delta_target import DeltaTarget
from forebay_contrib.delta.tests.test_tables_of_others import TABLE
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt
from tests.support.sinks.upkeep_suite import UpkeepSuite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class TestDeltaUpkeep(UpkeepSuite):
    def new_target(self, folder: Path) -> DeltaTarget:
        return DeltaTarget(folder)

    def data_files(self, target: Any) -> int:  # noqa: ANN401
        return len(target.table.file_uris())

    def sizes(self, target: Any) -> Mapping[str, int]:  # noqa: ANN401
        folder = Path(target.sink().target)
        return {str(file): file.stat().st_size for file in folder.rglob("*") if file.is_file()}

    def keep(self, target: Any, monkeypatch: pytest.MonkeyPatch, kept: timedelta) -> None:  # noqa: ANN401
        seconds = f"interval {round(kept.total_seconds())} seconds"
        names = ("delta.setTransactionRetentionDuration", "delta.logRetentionDuration")
        wanted = {**dict.fromkeys(names, seconds), "delta.deletedFileRetentionDuration": "interval 0 seconds"}
        if not wanted.items() <= target.table.metadata().configuration.items():
            target.table.alter.set_table_properties(wanted)
        for module in (retention, upkeep):
            monkeypatch.setattr(module, "SKEW", timedelta())
        # deltalake takes whole hours alone.
        monkeypatch.setattr(upkeep, "_hours", lambda age: 0 if age < kept + timedelta(seconds=3) else 1)

    def call_before_merge(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        real = upkeep._most_below

        def most_below(table: Any, size: int) -> int:  # noqa: ANN401
            found = real(table, size)
            then()
            return found

        monkeypatch.setattr(upkeep, "_most_below", most_below)

    def test_files_of_others_in_the_tables_directory_stay(
        self, target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(target, 12)
        others = [Path(target.sink().target) / name for name in ("notes.txt", "lines/part-0.parquet")]
        for file in others:
            file.parent.mkdir(exist_ok=True)
            file.write_text("another's")
        self.keep(target, monkeypatch, timedelta())
        assert target.sink().upkeep(self.turn())["files_deleted"] == 12
        assert all(file.exists() for file in others)


def test_of_a_table_that_somebody_else_made_only_files_are_merged(tmp_path: Path) -> None:
    for _ in range(10):
        write_deltalake(tmp_path / "t", TABLE, mode="append", partition_by=["word"])
    before = {str(file) for file in (tmp_path / "t").rglob("*.parquet")}
    suite = TestDeltaUpkeep()
    assert DeltaSink(tmp_path / "t").upkeep(suite.turn()) == {"files_merged": 10, "files_made": 1}
    assert before <= {str(file) for file in (tmp_path / "t").rglob("*.parquet")}
    assert DeltaTable(tmp_path / "t").metadata().configuration == {}


def test_a_table_that_the_sink_does_not_write_is_left_alone(tmp_path: Path) -> None:
    for _ in range(10):
        write_deltalake(tmp_path / "t", TABLE, mode="append", configuration={"delta.appendOnly": "true"})
    assert DeltaSink(tmp_path / "t").upkeep(TestDeltaUpkeep().turn()) == {}
    assert len(DeltaTable(tmp_path / "t").file_uris()) == 10


def test_an_error_of_a_turn_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(tmp_path / "t", TABLE)
    monkeypatch.setenv("STORE_SAS", "hunter2hunter2")
    sink = DeltaSink("abfss://results@account.dfs.core.windows.net/t", storage_options={"sas_token": "env:STORE_SAS"})
    monkeypatch.setattr(sink, "_table", lambda _: DeltaTable(tmp_path / "t"))

    def fail(*_: object) -> None:
        raise OSError("PUT https://account.blob.core.windows.net/results/t?sig=hunter2hunter2 answered 403")

    monkeypatch.setattr(upkeep, "_most_below", fail)
    with pytest.raises(SinkError, match=r"output 'counts' .* answered 403") as raised:
        sink.upkeep(TestDeltaUpkeep().turn())
    assert "hunter2" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_what_a_table_keeps_by_default_is_what_delta_itself_reads_of_it(tmp_path: Path) -> None:
    """Check the form of the interval: an id of more than a day ago is gone for deltalake too."""
    sink = DeltaSink(tmp_path / "t")
    sink.write(words(("a", 1)), attempt())
    sink.upkeep(TestDeltaUpkeep().turn())
    table = DeltaTable(tmp_path / "t")
    hours_ago = {"kept": 23, "gone": 25}
    ids = [Transaction(name, 1, round(time.time() - hours * 3600) * 1000) for name, hours in hours_ago.items()]
    table.create_write_transaction(
        [], mode="append", schema=table.schema(), commit_properties=CommitProperties(app_transactions=ids)
    )
    assert {name: DeltaTable(tmp_path / "t").transaction_version(name) for name in hours_ago} == {
        "kept": 1,
        "gone": None,
    }


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("interval 2 days", timedelta(days=2)),
        ("interval 1 week", timedelta(weeks=1)),
        ("INTERVAL 90 SECONDS", timedelta(seconds=90)),
        ("30 minutes", timedelta(minutes=30)),
        ("interval 1 month", None),
        (None, None),
    ],
)
def test_an_interval_of_a_property(text: str | None, length: timedelta | None) -> None:
    assert interval(text) == length
