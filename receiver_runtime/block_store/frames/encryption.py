"""Encrypt and decrypt the payloads of frames, with AES-256-GCM; own the keys and the layout of an encrypted payload.

The payload of an encrypted frame is:

====== ====== ============ =================================================================================
offset size   field        meaning
====== ====== ============ =================================================================================
0      8      key id       derived from the key, see ``BlockKey``
8      16     salt         random; with the key it gives the *subkey* that encrypts
24     8      counter      the number of the frame under this subkey, big-endian
32     n      ciphertext   as long as what was encrypted
32+n   16     tag          of the ciphertext, of bytes 0 to 31 and of the header's bytes 0 to 55
====== ====== ============ =================================================================================

So a payload can't be moved to another receiver, epoch, sequence or kind: its tag covers the header.

**No nonce is used twice.** The nonce is the counter, and each ``FrameEncryptor`` (one for each start of a receiver)
counts under a subkey of its own, made from 128 random bits. It takes a new subkey after ``SUBKEY_BYTES``. So there is
no bound on the frames of a key that could be reached: after 2^48 subkeys, the probability that two of them had the
same salt is 2^-33. Under one subkey, 2^40 bytes are far below what GCM allows. An encryptor must not be used on both
sides of a fork.

The frame's checksums cover the encrypted payload, so damage is found without a key.

Keys are given by reference. This module never writes a key to a file, a log line or an error, and a key can't be
pickled. Spark's workers import this module, so it loads ``cryptography`` only when a frame is encrypted or decrypted.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import struct
import threading
from typing import TYPE_CHECKING, NoReturn, Protocol

from receiver_runtime.block_store.frames.errors import BlockAlteredError, BlockKeyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
#: The setting with the reference to the key that encrypts.
KEY_SETTING = "FOREBAY_BLOCK_KEY"
#: The setting with the references to keys that only decrypt.
READING_SETTING = "FOREBAY_BLOCK_KEYS_FOR_READING"
#: How many bytes are encrypted under one subkey: 1 TiB.
SUBKEY_BYTES = 2**40

_KEY_ID_BYTES = 8
_SALT_BYTES = 16
_PREFIX = struct.Struct(f">{_KEY_ID_BYTES}s{_SALT_BYTES}sQ")
_TAG_BYTES = 16
#: How many bytes an encrypted payload has more than what was encrypted.
OVERHEAD_BYTES = _PREFIX.size + _TAG_BYTES
# Labels that keep what is derived from a key apart.
_FOR_ID = b"forebay block key id"
_FOR_SUBKEY = b"forebay block subkey"


class KeyReference(Protocol):
    """Name where a key is (``env:NAME``, ``file:/PATH``). Its text is the name, and never the key."""

    def resolve(self) -> str:
        """Read and return the key as text. Raises ValueError, whose message has no key."""
        ...


class BlockKey:
    """Hold one key, and its ``key_id``: 16 hexadecimal digits, derived by HMAC-SHA-256, which may be shown."""

    __slots__ = ("_secret", "key_id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.key_id = hmac.digest(secret, _FOR_ID, "sha256")[:_KEY_ID_BYTES].hex()

    @classmethod
    def read(cls, reference: KeyReference, *, setting: str = KEY_SETTING) -> BlockKey:
        """Return the key that a reference names.

        Raises:
            BlockKeyError: the reference names nothing that can be read, or no key; names the setting.
        """
        try:
            text = reference.resolve()
        except ValueError as error:
            raise BlockKeyError("", f"{setting}: {error}") from None
        try:
            secret = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if len(secret) != KEY_BYTES:
            raise BlockKeyError(
                "",
                f"{setting} holds no key: write {KEY_BYTES} random bytes in base64 (`openssl rand -base64 "
                f"{KEY_BYTES}`) into {reference}",
            )
        return cls(secret)

    def cipher(self, salt: bytes) -> AESGCM:
        """Return the cipher of the subkey that belongs to a salt. Raises BlockKeyError without `cryptography`."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  see the module
        except ImportError as error:
            raise BlockKeyError(
                self.key_id,
                f"Python's package cryptography, which decrypts blocks, can't be loaded here ({error}): install it on "
                "every host that stores or reads blocks, Spark's workers included: pip install cryptography",
            ) from error
        return AESGCM(hmac.digest(self._secret, _FOR_SUBKEY + salt, "sha256"))

    def __repr__(self) -> str:
        return f"BlockKey({self.key_id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is never pickled: pass its reference on")


def check_block_key(reference: KeyReference | None) -> None:
    """Check that blocks can be encrypted here, if a key is named. Raises BlockKeyError."""
    if reference is not None:
        FrameEncryptor(BlockKey.read(reference))


class FrameEncryptor:
    """Encrypt the payloads of one receiver's start. Safe from any thread. Raises BlockKeyError, see ``BlockKey``."""

    def __init__(self, key: BlockKey, *, subkey_bytes: int = SUBKEY_BYTES) -> None:
        self._key = key
        self._id = bytes.fromhex(key.key_id)
        self._subkey_bytes = subkey_bytes
        self._lock = threading.Lock()
        self._new_subkey()

    def encrypt(self, parts: Sequence[pa.Buffer], header: bytes) -> list[pa.Buffer]:
        """Return the encrypted payload, in parts: ``OVERHEAD_BYTES`` longer in all.

        Args:
            parts: the payload; one part is not copied before it is encrypted.
            header: the bytes of the frame's header that the tag covers.
        """
        import pyarrow as pa  # noqa: PLC0415  commands that only check a key don't load it

        plain = _bytes_of(parts[0]) if len(parts) == 1 else b"".join(parts)
        cipher, prefix = self._next(len(plain))
        sealed = cipher.encrypt(_nonce(prefix), plain, header + prefix)
        return [pa.py_buffer(prefix), pa.py_buffer(sealed)]

    def __reduce__(self) -> NoReturn:
        raise TypeError("an encryptor is never pickled: it would use its nonces twice")

    def _next(self, size: int) -> tuple[AESGCM, bytes]:
        with self._lock:
            if self._encrypted and self._encrypted + size > self._subkey_bytes:
                self._new_subkey()
            self._encrypted += size
            self._counter += 1
            return self._cipher, _PREFIX.pack(self._id, self._salt, self._counter)

    def _new_subkey(self) -> None:
        self._salt = os.urandom(_SALT_BYTES)
        self._cipher = self._key.cipher(self._salt)
        self._counter = 0
        self._encrypted = 0


class BlockKeys:
    """Find the key of a frame among those that this process has references to. Safe from any thread.

    References are resolved in their order, and only until the key is found: without encrypted frames, none is needed.

    Args:
        references: to the key that encrypts first, then to those for reading.
    """

    def __init__(self, references: Sequence[KeyReference] = ()) -> None:
        self._lock = threading.Lock()
        self._waiting = list(references)
        self._keys: dict[str, BlockKey] = {}
        # The cipher of the newest subkey: a receiver's blocks follow each other.
        self._newest: tuple[str, bytes, AESGCM] | None = None
        self._said: list[str] = []

    def decrypt(self, payload: pa.Buffer, header: bytes, where: str, offset: int) -> pa.Buffer:
        """Return what was encrypted.

        Args:
            payload: of an encrypted frame.
            header: the bytes of the frame's header that the tag covers.
            where: path of the segment, for errors.
            offset: of the frame, for errors.

        Raises:
            BlockKeyError: this process has no such key, or lacks the package cryptography.
            BlockAlteredError: the tag does not fit.
        """
        import pyarrow as pa  # noqa: PLC0415  as above

        data = _bytes_of(payload)
        prefix = bytes(data[: _PREFIX.size])
        with self._lock:
            cipher = self._cipher(prefix, where, offset)
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  see the module

        try:
            return pa.py_buffer(cipher.decrypt(_nonce(prefix), data[_PREFIX.size :], header + prefix))
        except InvalidTag:
            raise BlockAlteredError(where, offset, key_id_of(payload)) from None

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are never pickled: pass their references on")

    def _cipher(self, prefix: bytes, where: str, offset: int) -> AESGCM:
        raw_id, salt, _ = _PREFIX.unpack(prefix)
        key_id = raw_id.hex()
        if self._newest is None or self._newest[:2] != (key_id, salt):
            self._newest = (key_id, salt, self._key(key_id, where, offset).cipher(salt))
        return self._newest[2]

    def _key(self, key_id: str, where: str, offset: int) -> BlockKey:
        while key_id not in self._keys and self._waiting:
            reference = self._waiting.pop(0)
            try:
                key = BlockKey.read(reference, setting=f"{KEY_SETTING} or {READING_SETTING}")
            except BlockKeyError as error:
                self._said.append(error.detail)
            else:
                self._keys.setdefault(key.key_id, key)
                self._said.append(f"{reference} is key {key.key_id}")
        if key_id in self._keys:
            return self._keys[key_id]
        has = "; ".join(self._said) or f"{KEY_SETTING} and {READING_SETTING} are not set"
        raise BlockKeyError(
            key_id,
            f"the block at {where}, offset {offset}, is encrypted with the key {key_id}, which this process does not "
            f"have ({has}): put it on each host that reads blocks, and where batches are started name in "
            f"{READING_SETTING} the key {key_id}",
        )


def key_id_of(payload: pa.Buffer) -> str:
    """Return the id of the key that encrypted a payload."""
    return bytes(_bytes_of(payload)[:_KEY_ID_BYTES]).hex()


def _nonce(prefix: bytes) -> bytes:
    # 96 bits: zeros and the counter.
    return b"\0\0\0\0" + prefix[-8:]


def _bytes_of(buffer: pa.Buffer) -> memoryview:
    # A buffer of Arrow has signed bytes, which `cryptography` does not take.
    return memoryview(buffer).cast("B")
