"""Look at the schema registry of a declaration before any record comes: does it answer, and would its schemas fit?

It changes nothing, and asks for a bounded number of subjects in a bounded time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.record_formats.registries.registry_client import (
    NoSuchSchemaError,
    RegistryAwayError,
    RegistryClient,
)
from receiver_runtime.record_formats.registries.schema_reader import SchemaReader
from receiver_runtime.sources.records.declared import KEY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from receiver_runtime.sources.fields.schema_registry import Registry
    from receiver_runtime.sources.records.declared import Records

_ANSWER_SECONDS = 3.0
_SECONDS = 15.0  # for all subjects of a stream
_MOST_SUBJECTS = 20


@dataclass(frozen=True, slots=True)
class RegistryFinding:
    """Say one thing that was seen. ``fix``: how to correct it; empty if all is well. ``is_broken``: nothing works."""

    found: str
    fix: str = ""
    is_broken: bool = False


def check_registry(
    records: Records, registry: Registry, subjects: Sequence[str], columns: Mapping[str, str], *, is_key: bool
) -> Iterator[RegistryFinding]:
    """Yield what is seen of one registry.

    Args:
        records: the declaration that has the registry.
        registry: its registry.
        subjects: where its schemas are by the usual strategy; none if only the records' ids say it.
        columns: the types of the stream's columns, by their names in lower case.
        is_key: whether it is of the records' keys.
    """
    until = time.monotonic() + _SECONDS
    client = RegistryClient(registry.model_copy(update={"timeout": min(registry.timeout, _ANSWER_SECONDS)}))
    try:
        if not subjects:
            client.check()
            yield RegistryFinding(f"the schema registry {registry.url} answers")
        for subject in subjects[:_MOST_SUBJECTS]:
            if time.monotonic() > until:
                yield RegistryFinding(f"{registry.url} answers slowly: not every subject was looked at")
                return
            yield _subject(client, subject, _reader_of(records, columns, is_key=is_key))
    except RegistryAwayError as error:
        login = "its login (username and password, or token)" if _refuses(error) else "its url"
        fix = f"Correct {login} in registry=Registry(…), or start it: records wait until it answers."
        yield RegistryFinding(str(error), fix, is_broken=True)


def _subject(client: RegistryClient, subject: str, reader: SchemaReader) -> RegistryFinding:
    try:
        schema = client.latest(subject)
    except NoSuchSchemaError as error:
        return RegistryFinding(
            f"the schema registry has no subject {subject}: {error}",
            "All is well if the schemas have other names, or come with the first record.",
        )
    if refusal := reader.refusal_of(schema):
        return RegistryFinding(
            f"subject {subject}: {refusal}",
            "Its records become dead letters: correct the schema, or declare a stream of its own for it.",
            is_broken=True,
        )
    return RegistryFinding(f"subject {subject} has a schema whose columns fit")


def _reader_of(records: Records, columns: Mapping[str, str], *, is_key: bool) -> SchemaReader:
    """Return a reader of its own for each subject: those of one must not count as columns that the stream has."""
    reader = records.load_reader()(records)
    assert isinstance(reader, SchemaReader)
    known = columns
    if is_key:
        known = {name.removeprefix(KEY_PREFIX): kind for name, kind in columns.items() if name.startswith(KEY_PREFIX)}
    reader.grow(lambda: known, lambda _: None)
    return reader


def _refuses(error: RegistryAwayError) -> bool:
    return "answered 401" in str(error) or "answered 403" in str(error)
