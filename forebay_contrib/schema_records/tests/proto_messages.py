"""Make messages of Protobuf's own library, and the .proto text that describes them, from one table."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_FIELD = descriptor_pb2.FieldDescriptorProto
#: (name, number, type, label): of a message `Order` in proto3.
FIELDS = (
    ("item", 1, "string", ""),
    ("pieces", 2, "int64", "optional"),
    ("small", 3, "int32", ""),
    ("zig", 4, "sint32", ""),
    ("zag", 5, "sint64", ""),
    ("plain", 6, "uint32", ""),
    ("large", 7, "uint64", ""),
    ("paid", 8, "bool", ""),
    ("price", 9, "double", ""),
    ("near", 10, "float", "optional"),
    ("f32", 11, "fixed32", ""),
    ("f64", 12, "fixed64", ""),
    ("s32", 13, "sfixed32", ""),
    ("s64", 14, "sfixed64", ""),
    ("data", 15, "bytes", ""),
    ("state", 16, "State", ""),
    ("at", 17, "google.protobuf.Timestamp", ""),
    ("place", 18, "Place", ""),
    ("tags", 19, "string", "repeated"),
    ("numbers", 20, "int64", "repeated"),
    ("rates", 21, "double", "repeated"),
    ("places", 22, "Place", "repeated"),
    ("states", 23, "State", "repeated"),
    ("unpacked", 24, "sint64", "repeated"),
    ("card", 25, "string", "oneof"),
    ("cash", 26, "double", "oneof"),
    ("counts", 27, "map<string, int64>", ""),
    ("stops", 28, "map<int32, Place>", ""),
)
TEXT = (
    'syntax = "proto3";\npackage shop;\nimport "google/protobuf/timestamp.proto";\n'
    'option java_package = "org.shop"; // a comment\nmessage Order {\n'
    "  enum State { option allow_alias = false; NEW = 0; SENT = 1 [deprecated = true]; LOST = -1; }\n"
    "  reserved 100 to 200;\n"
    + "".join(
        f"  {'' if label == 'oneof' else label} {kind} {name} = {number}"
        f"{' [packed = false, deprecated = true]' if name == 'unpacked' else ''};\n"
        for name, number, kind, label in FIELDS
        if label != "oneof"
    )
    + "  oneof pay {\n"
    + "".join(f"    {kind} {name} = {number};\n" for name, number, kind, label in FIELDS if label == "oneof")
    + "  }\n}\n/* a message\n beside it */\n"
    "message Place { string city = 1; optional int32 zip = 2; repeated int32 seen = 3; }\n"
    "service Orders { rpc Get (Place) returns (Order) { option (a.b) = { c: 1; }; } }\n"
)


def _file() -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    order = made.message_type.add(name="Order")
    state = order.enum_type.add(name="State")
    for name, number in (("NEW", 0), ("SENT", 1), ("LOST", -1)):
        state.value.add(name=name, number=number)
    order.oneof_decl.add(name="pay")
    place = made.message_type.add(name="Place")
    for message, fields in (
        (order, FIELDS),
        (place, (("city", 1, "string", ""), ("zip", 2, "int32", "optional"), ("seen", 3, "int32", "repeated"))),
    ):
        for name, number, kind, label in fields:
            _add(message, name, number, kind, label)
    # What proto3 makes of `optional`, after all other oneofs.
    for message in (order, place):
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
    return made


def _add(message: Any, name: str, number: int, kind: str, label: str) -> None:  # noqa: ANN401  Protobuf has no types
    field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
    if kind.startswith("map<"):
        key, _, value = kind[4:-1].partition(", ")
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add(entry, "key", 1, key, "")
        _add(entry, "value", 2, value, "")
        field.label, field.type, field.type_name = 3, _FIELD.TYPE_MESSAGE, f".shop.Order.{entry.name}"
        return
    if label == "repeated":
        field.label = _FIELD.LABEL_REPEATED
    elif label == "optional":
        field.proto3_optional = True
    elif label == "oneof":
        field.oneof_index = 0
    if name == "unpacked":
        field.options.packed = False
    if kind == "State":
        field.type, field.type_name = _FIELD.TYPE_ENUM, ".shop.Order.State"
    elif kind[0].isupper() or "." in kind:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{kind}" if "." in kind else f".shop.{kind}"
    else:
        field.type = getattr(_FIELD, f"TYPE_{kind.upper()}")


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in (timestamp_pb2.DESCRIPTOR.serialized_pb, _file().SerializeToString()):
        pool.AddSerializedFile(file)
    return pool


POOL = _pool()
Order: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))
Place: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Place"))
