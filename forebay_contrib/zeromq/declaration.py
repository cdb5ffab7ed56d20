"""ZeroMQ: messages of PUB and PUSH sockets, read by a SUB or a PULL socket (X11).

A declaration and its checks; ``receiver_runtime.receivers.zeromq`` opens the socket, and needs the extra
``forebay[zeromq]``.
"""

from __future__ import annotations

import re
import string
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.dialects import Dialect
from receiver_runtime.sources.fields.loopback import is_loopback
from receiver_runtime.sources.fields.secret import Secret  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.several import Several  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import check_host
from receiver_runtime.sources.fields.units import parse_bytes
from receiver_runtime.sources.source import Guarantee, Source

_TCP = re.compile(r"tcp://(?P<host>\[[^\]\s/;]+\]|[^:\[\]\s/;]+):(?P<port>\*|\d{1,5})")
# A path from the root, or a name in Linux's abstract namespace.
_IPC = re.compile(r"ipc://[/@].+", re.DOTALL)
_MOST_IPC_BYTES = 107  # what the kernel takes as the address of a Unix socket
_MOST_PORT = 65_535
_Z85 = string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#"
_KEY_CHARACTERS = 40
_GROUP = 5  # characters of Z85 that stand for four bytes


#: Topics of ZeroMQ, which are the beginnings of messages.
_TOPICS = Dialect(((r"[*#]$", "a topic is the beginning of a message: leave it out, as 'orders.'"),))


class ZeroMQ(Source):
    """Reads messages of ZeroMQ senders; one row a message.

    **At most once**: ZeroMQ acknowledges nothing, and a sender sends nothing again. A receiver that is killed costs
    what it held in memory and had not stored.

    Args:
        endpoints: addresses, as ``"tcp://feed:5556"`` or ``"ipc:///run/feed.sock"``. The socket connects to each, or
            listens at each (``bind``).
        socket: ``"sub"`` reads from PUB sockets, each of which sends every message to every subscriber; ``"pull"``
            reads from PUSH sockets, which share their messages out among those that pull.
        topics: for ``"sub"``: a message is read if its first frame begins with one of these. Default: every message.
        bind: listen at the endpoints, for senders that connect.
        high_water_mark: messages that the ZeroMQ library may hold for each sender, until they are read here.
        max_record_bytes: a message with more bytes, in all its frames, becomes a dead letter; ``"1MiB"`` or a number.
        curve_server_key: the senders' public key (CURVE, 40 characters of Z85). Connections are then encrypted.
        curve_secret_key: our own secret key, by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``).
            A socket that connects makes a new one for itself if it is not given; one that listens needs it to encrypt.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("topic", "binary"),
        ("body", "binary"),
        ("further_frames", "list<item: binary>"),
    )
    record_column: ClassVar[str] = "body"
    needs_extra: ClassVar[str | None] = "zeromq"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE
    receiver_class: ClassVar[str] = "forebay_contrib.zeromq.receiver:ZeroMQReceiver"

    kind: Literal["zeromq"] = "zeromq"
    endpoints: Several
    socket: Literal["sub", "pull"]
    topics: Several = ()
    bind: bool = False
    high_water_mark: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)] = 2**20
    curve_server_key: str | None = None
    curve_secret_key: Secret | None = None

    @property
    def address(self) -> str:
        """Return the endpoints."""
        return ",".join(self.endpoints)

    @property
    def is_listener(self) -> bool:
        """Return whether it binds."""
        return self.bind

    @property
    def is_bound_to_host(self) -> bool:
        """Return whether it connects only to senders on the host where the receiver runs."""
        matches = [_TCP.fullmatch(endpoint) for endpoint in self.endpoints]
        return not self.bind and all(tcp is None or is_loopback(tcp["host"]) for tcp in matches)

    @property
    def one_receiver(self) -> str | None:
        """Say that a publisher sends every message to each subscriber that connects to it."""
        if self.socket == "sub" and not self.bind:
            return (
                "each receiver of socket='sub' connects to every endpoint and would store every message: leave out "
                "receivers, or use socket='pull' and PUSH senders, which share their messages out"
            )
        return None

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        if not endpoints:
            raise ValueError("no endpoint is named: give at least one, as 'tcp://127.0.0.1:5556'")
        for endpoint in endpoints:
            tcp = _TCP.fullmatch(endpoint)
            if tcp is not None and tcp["port"] != "*" and int(tcp["port"]) > _MOST_PORT:
                raise ValueError(f"{endpoint!r} has a port above {_MOST_PORT}: give one from 1 to {_MOST_PORT}")
            if re.search(",(tcp|ipc)://", endpoint):
                raise ValueError(f"{endpoint!r} is several endpoints in one: give a list, endpoints=[…]")
            if tcp is not None and tcp["host"] != "*":
                check_host(tcp["host"].strip("[]"))
            if tcp is None and _IPC.fullmatch(endpoint) is None:
                raise ValueError(
                    f"{endpoint!r} is no endpoint: give 'tcp://HOST:PORT', or 'ipc:///PATH' with a path from the root"
                )
            if tcp is None and len(endpoint.removeprefix("ipc://").encode()) > _MOST_IPC_BYTES:
                raise ValueError(
                    f"{endpoint!r}: the path has more than {_MOST_IPC_BYTES} bytes, which no socket takes: "
                    "use a shorter path"
                )
        if len(set(endpoints)) != len(endpoints):
            raise ValueError("an endpoint is named twice: name it once")
        return endpoints

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(topics)) != len(topics):
            raise ValueError("a topic is named twice: name it once")
        _TOPICS.check(*topics)
        return topics

    @field_validator("curve_server_key")
    @classmethod
    def _check_key(cls, key: str | None) -> str | None:
        if key is not None and not _is_key(key):
            raise ValueError(f"{key!r} is no public key: give 40 characters of Z85, as zmq_curve_keypair makes them")
        return key

    @model_validator(mode="after")
    def _check_side(self) -> Self:
        if self.topics and self.socket == "pull":
            raise ValueError(f"topics={self.topics!r}: only a SUB socket has topics: leave it out, or use socket='sub'")
        for endpoint in self.endpoints:
            tcp = _TCP.fullmatch(endpoint)
            if not self.bind and tcp is not None and (tcp["host"] == "*" or tcp["port"].strip("0") in {"", "*"}):
                raise ValueError(
                    f"endpoints: {endpoint!r} is an address to listen at: give the senders' host and port, or bind=True"
                )
        if self.bind and self.curve_server_key is not None:
            raise ValueError(
                "curve_server_key: a socket that listens is the server itself: leave it out, give curve_secret_key, "
                "and the senders its public key"
            )
        if not self.bind and self.curve_secret_key is not None and self.curve_server_key is None:
            raise ValueError("curve_secret_key without the senders' public key: give curve_server_key too")
        return self


def _is_key(text: str) -> bool:
    """Return whether it is 32 bytes in Z85 (ZeroMQ's RFC 32), of which five characters may say too large a number."""
    if len(text) != _KEY_CHARACTERS or not set(text) <= set(_Z85):
        return False
    groups = [text[begin : begin + _GROUP] for begin in range(0, _KEY_CHARACTERS, _GROUP)]
    numbers: list[int] = [
        sum(_Z85.index(c) * int(85**place) for place, c in enumerate(reversed(group))) for group in groups
    ]
    return max(numbers) < 2**32
