"""Write records by confluent-kafka's serializers, and check how a kind reads them, whatever their schemas are.

Beside it are the fixtures of registries, which a kind's ``conftest.py`` imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.serialization import MessageField, SerializationContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.record_formats.record_reader import Parsed, RecordReader
    from tests.support.servers.schema_registry import RegistryServer

CONTEXT = SerializationContext("orders", MessageField.VALUE)
#: Each of Confluent's rules for the names of subjects.
strategies = pytest.mark.parametrize(
    "strategy", [topic_subject_name_strategy, record_subject_name_strategy, topic_record_subject_name_strategy]
)


def read(made: RecordReader, *values: bytes | None) -> Parsed:
    """Return what a reader makes of records."""
    return made.read(pa.array(values, pa.binary()))


def check_records_are_rows(
    server: RegistryServer,
    serialize: Callable[[Any, SerializationContext], bytes],
    made: RecordReader,
    rows: Sequence[dict[str, object]],
) -> None:
    """Check that records of one schema are read as they were written, and that the registry is asked once."""
    assert read(made, *(serialize(row, CONTEXT) for row in rows)).batch.to_pylist() == rows
    read(made, serialize(rows[0], CONTEXT))
    assert server.requests == ["/schemas/ids/1"]
