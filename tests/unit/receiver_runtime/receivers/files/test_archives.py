"""Check archives of several files: each file's lines come once, and a bad file is put aside without its neighbours."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.receivers.files.archives import Archive, Member
from receiver_runtime.receivers.files.folders import LocalFolder
from tests.support.searches import examples
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.test_arriving import arriving, put
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Files = Sequence[tuple[str, bytes]]


def zipped(files: Files) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("a directory")
        for name, data in files:
            archive.writestr(name, data)
    return made.getvalue()


def tarred(files: Files) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        archive.addfile(_of_type(tarfile.SYMTYPE))
    return made.getvalue()


def _of_type(kind: bytes) -> tarfile.TarInfo:
    made = tarfile.TarInfo("a link")
    made.type, made.linkname = kind, "/etc/passwd"
    return made


PACK: dict[str, Callable[[Files], bytes]] = {
    "zip": zipped,
    "tar": tarred,
    "tar.gz": lambda files: gzip.compress(tarred(files)),
    "tar.bz2": lambda files: bz2.compress(tarred(files)),
    "tar.xz": lambda files: lzma.compress(tarred(files)),
    "tar.zst": lambda files: pa.compress(tarred(files), "zstd", asbytes=True),
}
FILES = (
    ("one.log", b"one\ntwo\n"),
    ("empty.log", b""),
    ("deep/two.log", "\ufeffthree\nno newline".encode()),
    ("utf16.log", "four\n".encode("utf-16")),
)
LINES = [("one.log", 0, "one"), ("one.log", 4, "two"), ("deep/two.log", 3, "three"), ("deep/two.log", 9, "no newline")]
LINES += [("utf16.log", 2, "four")]


def found(log: Log) -> list[tuple[str, int, Any]]:
    return [(row["path"].partition("/archive/")[2], row["offset"], row["value"]) for row in log.rows]


@pytest.mark.parametrize("kind", PACK)
def test_each_files_lines_have_its_name_and_its_offsets(tmp_path: Path, kind: str) -> None:
    log = Log()
    put(tmp_path / "archive", data=PACK[kind](FILES), days=1)
    put(tmp_path / "later.log", "five", days=2)
    reader = arriving(tmp_path, log)
    reader.run(10)
    assert found(log)[:-1] == LINES
    assert log.values[-1] == "five"
    assert (reader.supervisor.errors, reader.supervisor.letters, log.lost()) == ([], [], 0)
    again = arriving(tmp_path, log)
    again.run()
    assert len(log.values) == len(LINES) + 1
    assert [at for name, at in log.positions.items() if "archive" in name] == [
        Position(1, sum(len(data) + 1 for _, data in FILES))
    ]


@pytest.mark.parametrize("kind", PACK)
def test_an_archive_is_read_in_pieces_and_continued_from_the_logs_position(tmp_path: Path, kind: str) -> None:
    log = Log()
    files = [(f"{name}.log", b"".join(b"%s %d\n" % (name.encode(), n) for n in range(8_000))) for name in "abc"]
    put(tmp_path / "archive", data=PACK[kind](files))
    settings = {"max_block_bytes": "64KiB"}
    for steps in (1, 2, 3, 4):
        reader = arriving(tmp_path, log, settings=settings)
        for _ in range(steps):
            reader.step()
    assert 0 < len(log.values) < 24_000
    arriving(tmp_path, log, settings=settings).run(100)
    assert log.values == [f"{name} {n}" for name in "abc" for n in range(8_000)]


def _broken_zip() -> bytes:
    data = bytearray(zipped([("good.log", b"good\n"), ("bad.log", bytes(range(256)) * 8), ("better.log", b"better\n")]))
    at = data.index(b"bad.log") + len("bad.log")
    data[at + 20] ^= 0xFF
    return bytes(data)


def _broken_entry(method: int, *, behind: int) -> bytes:
    """Return an archive of three entries, the second compressed by `method` and broken so far behind its name."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("good.log", "good\n")
        archive.writestr("bad.log", bytes(range(256)) * 8, method)
        archive.writestr("better.log", "better\n")
    data = bytearray(made.getvalue())
    at = data.index(b"bad.log") + len("bad.log") + behind
    data[at : at + 40] = b"\xff" * 40
    return bytes(data)


def _encrypted_zip() -> bytes:
    data = bytearray(zipped([("good.log", b"good\n"), ("bad.log", b"bad\n"), ("better.log", b"better\n")]))
    # The flag of encryption, in the entry and in the directory.
    data[data.index(b"bad.log") - 30 + 6] |= 1
    data[data.rindex(b"bad.log") - 46 + 8] |= 1
    return bytes(data)


def _with(bad: bytes) -> Files:
    return [("good.log", b"good\n"), ("bad.log", bad), ("better.log", b"better\n")]


BAD: dict[str, Callable[[], bytes]] = {
    "damaged": _broken_zip,
    "damaged, by lzma": lambda: _broken_entry(zipfile.ZIP_LZMA, behind=12),
    "damaged, by bzip2": lambda: _broken_entry(zipfile.ZIP_BZIP2, behind=40),
    "encrypted": _encrypted_zip,
    "Parquet": lambda: zipped(_with(b"PAR1\x15 and more")),
    "compressed": lambda: PACK["tar.gz"](_with(gzip.compress(b"one\n"))),
    "archive": lambda: tarred(_with(tarred(FILES))),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_put_aside_and_counted_and_its_neighbours_are_read(tmp_path: Path, what: str) -> None:
    log = Log()
    put(tmp_path / "archive", data=BAD[what]())
    reader = arriving(tmp_path, log)
    reader.run(10)
    assert [(path, value) for path, _, value in found(log) if path != "bad.log"] == [
        ("good.log", "good"),
        ("better.log", "better"),
    ]
    [error] = reader.supervisor.errors
    assert "archive/bad.log is not read, and the other files in the archive are: it " in error
    assert log.lost() > 0
    again = arriving(tmp_path, log)
    again.run()
    assert (len(found(log)), again.supervisor.errors) == (2, [])


def test_many_small_files_make_few_blocks(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "archive", data=gzip.compress(tarred([(f"{n}.log", b"%d\n" % n) for n in range(500)])))
    reader = arriving(tmp_path, log)
    reader.run(5)
    assert log.values == [str(n) for n in range(500)]
    assert reader.supervisor.blocks <= 2


def test_an_archive_that_can_not_be_read_on_keeps_what_was_read_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    put(tmp_path / "archive", data=zipped([(f"{n}.log", b"%d\n" % n) for n in range(9)]))
    real, calls = Archive.at, 0

    def at(self: Archive, position: int) -> Member | None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise OSError("the network is down")
        return real(self, position)

    monkeypatch.setattr(Archive, "at", at)
    reader = arriving(tmp_path, log)
    for _ in range(60):
        reader.step(60.0)
    assert (log.values, log.lost()) == ([str(n) for n in range(9)], 0)
    assert len(reader.supervisor.errors) <= 1


def test_damage_between_the_files_is_an_error_and_no_end(tmp_path: Path) -> None:
    whole = tarred([("a.log", b"one\n"), ("b.log", b"two\n")])
    header = bytearray(whole)
    header[1024] ^= 0xFF
    for number, data in enumerate((bytes(header), whole[:1024], whole[:1100], whole + tarred(FILES))):
        log = Log()
        folder = tmp_path / str(number)
        folder.mkdir()
        put(folder / "archive", data=data)
        reader = arriving(folder, log)
        reader.run(5)
        assert "one" in log.values
        [error] = reader.supervisor.errors
        assert "archive can't be read, it is tried again" in error


@pytest.mark.parametrize("names", ["a", "ab"])
def test_what_is_before_or_behind_a_zip_archive_is_an_error_and_not_passed_over(tmp_path: Path, names: str) -> None:
    whole = zipped([(f"{name}.log", b"%s\n" % name.encode()) for name in names])
    commented = io.BytesIO(whole)
    with zipfile.ZipFile(commented, "a") as archive:
        archive.comment = b"PK\6\5 a comment"
    for number, (data, said) in enumerate(
        [
            (whole, None),
            (commented.getvalue(), None),
            (whole + bytes(1000), None),
            (whole + b"x", "something stands behind its end"),
            (commented.getvalue() + b"one more line\n", "something stands behind its end"),
            (zipped([("lost.log", b"lost\n")]) + whole, "it begins with something that is not in its directory"),
        ]
    ):
        log = Log()
        folder = tmp_path / str(number)
        folder.mkdir()
        put(folder / "archive", data=data)
        reader = arriving(folder, log)
        reader.run(5)
        # The only file of an archive is read when all of it is known to be good.
        assert log.values == ([] if said and len(names) == 1 else list(names))
        assert [said in error for error in reader.supervisor.errors if said] == [True] * bool(said)
        assert bool(reader.supervisor.errors) is (said is not None)


def test_an_archive_that_is_still_being_written_is_not_damaged(tmp_path: Path) -> None:
    """Check it where a file of it reads as damaged, and the archive has changed since it was found."""
    log = Log()
    put(tmp_path / "archive", data=_broken_zip())
    reader = arriving(tmp_path, log)
    real = LocalFolder.open_raw

    def open_raw(self: LocalFolder, path: str) -> Any:  # noqa: ANN401
        opened = real(self, path)
        (tmp_path / "archive").touch()
        return opened

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalFolder, "open_raw", open_raw)
        reader.step()
    assert log.lost() == 0
    assert not any("bad.log is not read" in error for error in reader.supervisor.errors)


def test_a_header_of_any_size_is_not_read_into_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2**33
    put(tmp_path / "archive", data=info.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096)
    reader = arriving(tmp_path, Log())
    reader.run(3)
    assert "a header in it has 8589934592 bytes" in reader.supervisor.errors[0]


@pytest.mark.search
@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(st.text("ab\0é", max_size=6), max_size=4), min_size=2, max_size=4),
    st.sampled_from(sorted(PACK)),
    st.integers(1, 20),
)
def test_any_files_come_out_line_by_line(files: list[list[str]], kind: str, times: int) -> None:
    """Check that each file has the lines that it has outside of an archive, however it is cut into blocks."""
    contents = [
        (f"{number}.log", "".join(f"{line}\n" for line in lines).encode()) for number, lines in enumerate(files)
    ]
    with tempfile.TemporaryDirectory() as folder:
        packed, plain = Log(), Log()
        for name, data in contents:
            put(Path(folder) / "plain" / name, data=data)
        put(Path(folder) / "packed" / "archive", data=PACK[kind](contents))
        for log, root in ((packed, "packed"), (plain, "plain")):
            arriving(Path(folder) / root, log, settings={"max_block_bytes": "1KiB"}).run(300)
    assert [(row["value"], row["offset"]) for row in packed.rows] == [
        (row["value"], row["offset"]) for row in plain.rows
    ]
