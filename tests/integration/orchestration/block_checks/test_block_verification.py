"""Test `forebay blocks verify` and `repair`: each kind of damage is found by name, and nothing is deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from receiver_runtime.block_store.frames.frame import encode_frame
from receiver_runtime.block_store.stores.identity import identity_of, make_identity
from receiver_runtime.block_store.stores.local import ASIDE, LocalBlockStore
from tests.support.driver_log.log import claim_anew, make_log, new_segment, seal
from tests.support.machine.mounts import Mount
from tests.support.receivers.frame_fields import block_fields
from tracker_store.blocks.block_stores import attach_block_store
from tracker_store.blocks.blocks import BlockHandle, NewBlock, add_blocks
from tracker_store.blocks.segments import open_segment
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

PATH = "receiver/one.segment"


@pytest.fixture
def store(engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBlockStore:
    """Return a store with one sealed segment of three registered blocks."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", str(tmp_path))
    made = LocalBlockStore(tmp_path)
    with connect(engine) as connection:
        [receiver] = make_log(connection).receiver_ids
        claimed = claim_anew(connection, receiver)
        segment_id = new_segment(connection, claimed, PATH)
        writer = made.create_segment(PATH)
        offset = 0
        for sequence in range(claimed.sequence + 1, claimed.sequence + 4):
            frame = encode_frame(
                b"payload",
                block_fields(receiver_id=receiver, epoch=claimed.epoch, sequence=sequence, registered_through=0),
            )
            writer.append(frame)
            handle = BlockHandle(segment_id, offset, frame.length, frame.crc32c)
            add_blocks(connection, [NewBlock(receiver, claimed.epoch, sequence, 1, frame.length, handle)])
            offset += frame.length
        writer.sync()
        writer.close()
        seal(connection, segment_id, offset)
    return made


def run(command: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["blocks", command, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_an_intact_store_is_reported_as_intact(store: LocalBlockStore) -> None:
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
    # Blocks need the segment, so its row stays and the loss stays visible.
    code, repaired = run("repair")
    assert (code, repaired["forgotten"]) == (1, [])


def test_a_file_without_a_row_is_moved_aside_and_kept(store: LocalBlockStore) -> None:
    stray = store.root / "receiver" / "stray.segment"
    stray.write_bytes(b"somebody's")
    assert run("verify")[1]["orphans"] == ["receiver/stray.segment"]
    code, repaired = run("repair")
    assert (code, repaired["moved"]) == (0, [["receiver/stray.segment", f"{ASIDE}/receiver/stray.segment"]])
    assert (store.root / ASIDE / "receiver" / "stray.segment").read_bytes() == b"somebody's"
    assert run("verify") == (0, run("verify")[1])


def test_an_unneeded_segment_without_a_file_is_forgotten(store: LocalBlockStore, connection: sa.Connection) -> None:
    segment_id = open_segment(connection, receiver_id=1, epoch=1, path="gone", source_rule="not_sent_again")
    assert run("verify")[0] == 0, "an open segment's row comes before its file"
    seal(connection, segment_id, 9)
    assert run("verify")[1]["missing"] == ["gone"]
    code, repaired = run("repair")
    assert (code, repaired["forgotten"]) == (0, ["gone"])
    paths = connection.execute(sa.text("SELECT path FROM forebay.log_segments")).scalars()
    assert list(paths) == [PATH]


def test_the_text_output_says_what_and_where(store: LocalBlockStore) -> None:
    (store.root / "stray").write_bytes(b"x")
    result = CliRunner().invoke(app, ["blocks", "verify"])
    assert result.exit_code == 1
    assert "3 blocks read" in result.stdout
    assert "1 files that no row names" in result.stdout


@pytest.fixture
def other(store: LocalBlockStore, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a second replica with nothing in it."""
    root = tmp_path_factory.mktemp("other")
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", f"{store.root},{root}")
    return root


def test_blocks_missing_in_a_replica_are_reported_and_copied_to_it(store: LocalBlockStore, other: Path) -> None:
    code, report = run("verify")
    assert (code, report["intact"], report["lost"], report["missing"]) == (1, False, [], [])
    assert report["replicas"] == [
        {"name": str(store.root), "lacking": {}, "unreachable": ""},
        {"name": str(other), "lacking": {PATH: 3}, "unreachable": ""},
    ]
    code, repaired = run("repair")
    assert (code, repaired["copied"], repaired["not_copied"]) == (0, [[str(other), PATH]], [])
    assert (other / PATH).read_bytes() == (store.root / PATH).read_bytes()
    assert run("verify")[0] == 0


def test_two_replicas_damaged_in_different_places_repair_each_other(store: LocalBlockStore, other: Path) -> None:
    whole = (store.root / PATH).read_bytes()
    (other / PATH).parent.mkdir()
    frame = len(whole) // 3
    for root, at in ((store.root, frame - 1), (other, len(whole) - 1)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (root / PATH).write_bytes(damaged)
    code, report = run("verify")
    assert (code, report["lost"]) == (1, [])
    assert [replica["lacking"] for replica in report["replicas"]] == [{PATH: 1}, {PATH: 1}]
    code, repaired = run("repair")
    assert (code, len(repaired["copied"])) == (0, 2)
    assert [(root / PATH).read_bytes() for root in (store.root, other)] == [whole, whole]
    # Nothing is deleted: the damaged files are moved aside.
    assert (other / ASIDE / PATH).read_bytes()[-1] != whole[-1]
    assert run("verify")[0] == 0


def test_a_block_that_no_replica_has_is_reported_lost_with_each_replicas_problem(
    store: LocalBlockStore, other: Path
) -> None:
    (store.root / PATH).unlink()
    code, report = run("verify")
    assert (code, len(report["lost"]), report["missing"]) == (1, 3, [PATH])
    assert str(store.root) in report["lost"][0]["problem"]
    assert str(other) in report["lost"][0]["problem"]
    assert run("repair")[0] == 1


def test_an_unreachable_replica_is_named(store: LocalBlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "FOREBAY_BLOCK_STORE", f"{store.root},s3://a:b@bucket/x?endpoint_override=127.0.0.1:9&scheme=http&region=x"
    )
    code, report = run("verify")
    assert (code, report["lost"], report["intact"]) == (1, [], False)
    assert "can't be reached" in report["replicas"][1]["unreachable"]
    result = CliRunner().invoke(app, ["blocks", "repair"])
    assert result.exit_code == 1
    assert "replica s3://bucket/x can't be reached" in result.stdout


def test_a_segment_being_written_is_not_copied_yet(store: LocalBlockStore, other: Path, engine: sa.Engine) -> None:
    with connect(engine) as connection:
        connection.execute(sa.text("UPDATE forebay.log_segments SET state = 'OPEN', length = NULL, sealed_at = NULL"))
    code, repaired = run("repair")
    assert (code, repaired["copied"]) == (1, [])
    assert repaired["not_copied"] == [[str(other), PATH, "it is being written, or being deleted: repair again later"]]
    assert not (other / PATH).exists()


def blocks_command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["blocks", *words])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_a_store_that_is_not_mounted_is_reported_and_not_taken_for_empty(
    engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    mount = Mount(tmp_path / "blocks")
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", str(mount.root))
    with connect(engine) as connection:
        identity = make_identity(LocalBlockStore(mount.root))
        attach_block_store(connection, host="here", roots={identity: str(mount.root)})
    assert blocks_command(command)[0] == 0
    mount.unmount()
    code, said = blocks_command(command)
    assert code == 1
    assert f"the block store {mount.root} can't be reached (not mounted?" in said
    assert mount.below == []


@pytest.fixture
def emptied_root(engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root that is not there, and that the host `here` knows as the store directory-1."""
    root = tmp_path / "blocks"
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    with connect(engine) as connection:
        attach_block_store(connection, host="here", roots={"directory-1": str(root)})
    return root


def test_adopting_a_root_gives_it_the_identity_that_its_host_knows(emptied_root: Path) -> None:
    root = emptied_root
    code, said = blocks_command("adopt", str(root), "--yes", "--host", "there")
    assert (code, "host here has a store by this name" in said) == (1, True), "two hosts may have two by one name"
    assert not root.exists()
    code, said = blocks_command("adopt", str(root), "--host", "here")
    assert code == 1, "it was not confirmed"
    assert not root.exists()
    assert blocks_command("adopt", str(root), "--yes", "--host", "here") == (0, f"{root} is the store directory-1 now.")
    assert identity_of(LocalBlockStore(root)) == "directory-1"
    code, said = blocks_command("adopt", str(root), "--yes", "--host", "here")
    assert (code, said) == (0, f"{root} is the store directory-1 already.")


def test_an_adoption_is_said_as_json(emptied_root: Path) -> None:
    root = emptied_root
    arguments = ["blocks", "adopt", str(root), "--yes", "--json", "--host"]
    refused = CliRunner().invoke(app, [*arguments, "there"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    for adopted in (True, False):
        done = CliRunner().invoke(app, [*arguments, "here"])
        assert done.exit_code == 0
        assert json.loads(done.stdout) == {"root": str(root), "store": "directory-1", "adopted": adopted}
        assert "is the store directory-1" in done.stderr


def test_adopting_an_unknown_root_makes_a_new_store_and_leaves_another_store_alone(
    engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    new, taken = tmp_path / "new", tmp_path / "taken"
    with connect(engine) as connection:
        attach_block_store(connection, host="here", roots={"directory-1": str(taken)})
    assert blocks_command("adopt", str(new), "--yes")[0] == 0
    assert identity_of(LocalBlockStore(new)) not in (None, "directory-1")
    other = make_identity(LocalBlockStore(taken))
    code, said = blocks_command("adopt", str(taken), "--yes", "--host", "here")
    assert code == 1
    assert "forebay agents forget here" in said
    assert identity_of(LocalBlockStore(taken)) == other
