"""Check encrypted frames: only the right key opens them, and only under the header that they were written with."""

from __future__ import annotations

import base64
import itertools
import os
import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_path.block_handler import BlockHandler, DeadLetter
from receiver_runtime.block_store.frames.encryption import (
    KEY_BYTES,
    OVERHEAD_BYTES,
    BlockKey,
    BlockKeys,
    FrameEncryptor,
    check_block_key,
    key_id_of,
)
from receiver_runtime.block_store.frames.errors import (
    BlockAlteredError,
    BlockCorruptError,
    BlockKeyError,
    InvalidFrameError,
)
from receiver_runtime.block_store.frames.frame import (
    HEADER_LENGTH,
    MAX_PAYLOAD_LENGTH,
    DeadLetterReason,
    FrameFields,
    FrameHeader,
    FrameKind,
    SourceRule,
    decode_header,
    encode_frame,
)
from receiver_runtime.block_store.frames.letter_group import bytes_of_letters
from receiver_runtime.block_store.frames.reading import FrameAt, checked_frame, content_of, letters_of
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from receiver_runtime.block_store.stores.replicated import ReplicatedBlockStore
from receiver_runtime.sources.fields.secret import Secret, SecretError
from tests.support.commands.run_program import run_program
from tests.support.receivers.frame_fields import block_fields
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tests.unit.receiver_runtime.support import MemoryDriverLog, frame, make_log, whole

if TYPE_CHECKING:
    from receiver_runtime.block_store.frames.frame import EncodedFrame
    from receiver_runtime.block_store.stores.interface import BlockStore

ROOT = Path(__file__).resolve().parents[5]
SCHEMA = pa.schema([("value", pa.string())])
WHERE = "receiver-7/9-000001.segment"


@dataclass(frozen=True, slots=True)
class Given:
    """A reference to a key that the test itself holds, or to none."""

    text: str | None
    name: str = "file:/run/secrets/blocks"

    def resolve(self) -> str:
        if self.text is None:
            raise SecretError(f"{self.name}: No such file or directory: put the secret there")
        return self.text

    def __str__(self) -> str:
        return self.name


def new_key(name: str = "file:/run/secrets/blocks") -> Given:
    return Given(base64.b64encode(os.urandom(KEY_BYTES)).decode(), name)


def encryptor(key: Given) -> FrameEncryptor:
    return FrameEncryptor(BlockKey.read(key))


def opened(data: bytes, crc32c: int, *keys: Given) -> bytes:
    """Read a frame's stored bytes as every store does; return what comes out of it."""
    content: bytes = content_of(
        checked_frame(data, WHERE, 0, len(data), crc32c), WHERE, 0, BlockKeys(keys)
    ).to_pybytes()
    return content


def with_checksums(header: FrameHeader, payload: bytes) -> tuple[bytes, int]:
    """Frame stored bytes under another header, with checksums that are right, as an attacker could."""
    plain = encode_frame(
        payload,
        FrameFields(
            kind=header.kind,
            source_rule=header.source_rule,
            receiver_id=header.receiver_id,
            epoch=header.epoch,
            sequence=header.sequence,
            registered_through=header.registered_through,
            records=header.records,
            reason=header.reason,
            part=header.part,
            mark=header.mark,
        ),
    )
    made = bytearray(plain.header)
    made[4] = 2
    made[56:60] = google_crc32c.value(bytes(made[:56])).to_bytes(4, "little")
    crc = google_crc32c.extend(google_crc32c.value(bytes(made[:60])), payload)
    made[60:64] = crc.to_bytes(4, "little")
    return bytes(made) + payload, crc


# -- one frame ---------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=5000), st.integers(1, 4))
def test_what_was_encrypted_comes_out_and_is_nowhere_in_the_frame(payload: bytes, parts: int) -> None:
    key = new_key()
    size = -(-len(payload) // parts)
    pieces = [pa.py_buffer(payload[at : at + size]) for at in range(0, len(payload), size)]
    made = encode_frame(
        pieces, block_fields(source_rule=SourceRule.OFFSETS, epoch=2, sequence=3, records=4), encryptor=encryptor(key)
    )
    data = whole(made)
    header, crc = decode_header(data)
    assert (header.encrypted, header.content_length, made.length) == (True, len(payload), len(data))
    assert header.payload_length == len(payload) + OVERHEAD_BYTES
    assert crc == made.crc32c
    assert opened(data, crc, key) == payload
    assert len(payload) < 8 or payload not in data


def test_the_frame_names_its_key_and_does_not_contain_it() -> None:
    key = new_key()
    made = frame(encryptor=encryptor(key))
    read = BlockKey.read(key)
    assert key_id_of(made.payload) == read.key_id
    assert key.text is not None
    secret = base64.b64decode(key.text)
    assert secret not in whole(made)
    assert read.key_id != secret[:8].hex()
    assert repr(read) == f"BlockKey({read.key_id})"


def test_a_flipped_bit_is_found_without_the_key() -> None:
    made = frame(b"payload of a block", encryptor=encryptor(new_key()))
    for position in range(len(whole(made))):
        data = bytearray(whole(made))
        data[position] ^= 1
        with pytest.raises(BlockCorruptError):
            checked_frame(bytes(data), WHERE, 0, len(data), made.crc32c)


def test_a_bit_that_was_flipped_on_purpose_is_found_by_the_tag() -> None:
    """Check each byte of the payload: an attacker corrects the checksums, which are no secret."""
    key = new_key()
    made = frame(b"payload of a block", encryptor=encryptor(key))
    header, _ = decode_header(made.header)
    stored = made.payload.to_pybytes()
    # The first bytes are the key's id: with another one, the frame is of a key that is not there.
    for position in range(8, len(stored)):
        altered = bytearray(stored)
        altered[position] ^= 1
        data, crc = with_checksums(header, bytes(altered))
        with pytest.raises(BlockAlteredError, match=rf"{WHERE}, offset 0, was altered .*{key_id_of(made.payload)}"):
            opened(data, crc, key)


@pytest.mark.parametrize(
    "change",
    [
        {"receiver_id": 8},
        {"epoch": 10},
        {"sequence": 2},
        {"registered_through": 7},
        {"records": 2},
        {"source_rule": SourceRule.SENT_AGAIN},
        {"kind": FrameKind.DEAD_LETTER, "reason": DeadLetterReason.TRUNCATED},
        {"mark": 7},
    ],
)
def test_a_payload_under_another_header_is_refused(change: dict[str, object]) -> None:
    key = new_key()
    made = frame(encryptor=encryptor(key))
    header, _ = decode_header(made.header)
    data, crc = with_checksums(header, made.payload.to_pybytes())
    assert opened(data, crc, key) == b"payload"
    other: FrameHeader = replace(header, **change)  # type: ignore[arg-type]
    data, crc = with_checksums(other, made.payload.to_pybytes())
    with pytest.raises(BlockAlteredError):
        opened(data, crc, key)


def test_without_its_key_the_error_names_key_and_setting_and_is_neither_corrupt_nor_missing() -> None:
    written, other = new_key(), new_key("env:OTHER")
    made = frame(encryptor=encryptor(written))
    key_id = key_id_of(made.payload)
    for keys, said in (
        ([], "FOREBAY_BLOCK_KEY and FOREBAY_BLOCK_KEYS_FOR_READING are not set"),
        ([other], f"env:OTHER is key {BlockKey.read(other).key_id}"),
        ([Given(None)], "No such file or directory"),
        ([Given("not a key")], "holds no key"),
    ):
        with pytest.raises(BlockKeyError) as raised:
            opened(whole(made), made.crc32c, *keys)
        told = str(raised.value)
        assert raised.value.key_id == key_id
        assert key_id in told
        assert said in told
        assert "name in FOREBAY_BLOCK_KEYS_FOR_READING the key" in told
        assert "\n" not in told
        assert all(key.text is None or key.text not in told for key in keys)


def test_after_a_rotation_old_and_new_and_plain_frames_can_be_read() -> None:
    old, new = new_key("env:OLD"), new_key("env:NEW")
    frames = [
        frame(b"plain"),
        frame(b"by the old key", encryptor=encryptor(old)),
        frame(b"by the new key", encryptor=encryptor(new)),
    ]
    assert [opened(whole(one), one.crc32c, new, old) for one in frames] == [
        b"plain",
        b"by the old key",
        b"by the new key",
    ]
    with pytest.raises(BlockKeyError, match=BlockKey.read(old).key_id):
        opened(whole(frames[1]), frames[1].crc32c, new)


def test_a_reference_is_resolved_only_for_a_frame_that_needs_it() -> None:
    new = new_key()
    gone = Given(None, "env:GONE")
    for made, keys in ((frame(), (gone,)), (frame(encryptor=encryptor(new)), (new, gone))):
        assert opened(whole(made), made.crc32c, *keys) == b"payload"


# -- nonces ------------------------------------------------------------------------------------------------------------


def test_no_nonce_comes_twice_under_one_subkey() -> None:
    key = BlockKey.read(new_key())
    encryptors = [FrameEncryptor(key, subkey_bytes=1000) for _ in range(3)]
    payloads = [
        frame(b"x" * 100, encryptor=one).payload.to_pybytes() for one, _ in itertools.product(encryptors, range(100))
    ]
    prefixes = [payload[8:32] for payload in payloads]
    assert len(set(prefixes)) == len(prefixes)
    # Ten frames of 100 bytes under each subkey of 1000.
    assert len({prefix[:16] for prefix in prefixes}) == 30
    # Even the same content looks different each time.
    assert len({payload[32:] for payload in payloads}) == len(payloads)


def test_a_frame_that_is_larger_than_a_subkey_takes_is_encrypted() -> None:
    key = new_key()
    made = FrameEncryptor(BlockKey.read(key), subkey_bytes=10)
    for _ in range(2):
        one = frame(b"x" * 100, encryptor=made)
        assert opened(whole(one), one.crc32c, key) == b"x" * 100


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "hunter2hunter2",
        "00" * 32,
        "ü" * 44,
        base64.b64encode(b"x" * 16).decode(),
        base64.b64encode(b"x" * 33).decode(),
    ],
)
def test_what_is_no_key_is_refused_with_the_setting_and_without_the_value(text: str) -> None:
    with pytest.raises(BlockKeyError, match=r"FOREBAY_BLOCK_KEY holds no key: .*openssl rand -base64 32") as raised:
        check_block_key(Given(text))
    assert str(text) not in str(raised.value)


def test_a_key_is_read_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    assert key.text is not None
    monkeypatch.setenv("BLOCKS", key.text)
    (tmp_path / "key").write_text(f"{key.text}\n")
    found = {BlockKey.read(Secret(text)).key_id for text in ("env:BLOCKS", f"file:{tmp_path}/key")}
    assert found == {BlockKey.read(key).key_id}
    with pytest.raises(BlockKeyError, match="FOREBAY_BLOCK_KEY: the environment variable GONE is not set"):
        check_block_key(Secret("env:GONE"))


def test_keys_never_travel() -> None:
    key = new_key()
    for one in (BlockKey.read(key), BlockKeys([key]), encryptor(key)):
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(one)


def test_errors_survive_pickling() -> None:
    for error in (BlockKeyError("00", "said"), BlockAlteredError("p", 3, "00")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_package_is_loaded_only_to_encrypt_and_its_absence_is_a_missing_key(tmp_path: Path) -> None:
    """Check what a worker of Spark has that was set up for plain blocks."""
    program = """
import sys
sys.modules["cryptography"] = None
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockKeyError
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.sources.fields.secret import Secret
assert not {"pydantic", "pydantic_core"} & sys.modules.keys()
path, length, crc = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
root, _, name = path.rpartition("/")
store = LocalBlockStore(root, keys=BlockKeys([Secret("env:BLOCKS")]))
assert store.read_frame(name, 0, length, crc).header.encrypted
try:
    store.read_batches(name, 0, length, crc)
except BlockKeyError as error:
    print(error)
"""
    key = new_key()
    made = frame(encryptor=encryptor(key))
    path = tmp_path / "one.segment"
    path.write_bytes(whole(made))
    assert key.text is not None
    done = run_program(
        [sys.executable, "-c", program, str(path), str(made.length), str(made.crc32c)],
        env={**os.environ, "BLOCKS": key.text},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install cryptography" in done.stdout


# -- headers -----------------------------------------------------------------------------------------------------------


def test_a_payload_that_leaves_no_room_for_the_tag_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_PAYLOAD_LENGTH - OVERHEAD_BYTES + 1

    with pytest.raises(InvalidFrameError, match="can't be framed"):
        encode_frame([Huge()], block_fields(source_rule=SourceRule.OFFSETS), encryptor=encryptor(new_key()))


def test_a_header_that_says_encrypted_needs_room_for_salt_and_tag() -> None:
    data, _ = with_checksums(decode_header(frame().header)[0], b"x" * OVERHEAD_BYTES)
    with pytest.raises(InvalidFrameError, match="impossible"):
        decode_header(data)


# -- stores ------------------------------------------------------------------------------------------------------------


def block_frame(key: Given, sequence: int = 1) -> EncodedFrame:
    batch = pa.record_batch([pa.array(["secret words"] * 3)], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    return frame(sink.getvalue().to_pybytes(), sequence=sequence, encryptor=encryptor(key))


def stores(tmp_path: Path, keys: BlockKeys | None, objects: MemoryObjects) -> list[BlockStore]:
    return [
        LocalBlockStore(tmp_path / "one", keys=keys),
        ObjectBlockStore(objects, "s3://bucket/prefix", keys=keys),
        ReplicatedBlockStore([LocalBlockStore(tmp_path / "two"), LocalBlockStore(tmp_path / "three")], keys=keys),
    ]


def test_every_store_reads_with_the_key_and_scans_and_looks_for_losses_without(tmp_path: Path) -> None:
    key, objects = new_key(), MemoryObjects()
    made = block_frame(key)
    for store in stores(tmp_path, None, objects):
        segment = store.create_segment(WHERE)
        segment.append(made)
        segment.sync()
        segment.close()
        [item] = store.scan(WHERE)
        assert isinstance(item, IntactFrame)
        assert item.header.encrypted
        # Not lost, also where a crash may spoil a frame: the key is missing, and not the frame.
        assert store.lost_frames(WHERE, [FrameAt(0, made.length, made.crc32c)]) == set()
        with pytest.raises(BlockKeyError, match=key_id_of(made.payload)):
            store.read_batches(WHERE, 0, made.length, made.crc32c)
    for store in stores(tmp_path, BlockKeys([key]), objects):
        [batch] = store.read_batches(WHERE, 0, made.length, made.crc32c)
        assert batch.column(0).to_pylist() == ["secret words"] * 3
    for path in tmp_path.rglob("*.segment"):
        assert b"secret words" not in path.read_bytes()


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_a_handler_encrypts_blocks_and_dead_letters_and_knows_their_true_size(tmp_path: Path, compression: str) -> None:
    key = new_key()
    store = LocalBlockStore(tmp_path, keys=BlockKeys([key]))
    rows = MemoryDriverLog()
    log = make_log(store, rows)
    handler = BlockHandler(log, SCHEMA, compression=compression, encryptor=encryptor(key))  # type: ignore[arg-type]
    words = [f"secret words {number}" for number in range(20_000)]
    block = handler.store_block([pa.record_batch([pa.array(words)], schema=SCHEMA)], sequence=1)
    letters = [b"secret rest", b"", b"secret more"]
    [row] = handler.store_dead_letters([DeadLetter(DeadLetterReason.TRUNCATED, one) for one in letters], sequence=1)
    large = b"secret" * 20_000
    [single] = handler.store_dead_letters([DeadLetter(DeadLetterReason.TRUNCATED, large)], sequence=1)
    assert block.handle is not None
    path, letters_path = rows.paths.values()
    batches = store.read_batches(path, block.handle.offset, block.handle.length, block.handle.crc32c)
    assert [word for batch in batches for word in batch.column(0).to_pylist()] == words
    letter = row.handle
    stored = store.read_frame(letters_path, letter.offset, letter.length, letter.crc32c)
    assert letters_of(stored, letters_path, letter.offset, BlockKeys([key])) == letters
    # Salvage has no key: it takes both numbers from the header.
    nbytes = bytes_of_letters(stored.header.content_length, stored.header.letters)
    assert (stored.header.letters, nbytes) == (row.letters, row.bytes) == (3, sum(map(len, letters)))
    stored = store.read_frame(letters_path, single.handle.offset, single.handle.length, single.handle.crc32c)
    assert letters_of(stored, letters_path, single.handle.offset, BlockKeys([key])) == [large]
    assert stored.header.content_length == len(large)
    assert HEADER_LENGTH + OVERHEAD_BYTES + len(large) == single.handle.length
    for name in (path, letters_path):
        assert b"secret" not in (tmp_path / name).read_bytes()
