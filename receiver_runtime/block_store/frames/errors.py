"""Define the errors of stored blocks, so that a reader knows whether to wait, to repair or to give up.

The errors carry their facts as arguments, because they are pickled between processes, and make the text in ``__str__``.
"""

from __future__ import annotations


class BlockStoreError(Exception):
    """See the cause, and `forebay doctor` for the block store's state: the store could not do what was asked."""


class InvalidFrameError(BlockStoreError):
    """These bytes are no frame of a segment. If the file was copied, copy it again; else run a verify of the blocks."""


class BlockMissingError(BlockStoreError):
    """Bytes of a registered block are not there: the file is missing, or it ends before the block does.

    Attributes: ``path`` (absolute), ``offset`` and ``length`` in bytes, ``detail``.
    """

    def __init__(self, path: str, offset: int, length: int, detail: str) -> None:
        super().__init__(path, offset, length, detail)
        self.path = path
        self.offset = offset
        self.length = length
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"the block at {self.path}, offset {self.offset}, {self.length} bytes, is missing ({self.detail}): "
            "check that this host sees the same block store as the receiver, or restore the file from a replica"
        )


class BlockCorruptError(BlockStoreError):
    """Bytes of a registered block are there and differ from what was written.

    Attributes: ``path`` (absolute), ``offset`` in bytes, ``expected`` and ``found`` (what was compared), ``detail``.
    """

    def __init__(self, path: str, offset: int, expected: str, found: str, detail: str) -> None:
        super().__init__(path, offset, expected, found, detail)
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"the block at {self.path}, offset {self.offset}, is corrupt ({self.detail}): expected {self.expected}, "
            f"found {self.found}: restore the file from a replica, or give the block up by discarding its batch"
        )


class BlockAlteredError(BlockStoreError):
    """Find out who changed or moved an encrypted block: its checksum is right, its authentication tag is not.

    It was changed on purpose, or moved. A crash or a failing disk can't cause this, so such a block never counts as
    lost.

    Attributes: ``path``, ``offset`` in bytes, ``key_id``.
    """

    def __init__(self, path: str, offset: int, key_id: str) -> None:
        super().__init__(path, offset, key_id)
        self.path = path
        self.offset = offset
        self.key_id = key_id

    def __str__(self) -> str:
        return (
            f"the block at {self.path}, offset {self.offset}, was altered after it was encrypted with the key "
            f"{self.key_id} (its checksum is right, its authentication tag is not): find out who can write to the "
            "block store, and restore the file from a replica"
        )


class BlockKeyError(BlockStoreError):
    """Check the blocks' key: it is missing here, or can't be used, and nothing is known about what is in the blocks.

    Attributes: ``key_id`` (of the block; empty if the key itself could not be read), ``detail`` (one line, which names
    the setting; never a key).
    """

    def __init__(self, key_id: str, detail: str) -> None:
        super().__init__(key_id, detail)
        self.key_id = key_id
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class StoreUnavailableError(BlockStoreError):
    """Check that the block store is mounted or running: it can't be reached. Nothing is known about the blocks in it.

    Attributes: ``store`` (as people name it), ``detail``.
    """

    def __init__(self, store: str, detail: str) -> None:
        super().__init__(store, detail)
        self.store = store
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"the block store {self.store} can't be reached ({self.detail}): "
            "check that it is mounted or running, its address in FOREBAY_BLOCK_STORE, and its credentials"
        )


def segment_write_failed(path: object, offset: int, detail: object) -> BlockStoreError:
    """Return the error of a frame that could not be written, or synced, at an offset in bytes: its segment is ended."""
    return BlockStoreError(
        f"writing to {path} at offset {offset} failed ({detail}): "
        "check the disk's space and health; the block is written again in a new segment"
    )


def segment_ended(path: object) -> BlockStoreError:
    """Return the error of a write to a segment that has ended."""
    return BlockStoreError(
        f"{path} takes no more frames: Writing or syncing this segment failed, or it is closed: nothing is ever "
        "appended again. Open a new segment."
    )
