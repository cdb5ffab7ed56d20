"""Open the block store that the setting ``block_store`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.roots import OBJECT_SCHEMES, directory_of, root_name, split_roots, without_secrets
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.block_store.stores.local import LocalBlockStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from receiver_runtime.block_store.frames.encryption import BlockKeys
    from receiver_runtime.block_store.stores.interface import BlockStore, Replica
    from receiver_runtime.block_store.stores.replicated import ReplicaListener

DEFAULT_TIMEOUT = 30.0


_KNOWN = "It must be a directory (or file:// URL), an s3://, gs:// or abfs:// URL, or several: set FOREBAY_BLOCK_STORE."


def open_block_store(
    block_store: str,
    *,
    min_replicas: int = 1,
    timeout: float = DEFAULT_TIMEOUT,
    listener: ReplicaListener | None = None,
    expected: Mapping[str, Collection[str]] | None = None,
    keys: BlockKeys | None = None,
) -> BlockStore:
    """Return the block store of a setting; nothing is made, read or connected to before it is used.

    Args:
        block_store: one root, or several with commas between them.
        min_replicas: how many replicas must have a write.
        timeout: seconds for one call on an object store, and for one write if there are replicas.
        listener: told of replicas that are lost and that are back.
        expected: by a root's name, the identities of which it must have one (empty: no host has attached the root). A
            root that is missing here may have any identity.
        keys: decrypt encrypted blocks in ``read_batches``; everything else needs none.

    Raises:
        BlockStoreError: another scheme, a host in a file URL, a root that is named twice, or none; the URL of an object
            store is not complete, or has an option that is not known; there are fewer roots than ``min_replicas``.
    """
    roots = split_roots(block_store)
    # With another login it is the same root.
    shown = [SecretUrl(root).shown for root in roots]
    if not roots or len(set(shown)) < len(roots):
        named = ",".join(shown)
        raise BlockStoreError(f"block store {named!r} can't be used: {_KNOWN}")
    if min_replicas > len(roots):
        raise BlockStoreError(
            f"min_replicas is {min_replicas}, and the block store has {len(roots)}: Lower the setting min_replicas, or "
            "name more replicas in FOREBAY_BLOCK_STORE: it asks for more than are named."
        )
    replicas = [_open_root(root, timeout, (expected or {}).get(root_name(root)), keys) for root in roots]
    if len(replicas) == 1:
        return replicas[0]
    from receiver_runtime.block_store.stores.replicated import ReplicatedBlockStore  # noqa: PLC0415  most have one root

    return ReplicatedBlockStore(replicas, min_replicas=min_replicas, timeout=timeout, listener=listener, keys=keys)


def replicas_of(store: BlockStore) -> Sequence[Replica]:
    """Return the single-place stores of a store from ``open_block_store``: itself, or its replicas."""
    found: Sequence[Replica] = getattr(store, "replicas", None) or [cast("Replica", store)]
    return found


def _open_root(root: str, timeout: float, expected: Collection[str] | None, keys: BlockKeys | None) -> Replica:
    directory = directory_of(root)
    if directory is not None:
        return LocalBlockStore(directory, expected=expected, keys=keys)
    if root.partition("://")[0].lower() in OBJECT_SCHEMES:
        from receiver_runtime.block_store.stores.object_store import ObjectBlockStore  # noqa: PLC0415  most are directories
        from receiver_runtime.block_store.stores.objects import open_objects  # noqa: PLC0415

        return ObjectBlockStore(open_objects(root), root_name(root), timeout=timeout, expected=expected, keys=keys)
    raise BlockStoreError(f"block store {without_secrets(root)!r} can't be used: {_KNOWN}")
