"""Check that values of another dialect are refused with the way out, and that usual ones are matched as written."""

from __future__ import annotations

import fnmatch
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from receiver_runtime.sources.fields import dialects
from receiver_runtime.sources.source import Source, SourceError
from receiver_runtime.sources.source_registry import parse_source, source_class, source_kinds

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"kind": "file_lines", "path": "/in"}
FOLLOWED = {"kind": "followed_files", "path": "/logs/*.log"}
MQTT = {"kind": "mqtt", "host": "h", "client_id": "c", "topics": "a"}
NATS = {"kind": "nats_jetstream", "servers": "h:4222", "stream": "s", "durable": "d"}
REDIS = {"kind": "redis_streams", "host": "h", "streams": "a", "group": "g"}
ZEROMQ = {"kind": "zeromq", "socket": "sub", "endpoints": "tcp://h:5556"}
AMQP = {"kind": "amqp", "host": "h", "queues": "q"}
SYSLOG = {"kind": "syslog"}
HTTP = {"kind": "http"}
LISTENING = {"kind": "socket_text"}
SOCKET = {"kind": "socket_text", "host": "h", "port": 1}
NO_HOSTS = ["redis://h", "h:1883", "u@h", "u:secret@h", "a,b", "h/x", "", " h", "[::1]", "h?x", "h\0"]
KAFKA_LOGIN = ("bootstrap_servers", "u:secret@h:1")
# Classes of characters without an end, with one that matches nothing, or with a name.
NO_CLASSES = [
    "[",
    "a[",
    "[a",
    "[]",
    "[!]",
    "[]a",
    "[!]a",
    "[a]b[",
    "[[]x[",
    "[z-a]",
    "[a-cz-x]",
    "[!9-0]",
    "[[:alpha:]]",
]
NO_ADDRESSES = ["*:5514", "h*:1", "h:99999", "[h:1", "h#:1", "u@h:1", "a,b:1", ":1", "h"]
NO_SERVERS = ["nats://h:1", "u:secret@h:1", "h", "h:0", "h:99999", "h:1,,g:1", "[h]x:1", ""]
KAFKA = {"kind": "kafka", "bootstrap_servers": "h:9092", "topics": "a", "group": "g"}


def parsed(base: dict[str, Any], field: str, value: object) -> Source:
    return parse_source({**base, field: value})


@pytest.mark.parametrize(
    ("base", "field", "values"),
    [
        (
            *(FILES, "pattern"),
            [
                "sub/*.csv",
                "**/*.csv",
                "",
                "_*",
                ".*",
                r".*\.csv",
                r"\d*.csv",
                "*.{csv,json}",
                "*.csv,*.json",
                " *",
                "[^a]*",
                *NO_CLASSES,
            ],
        ),
        (FILES, "path", ["/in/*.csv", "s3://b/in/*.csv", "s3://b/a#b", "/in "]),
        (FILES, "unfinished", [["/in/*.part"], ["*.{part,tmp}"]]),
        (
            FOLLOWED,
            "exclude",
            [["/srv/log/debug*"], ["z/**"], ["*.gz,*.xz"], [r"debug\..*"], ["re:.*"], *([one] for one in NO_CLASSES)],
        ),
        (
            *(FOLLOWED, "path"),
            [
                "/x/[^a]*.log",
                "/x/**.log",
                "/x/{a,b}.log",
                "/x/+(a|b).log",
                "/x/*.log,/y/*.log",
                "/var/log/",
                "/home/*/../x",
                *(f"/x/{one}" for one in NO_CLASSES),
            ],
        ),
        (
            *(MQTT, "topics"),
            [["plant/*/t"], ["orders/*"], ["*"], [" a/b"], ["$queue/x"], ["$SHARE/g/x"], ["$exclusive/a"]],
        ),
        (
            *(NATS, "subject"),
            ["orders.*x", "orders.a*", "orders.foo>", "orders.**", "orders.#", "+.x", "orders.>.x", ">.x", "a\0"],
        ),
        (REDIS, "streams", [["orders:*"], ["orders:?"], ["a "]]),
        (ZEROMQ, "topics", [["orders.*"], ["orders.#"]]),
        (
            *(KAFKA, "options"),
            [{"socket.timeout.ms": "10s"}, {"fetch.message.max.bytes": "10MB"}, {"queued.max.messages.kbytes": "1e3"}],
        ),
        *((base, "host", NO_HOSTS) for base in (MQTT, AMQP, REDIS, SOCKET)),
        *((base, "listen", NO_ADDRESSES) for base in (SYSLOG, HTTP, LISTENING)),
        # A NUL is in no name: one check for all of them.
        (AMQP, "queues", [["a\0b"]]),
        (AMQP, "virtual_host", ["a\0"]),
        (MQTT, "client_id", ["a\0"]),
        (REDIS, "group", ["a\0"]),
        (FILES, "path", ["/in\0"]),
        (HTTP, "headers", [["x-a\0"]]),
        (NATS, "servers", NO_SERVERS),
        (KAFKA, "bootstrap_servers", NO_SERVERS),
        (ZEROMQ, "endpoints", ["tcp://u@h:1", "tcp://a,b:1", "ipc:///a,ipc:///b", "tcp://a:1,tcp://b:1"]),
        (ZEROMQ, "curve_server_key", ["#" * 40, "%nSc1" + "0" * 35, "0" * 39 + "~"]),
    ],
)
def test_a_value_of_another_dialect_is_refused_with_the_way_out(
    base: dict[str, Any], field: str, values: list[object]
) -> None:
    for value in values:
        with pytest.raises(SourceError, match=rf"(?s){field}.*: .+"):
            parsed(base, field, value)


@pytest.mark.parametrize(
    ("base", "field", "values"),
    [
        (FILES, "path", ["/in", "/in/", "/a b/{x,y}", "s3://b", "s3://b/p/"]),
        (FOLLOWED, "exclude", [["*.gz"], [".nfs*"], ["_*"], []]),
        (MQTT, "topics", [["#"], ["+/a/#"], ["/a"], ["a/"], ["$SYS/broker/#"], ["a b/c*d"]]),
        (NATS, "subject", [">", "*", "*.*", "orders.*.paid", "orders.>", "orders.*.>", "a-b.c_d.$x"]),
        (REDIS, "streams", [["orders:1"], ["{tag}:a b"], ["a,b"], ["a[1]"]]),
        (ZEROMQ, "topics", [["orders."], ["#1"], ["*a"], [""]]),
        *(
            (base, "host", ["h", "h.example", "10.0.0.1", "::1", "fe80::1%eth0"])
            for base in (MQTT, AMQP, REDIS, SOCKET)
        ),
        *((base, "listen", ["0.0.0.0:1", "[::]:5", "h.example:5"]) for base in (SYSLOG, HTTP, LISTENING)),
        (LISTENING | {"listen": "h:1"}, "delimiter", ["\0"]),
        (NATS, "servers", ["h:4222", "[::1]:4222,10.0.0.1:1"]),
        (ZEROMQ, "endpoints", [["tcp://[::1]:1"], ["ipc:///run/a,b"]]),
        (ZEROMQ, "curve_server_key", ["0" * 40, "%nSc0" * 8]),
        (KAFKA, "options", [{"socket.timeout.ms": "10000"}, {"fetch.max.bytes": 10}, {"client.id": "10s"}]),
    ],
)
def test_what_is_of_its_dialect_is_taken_as_it_is(base: dict[str, Any], field: str, values: list[object]) -> None:
    for value in values:
        found = getattr(parsed(base, field, value), field)
        assert list(found) == value if isinstance(value, list) else found == value


def test_a_password_in_the_place_of_a_host_is_not_shown() -> None:
    for base, field, value in ((REDIS, "host", "u:secret@h"), (NATS, "servers", "u:secret@h:x"), (KAFKA, *KAFKA_LOGIN)):
        with pytest.raises(SourceError) as raised:
            parsed(base, field, value)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*", "a"),
        ("*.csv", "a.csv"),
        ("app.*", "app.log"),
        ("[!a]*.log", "b.log"),
        ("a,b.csv", "a,b.csv"),
        ("report (*).csv", "report (1).csv"),
        ("{a}.csv", "{a}.csv"),
        (r"a[\]*", r"a\b"),
        ("[[]*", "[x"),
        ("[]]*", "]x"),
        ("[!]]*", "ax"),
        ("[a-]*", "-x"),
        ("[-a]*", "-x"),
        ("[0-9a-f]*", "f"),
        ("a]*", "a]"),
        ("access.log.*", "access.log.1"),
    ],
)
def test_usual_patterns_of_names_match(pattern: str, name: str) -> None:
    dialects.READ_FILE_NAMES.check(pattern)
    assert fnmatch.fnmatchcase(name, pattern)


def test_usual_patterns_of_paths_match(tmp_path: Path) -> None:
    for file in ("a/b/x.log", "a/x.log", "a (1)/x.log.1"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    for pattern, number in (("**/*.log", 2), ("a/*.log*", 1), ("a*/x.log*", 2), ("a/[a-b]/x.*", 1)):
        dialects.FILE_PATHS.check(f"/srv/{pattern}")
        assert len(list(tmp_path.glob(pattern))) == number


def test_each_way_out_says_what_to_write() -> None:
    modules = [dialects, *(sys.modules[source_class(kind).__module__] for kind in source_kinds())]
    found = {one for module in modules for one in vars(module).values() if isinstance(one, dialects.Dialect)}
    assert len(found) == 9
    for expression, way_out in {pair for dialect in found for pair in dialect.foreign}:
        re.compile(expression)
        assert way_out
