"""Run the suite of upkeep on an Iceberg table."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from forebay_contrib.iceberg import upkeep
from forebay_contrib.iceberg.tests.iceberg_target import IcebergTarget
from orchestration.declarations.sink import AttemptOutdatedError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt
from tests.support.sinks.upkeep_suite import UpkeepSuite, batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class TestIcebergUpkeep(UpkeepSuite):
    @pytest.fixture(autouse=True)
    def _catalog(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._environment = monkeypatch

    def new_target(self, folder: Path) -> IcebergTarget:
        self._environment.setenv("CATALOG_URI", f"sqlite:///{folder}/catalog.db")
        return IcebergTarget(folder)

    def data_files(self, target: Any) -> int:  # noqa: ANN401
        return len(list(target.table.scan().plan_files()))

    def sizes(self, target: Any) -> Mapping[str, int]:  # noqa: ANN401
        folder = Path(urlsplit(target.table.location()).path)
        return {str(file): file.stat().st_size for file in folder.rglob("*") if file.is_file()}

    def keep(self, target: Any, monkeypatch: pytest.MonkeyPatch, kept: timedelta) -> None:  # noqa: ANN401
        monkeypatch.setattr(upkeep, "KEPT", kept)
        monkeypatch.setattr(upkeep, "SKEW", timedelta())
        if not kept:
            monkeypatch.setattr(upkeep, "_SNAPSHOTS", 1)
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

    def test_a_table_with_a_tag_keeps_its_snapshots(
        self, target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(target, 12)
        table = target.table
        table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "first").commit()
        self.keep(target, monkeypatch, timedelta())
        assert target.sink().upkeep(self.turn()) == {"files_merged": 12, "files_made": 1}
        assert len(target.table.snapshots()) == 13

    def test_commits_expire_snapshots_by_themselves_and_keep_their_tokens(self, target: IcebergTarget) -> None:
        rows = self.written(target, 45)
        assert len(target.table.snapshots()) < 2 * upkeep._SNAPSHOTS
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

    def test_the_snapshot_before_a_replay_stays_for_its_readers(self, target: IcebergTarget) -> None:
        self.written(target, 3)
        before = target.table.current_snapshot()
        assert before is not None
        target.sink().write(words(("new", 0)), attempt(2, time=batch(0)))
        for number in range(3, 43):
            target.sink().write(words(("a", number), parts=1), attempt(time=batch(number)))
        assert before.snapshot_id in {snapshot.snapshot_id for snapshot in target.table.snapshots()}
        target.sink().upkeep(self.turn())
        old = target.table.scan(snapshot_id=before.snapshot_id).to_arrow()
        assert sorted(old["n"].to_pylist()) == [0, 1, 2]

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
