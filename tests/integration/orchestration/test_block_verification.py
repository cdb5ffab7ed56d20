"""`forebay blocks verify` and `repair`: each kind of damage is found by name; nothing is deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from receiver_runtime.block_store.frame import FrameKind, SourceRule, encode_frame
from receiver_runtime.block_store.local import ASIDE, LocalBlockStore
from tests.driver_log import claim_anew, make_log
from tracker_store.blocks import BlockHandle, NewBlock, add_blocks
from tracker_store.engine import connect
from tracker_store.segments import open_segment, seal_segment

if TYPE_CHECKING:
    from pathlib import Path

PATH = "receiver/one.segment"


@pytest.fixture
def store(engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBlockStore:
    """A store with one sealed segment of three registered blocks."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", str(tmp_path))
    made = LocalBlockStore(tmp_path)
    with connect(engine) as connection:
        [receiver] = make_log(connection).receiver_ids
        claimed = claim_anew(connection, receiver)
        segment_id = open_segment(
            connection, receiver_id=receiver, epoch=claimed.epoch, path=PATH, source_rule="not_sent_again"
        )
        writer = made.create_segment(PATH)
        offset = 0
        for sequence in range(claimed.sequence + 1, claimed.sequence + 4):
            frame = encode_frame(
                b"payload",
                kind=FrameKind.BLOCK,
                source_rule=SourceRule.NOT_SENT_AGAIN,
                receiver_id=receiver,
                epoch=claimed.epoch,
                sequence=sequence,
                registered_through=0,
                records=1,
            )
            writer.append(frame)
            handle = BlockHandle(segment_id, offset, frame.length, frame.crc32c)
            add_blocks(connection, [NewBlock(receiver, claimed.epoch, sequence, 1, frame.length, handle)])
            offset += frame.length
        writer.sync()
        writer.close()
        seal_segment(connection, segment_id=segment_id, length=offset)
    return made


def run(command: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["blocks", command, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_a_whole_store_is_said_to_be_whole(store: LocalBlockStore) -> None:
    code, report = run("verify")
    assert (code, report["intact"], report["blocks"]) == (0, True, 3)


def test_a_flipped_bit_names_the_block(store: LocalBlockStore) -> None:
    path = store.root / PATH
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, report = run("verify")
    assert code == 1
    [lost] = report["lost"]
    assert (lost["sequence"], lost["path"]) == (3, PATH)
    assert "corrupt" in lost["problem"]


def test_a_missing_file_names_the_segment_and_its_blocks(store: LocalBlockStore) -> None:
    (store.root / PATH).unlink()
    code, report = run("verify")
    assert code == 1
    assert report["missing"] == [PATH]
    assert len(report["lost"]) == 3
    # Blocks need it, so its row stays and the loss stays visible.
    code, repaired = run("repair")
    assert (code, repaired["forgotten"]) == (1, [])


def test_a_file_that_no_row_names_is_moved_aside_and_kept(store: LocalBlockStore) -> None:
    stray = store.root / "receiver" / "stray.segment"
    stray.write_bytes(b"somebody's")
    assert run("verify")[1]["orphans"] == ["receiver/stray.segment"]
    code, repaired = run("repair")
    assert (code, repaired["moved"]) == (0, [["receiver/stray.segment", f"{ASIDE}/receiver/stray.segment"]])
    assert (store.root / ASIDE / "receiver" / "stray.segment").read_bytes() == b"somebody's"
    assert run("verify") == (0, run("verify")[1])


def test_a_segment_that_nothing_needs_and_that_has_no_file_is_forgotten(
    store: LocalBlockStore, engine: sa.Engine
) -> None:
    with connect(engine) as connection:
        segment_id = open_segment(connection, receiver_id=1, epoch=1, path="gone", source_rule="not_sent_again")
        assert run("verify")[0] == 0, "an open segment's row comes before its file"
        seal_segment(connection, segment_id=segment_id, length=0)
        assert run("verify")[1]["missing"] == ["gone"]
        code, repaired = run("repair")
        assert (code, repaired["forgotten"]) == (0, ["gone"])
        paths = connection.execute(sa.text("SELECT path FROM forebay.log_segments")).scalars()
        assert list(paths) == [PATH]


def test_for_people_it_says_what_and_where(store: LocalBlockStore) -> None:
    (store.root / "stray").write_bytes(b"x")
    result = CliRunner().invoke(app, ["blocks", "verify"])
    assert result.exit_code == 1
    assert "3 blocks read" in result.stdout
    assert "1 files that no row names" in result.stdout
