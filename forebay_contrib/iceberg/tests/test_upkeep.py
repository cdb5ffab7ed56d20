"""Run the suite of upkeep on an Iceberg table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, NestedField, StringType, StructType

from forebay_contrib.iceberg import expiry, upkeep
from forebay_contrib.iceberg.commits import tokens_in
from forebay_contrib.iceberg.tests.iceberg_target import IcebergTarget
from orchestration.declarations.sink import AttemptOutdatedError, SinkError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt
from tests.support.sinks.upkeep_suite import UpkeepSuite, batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class TestIcebergUpkeep(UpkeepSuite):
    def new_target(self, folder: Path) -> IcebergTarget:
        folder.mkdir(exist_ok=True)
        return IcebergTarget(
            folder, {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        )

    def data_files(self, target: Any) -> int:  # noqa: ANN401
        return len(list(target.table.scan().plan_files()))

    def sizes(self, target: Any) -> Mapping[str, int]:  # noqa: ANN401
        folder = Path(urlsplit(target.table.location()).path)
        return {str(file): file.stat().st_size for file in folder.rglob("*") if file.is_file()}

    def keep(self, target: Any, monkeypatch: pytest.MonkeyPatch, kept: timedelta) -> None:  # noqa: ANN401
        for module in (expiry, upkeep):
            monkeypatch.setattr(module, "KEPT", kept)
        monkeypatch.setattr(upkeep, "SKEW", timedelta())
        if not kept:
            monkeypatch.setattr(expiry, "_SNAPSHOTS", 1)
            monkeypatch.setattr(upkeep, "_WORTH", 1)

    def call_before_merge(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        real = upkeep._rewritten

        def rewritten(*arguments: Any) -> Any:  # noqa: ANN401
            then()
            return real(*arguments)

        monkeypatch.setattr(upkeep, "_rewritten", rewritten)

    def test_a_column_that_is_renamed_and_one_that_is_added_are_merged_by_their_ids(
        self, target: IcebergTarget
    ) -> None:
        self.written(target, 6)
        with target.table.update_schema() as update:
            update.rename_column("word", "text")
        rows = pa.table(
            {
                "text": ["b"],
                "n": [1],
                "_batch_time": pa.array([batch(9)], pa.timestamp("us", "UTC")),
            }
        )
        for _ in range(4):
            target.table.append(rows)
        assert target.sink().upkeep(self.turn())["files_merged"] == 10
        read = sorted((row["text"], row["n"]) for row in target.read())
        assert read == [*(("a", number) for number in range(6)), *[("b", 1)] * 4]

    @pytest.mark.parametrize("why", ["a tag", "the owner's word"])
    def test_a_table_that_needs_its_snapshots_keeps_them(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch, why: str
    ) -> None:
        self.written(target, 12)
        table = target.table
        if why == "a tag":
            table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "first").commit()
        else:
            table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
        self.keep(target, monkeypatch, timedelta())
        assert target.sink().upkeep(self.turn()) == {"files_merged": 12, "files_made": 1}
        assert len(target.table.snapshots()) == 13

    def test_commits_expire_snapshots_by_themselves_and_keep_their_tokens(self, target: IcebergTarget) -> None:
        rows = self.written(target, 45)
        assert len(target.table.snapshots()) < 2 * expiry._SNAPSHOTS
        sink = target.sink()
        for number in range(45):
            found = sink.committed(attempt(2, time=batch(number)))
            assert found is not None
            assert (found.attempt, found.written.rows, found.written.location) == (1, 1, target.location)
        with pytest.raises(AttemptOutdatedError):
            sink.write(words(("late", 1)), attempt(time=batch(0)))
        sink.write(words(("new", 0)), attempt(2, time=batch(0)))
        assert target.rows() == [*rows[1:], ("new", 0)]
        with pytest.raises(AttemptOutdatedError):
            sink.write(words(("late", 1)), attempt(time=batch(0)))

    def test_a_reader_of_an_expired_snapshot_finds_its_files_for_an_hour(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(target, 12)
        reader = target.table
        target.sink().write(words(("new", 0)), attempt(2, time=batch(0)))
        self.keep(target, monkeypatch, timedelta())
        assert target.sink().upkeep(self.turn())["snapshots_expired"] > 10
        assert sorted(reader.scan().to_arrow()["n"].to_pylist()) == [*range(12)]
        for module in (expiry, upkeep):
            monkeypatch.setattr(module, "KEPT", timedelta(hours=1))
        target.sink().upkeep(self.turn())
        assert sorted(reader.scan().to_arrow()["n"].to_pylist()) == [*range(12)]
        self.keep(target, monkeypatch, timedelta())
        self.written(target, 1, begin=13)
        assert target.sink().upkeep(self.turn())["files_deleted"] > 12
        with pytest.raises(FileNotFoundError):
            reader.scan().to_arrow()
        assert sorted(target.table.scan().to_arrow()["n"].to_pylist()) == [0, *range(1, 12), 13]

    def test_the_owners_properties_say_how_many_snapshots_stay(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(target, 12)
        self.keep(target, monkeypatch, timedelta())
        with target.table.transaction() as transaction:
            transaction.set_properties({"history.expire.min-snapshots-to-keep": "5"})
        assert target.sink().upkeep(self.turn())["snapshots_expired"] == 8
        assert len(target.table.snapshots()) == 5
        target.sink().write(words(("b", 1)), attempt(time=batch(13)))
        with target.table.transaction() as transaction:
            transaction.set_properties({"history.expire.max-snapshot-age-ms": "60000"})
        assert "snapshots_expired" not in target.sink().upkeep(self.turn())

    def test_a_table_that_the_sink_does_not_write_is_left_alone(self, target: IcebergTarget) -> None:
        self.written(target, 12)
        with target.table.update_schema() as update:
            update.add_column(("f",), DoubleType())
        with target.table.update_spec() as spec:
            spec.add_identity("f")
        assert target.sink().upkeep(self.turn()) == {}

    def test_a_struct_whose_field_was_renamed_keeps_its_values(self, target: IcebergTarget) -> None:
        """Check that files with the old name stay as they are: Arrow fills the new one with nulls."""
        self.written(target, 1)
        table = target.table
        with table.update_schema() as update:
            update.add_column(("a",), StructType(NestedField(100, "old", StringType(), required=False)))

        def append(name: str) -> None:
            table.append(pa.table({"n": [1], "a": pa.array([{name: "x"}], pa.struct([(name, pa.string())]))}))

        for _ in range(4):
            append("old")
        with table.update_schema() as update:
            update.rename_column(("a", "old"), "new")
        for _ in range(8):
            append("new")
        assert target.sink().upkeep(self.turn()) == {"files_merged": 9, "files_made": 1}
        found = table.refresh().scan().to_arrow()["a"].to_pylist()
        assert sorted(map(str, found)) == ["None", *[str({"new": "x"})] * 12]

    def test_a_commit_and_a_turn_that_expire_the_same_snapshots_both_keep_the_tokens(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(target, 20)
        turn = replace(self.turn(), oldest_attempt=datetime(2000, 1, 1, tzinfo=UTC))
        real = expiry.shorten

        def after_a_turn(*arguments: Any) -> None:  # noqa: ANN401
            real(*arguments)
            monkeypatch.setattr("forebay_contrib.iceberg.sink.shorten", real)
            monkeypatch.setattr(upkeep, "_WORTH", 1)
            assert upkeep._forgotten(target.table, turn)

        monkeypatch.setattr("forebay_contrib.iceberg.sink.shorten", after_a_turn)
        target.sink().write(words(("a", 20)), attempt(time=batch(20)))
        assert target.rows() == [("a", number) for number in range(21)]
        assert target.sink().committed(attempt(2, time=batch(0))) is not None

    def test_a_turn_forgets_no_token_of_a_commit_that_comes_first(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(target, 15)
        table = target.table
        self.written(target, 16, begin=15)
        before = tokens_in(target.table)
        monkeypatch.setattr(upkeep, "_WORTH", 1)
        turn = replace(self.turn(), oldest_attempt=datetime(2000, 1, 1, tzinfo=UTC))
        assert upkeep._forgotten(table, turn) is None
        assert tokens_in(target.table) == before != {}

    def test_an_attempt_from_before_what_the_table_remembers_is_refused_whatever_the_clocks_of_hosts(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check attempts that began, by the driver log's clock, after a token's time on a host whose clock is late."""
        self.written(target, 12)
        now = datetime.now(UTC)
        self.keep(target, monkeypatch, timedelta())
        monkeypatch.setattr(upkeep, "KEPT", timedelta(minutes=-9))
        monkeypatch.setattr(upkeep, "SKEW", timedelta(minutes=8))
        target.sink().upkeep(replace(self.turn(), oldest_attempt=now + timedelta(hours=1)))
        assert not tokens_in(target.table)
        late = replace(attempt(time=batch(0)), began_at=now + timedelta(minutes=7))
        with pytest.raises(AttemptOutdatedError):
            target.sink().write(words(("late", 1)), late)
        # Its files may be deleted, also if the table has a token of the batch.
        self.written(target, 1, begin=12)
        assert target.sink().committed(attempt(2, time=batch(12))) is not None
        with pytest.raises(AttemptOutdatedError):
            target.sink().write(words(("late", 1)), replace(late, attempt=2, batch_time=batch(12)))
        target.sink().write(words(("new", 0)), replace(late, began_at=now + timedelta(minutes=10)))
        assert target.rows() == [*(("a", number) for number in range(1, 13)), ("new", 0)]

    def test_nothing_is_deleted_where_another_table_lies_too(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check a table of the same name in another catalog, whose tables are below the same warehouse."""
        self.written(target, 12)
        catalog = {**target.catalog, "uri": f"sqlite:///{target.folder}/other.db"}
        other = IcebergTarget(target.folder, catalog)
        self.written(other, 3)
        assert target.table.location() == other.table.location()
        self.keep(target, monkeypatch, timedelta())
        for _ in range(3):
            assert "files_deleted" not in target.sink().upkeep(self.turn())
        assert other.rows() == [("a", number) for number in range(3)]

    def test_a_new_table_needs_a_warehouse(self, target: IcebergTarget) -> None:
        for warehouse in ({}, {"warehouse": "wh"}):
            catalog = {"type": "sql", "uri": f"sqlite:///{target.folder}/other.db", **warehouse}
            sink = IcebergTarget(target.folder, catalog).sink()
            checked = sink.check_target()
            assert checked.health == "failed"
            assert "a SQL catalog makes new tables below it: write file:///DIRECTORY" in checked.found
            with pytest.raises(SinkError, match="catalog\\['warehouse'\\] is"):
                sink.write(words(("a", 1)), attempt())

    def test_a_file_of_others_beside_the_metadata_stays(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(target, 12)
        hint = Path(urlsplit(target.table.location()).path) / "metadata/version-hint.text"
        hint.write_text("1")
        self.keep(target, monkeypatch, timedelta())
        done = [target.sink().upkeep(self.turn()) for _ in range(3)]
        assert sum(figures.get("files_deleted", 0) for figures in done) > 0
        assert hint.exists()


def test_snapshots_expire_in_their_order_whatever_the_clocks_of_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_SNAPSHOTS", 1)
    times = {1: -60, 2: 300, 3: -50, 4: -40}
    snapshots = [
        SimpleNamespace(
            sequence_number=number,
            timestamp_ms=expiry.milliseconds(datetime.now(UTC) + timedelta(seconds=seconds)),
        )
        for number, seconds in times.items()
    ]
    table = SimpleNamespace(snapshots=lambda: snapshots, properties={})
    assert expiry.expirable(cast("Any", table)) == snapshots[:1]
