"""Make message types of protobuf from short tables: for protocols of a few messages, which then need no generated code.

Generated code fits only some versions of protobuf, and needs its compiler. The types are read by protobuf itself, which
is there wherever Dagster is. Text is taken as bytes, because protobuf refuses a whole request for one text that is not
UTF-8.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from receiver_runtime.receivers.http.requests.pushed import PushRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits

_TYPES = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "sint32": FieldDescriptorProto.TYPE_SINT32,
    "sint64": FieldDescriptorProto.TYPE_SINT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}


def message_types(package: str, tables: Mapping[str, Mapping[str, tuple[int, str]]]) -> Mapping[str, Any]:
    """Return the class of each message.

    Args:
        package: a name for all of them.
        tables: for each message its fields by name, each with its number and its type: one of protobuf's, or another
            message's name, with ``repeated`` and a blank before it where there may be several.
    """
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in tables.items():
        file.message_type.append(DescriptorProto(name=name, field=[_field(package, *one) for one in fields.items()]))
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in tables}


def _field(package: str, name: str, said: tuple[int, str]) -> FieldDescriptorProto:
    number, kind = said
    *repeated, kind = kind.split(" ")
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if kind in _TYPES:
        return FieldDescriptorProto(name=name, number=number, label=label, type=_TYPES[kind])
    return FieldDescriptorProto(
        name=name,
        number=number,
        label=label,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{package}.{kind}",
    )


@lru_cache(maxsize=64)
def _tags(kind: Any) -> bytes:  # noqa: ANN401  a message of a type made above
    """Return the tags of all fields that are messages or text, in a type's table."""
    fields = [field for one in kind.DESCRIPTOR.file.message_types_by_name.values() for field in one.fields]
    with_length = {FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_BYTES}
    return bytes({field.number << 3 | 2 for field in fields if field.type in with_length})


def read_message(kind: Any, body: bytes, limits: ParsingLimits) -> Any:  # noqa: ANN401  a message of a type made above
    """Return the message that a body is.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400, it is none; 413, it has too many parts.
    """
    limits.check_protobuf(body, _tags(kind), b"")
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise PushRefusedError(400, f"body: it is no {kind.DESCRIPTOR.name} in protobuf: {error}") from error
