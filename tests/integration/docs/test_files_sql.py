"""Test the page on files: its first example in a real receiver, and what its statements show then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from receiver_runtime.receivers.files.declaration import FollowedFiles
from tests.conformance.source_rig import SourceRig
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "sources" / "files.md").read_text(encoding="utf-8")
STATEMENTS = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_its_example_reads_and_its_statements_show_how_far(database_url: str, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0], names)
    declared = names["logs"].source  # type: ignore[attr-defined]
    root = tmp_path / "app"
    root.mkdir()
    source = FollowedFiles(path=declared.path.replace("/var/log/app", str(root)), poll_interval="100ms")
    assert source.path == f"{root}/*.log*"
    (root / "app.log").write_text("one\ntwo\n")
    rig = SourceRig.make(database_url, tmp_path / "rig", source, stream="logs")
    try:
        process = rig.start()
        eventually(lambda: rig.registered() == 2, "two lines")
        inode = (root / "app.log").stat().st_ino
        (root / "app.log").write_text("")
        eventually(lambda: rig.said("was truncated"), "the event")
        stop(process)
        progress, events = (list(rows) for rows in _run(rig))
    finally:
        rig.close()
        print(rig.logs()[-6000:])  # noqa: T201  shown if the test fails
    [row] = progress
    assert f"/{inode:x}/4-" in row.file
    assert (row.generation, row.position, row.lost_bytes) == (0, 8, 0)
    assert ["app.log was truncated" in row.message for row in events] == [True]


def _run(rig: SourceRig) -> Iterator[list[sa.Row[tuple[object, ...]]]]:
    assert len(STATEMENTS) == 2
    with connect(rig.engine) as connection:
        for statement in STATEMENTS:
            yield list(connection.execute(sa.text(statement)))
