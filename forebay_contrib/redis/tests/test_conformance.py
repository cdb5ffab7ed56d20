"""Redis Streams in the conformance suite, and Redis's own behaviour, on Debian's redis-server. ``make brokers``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay import Stream
from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import (
    SourceConformance,
    check_acknowledged_when_registered,
    check_taken_over_from_a_live_receiver,
    proxied,
    stop,
)
from forebay_contrib.redis.tests.redis import RedisServer
from forebay_contrib.redis.tests.redis_source import RedisKeys
from receiver_runtime.sources.fields.secret import EnvVar
from receiver_runtime.sources.fields.tcp import Tls
from tests.unit.receiver_runtime.receivers.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.testing.source_rig import SourceRig


# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240, func_only=True)]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start redis-server for the module. A test that kills it must start it again."""
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def keys(redis_server: RedisServer) -> RedisKeys:
    return RedisKeys(redis_server)


# Code for a process that loses the answer with its first new entries, which Redis has then delivered.
LOSES_AN_ANSWER = """
import redis
from forebay_contrib.redis import client as redis_client
class LosingConnection(redis.Connection):
    has_lost = False
    def read_response(self, *args, **options):
        answer = super().read_response(*args, **options)
        is_of_streams = isinstance(answer, list) and answer and isinstance(answer[0], list) and len(answer[0]) == 2
        if not LosingConnection.has_lost and is_of_streams and isinstance(answer[0][1], list) and answer[0][1]:
            LosingConnection.has_lost = True
            self.disconnect()
            raise redis.ConnectionError("lost on its way")
        return answer
class LosingRedis(redis.Redis):
    def __init__(self, **options):
        super().__init__(**options)
        self.connection_pool.connection_class = LosingConnection
redis_client.redis.Redis = LosingRedis
"""


class TestRedisStreams(SourceConformance):
    """At least once, deduplicated."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, keys: RedisKeys) -> RedisKeys:
        return keys


def test_x11_entries_are_acknowledged_when_they_are_registered_and_not_before(
    keys: RedisKeys, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    check_acknowledged_when_registered(keys, make_rig(keys.source()), database_url, keys.pending)


def test_entries_held_by_two_receivers_are_stored_once(
    keys: RedisKeys, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    check_taken_over_from_a_live_receiver(keys, make_rig(keys.source(), receivers=2), database_url)


def test_x11_a_stop_acknowledges_what_it_drained_and_leaves_nothing_running(
    keys: RedisKeys, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(keys.source())
    process = rig.start()
    with keys.sending():
        eventually(lambda: rig.registered() > 300, "300 entries")
        stop(process)
        # It may have read a few more entries and left them; none of those is registered.
        waiting = keys.waiting()
    # At least one entry that came after the stop.
    keys.send(1)
    assert not waiting & {(row["stream"], row["id"]) for row in rig.rows()}
    assert rig.registered() < len(keys.there())


def test_entries_of_a_lost_consumer_are_taken_over(keys: RedisKeys, make_rig: Callable[..., SourceRig]) -> None:
    keys.send(100)
    for name in keys.names:
        keys.client.xgroup_create(name, keys.source().group, "0")
    keys.client.xreadgroup(keys.source().group, "another", {keys.names[0]: ">"}, count=30)
    rig = make_rig(keys.source(claim_after="1s"))
    process = rig.start()
    eventually(lambda: keys.all_came(rig), "also what the other one was given")
    eventually(lambda: keys.pending() == 0, "the acknowledgements")
    stop(process)
    keys.check(rig)


def test_x11_entries_whose_answer_was_lost_are_read_again_at_once(
    keys: RedisKeys, make_rig: Callable[..., SourceRig]
) -> None:
    """Check that pending entries are read again; asked for as new, they would wait for `claim_after`."""
    rig = make_rig(keys.source(claim_after="1h"))
    process = rig.start(first=LOSES_AN_ANSWER)
    keys.send(20)
    eventually(lambda: keys.all_came(rig) and keys.pending() == 0, "all of them")
    stop(process)
    assert rig.said("lost on its way")
    keys.check(rig)


def test_start_at_latest_reads_entries_that_come_after_the_group(
    keys: RedisKeys, make_rig: Callable[..., SourceRig]
) -> None:
    keys.send(100)
    rig = make_rig(keys.source(start="latest"))
    process = rig.start()
    eventually(lambda: all(keys.client.xinfo_groups(name) for name in keys.names), "the groups")
    before = set(keys.there())
    keys.send(50)
    eventually(lambda: rig.registered() >= 50, "what came after")
    stop(process)
    assert {(row["stream"], row["id"]) for row in rig.rows()} == set(keys.there()) - before
    # The group resumes at its position.
    keys.send(20)
    second = rig.start()
    eventually(lambda: rig.registered() == 70, "what came while no receiver ran")
    stop(second)


def test_entries_trimmed_unread_are_reported_in_numbers(keys: RedisKeys, make_rig: Callable[..., SourceRig]) -> None:
    keys.send(100)
    rig = make_rig(keys.source())
    process = rig.start()
    eventually(lambda: keys.all_came(rig), "100 entries")
    stop(process)
    keys.send(200)
    # 50 entries stay in each of the two streams.
    for name in keys.names:
        keys.client.xtrim(name, maxlen=50, approximate=False)
    second = rig.start()
    eventually(lambda: rig.registered() == 200, "what is there yet")
    for name in keys.names:
        eventually(lambda name=name: rig.said(f"{name}: 50 entries"), "the loss")  # type: ignore[misc]
    stop(second)


@pytest.mark.parametrize(("start", "before"), [("earliest", 0), ("earliest", 30), ("latest", 30)])
def test_entries_trimmed_before_a_new_group_has_read_any_are_counted(
    keys: RedisKeys, make_rig: Callable[..., SourceRig], start: str, before: int
) -> None:
    """Trim them as they are added: no look comes in between. What was trimmed before there was a group is no gap."""

    def add(entries: int, most: int) -> None:
        with keys.client.pipeline(transaction=True) as all_at_once:
            for number in range(entries):
                all_at_once.xadd(keys.names[0], {b"n": b"%d" % number}, maxlen=most, approximate=False)
            all_at_once.execute()

    add(before, 10)
    rig = make_rig(keys.source(start=start))
    process = rig.start()
    eventually(lambda: rig.said("connected to"), "the groups")
    come = 10 if before and start == "earliest" else 0
    if not come:
        add(100, 8)
        come = 8
        eventually(lambda: rig.said("a gap of 92 entries"), "their number")
    eventually(lambda: rig.registered() == come and keys.pending() == 0, "what is there")
    [group] = keys.client.xinfo_groups(keys.names[0])
    add(20, 1)
    eventually(lambda: rig.said("19 entries"), "a later gap alone")
    assert rig.said("a gap of 92 entries") is (come == 8)
    assert group["lag"] == (0 if come == 10 else 92)
    stop(process)


def test_entries_trimmed_after_delivery_are_reported(keys: RedisKeys, make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(keys.source(claim_after="1s"))
    consumer = f"forebay-{rig.receiver_ids[0]}"
    first = [keys.add({b"n": b"%d" % n}) for n in range(10)]
    others = [keys.add({b"n": b"%d" % n}, 1) for n in range(10)]
    for name, to in zip(keys.names, (consumer, "another"), strict=True):
        keys.client.xgroup_create(name, keys.source().group, "0")
        keys.client.xreadgroup(keys.source().group, to, {name: ">"})
    keys.client.xdel(keys.names[0], *first[:3])
    keys.client.xdel(keys.names[1], *others[:4])
    process = rig.start()
    eventually(lambda: rig.said(f"{keys.names[0]}: 3 entries were trimmed"), "its own")
    eventually(lambda: rig.said(f"{keys.names[1]}: 4 entries were trimmed"), "the other's")
    eventually(lambda: rig.registered() == 13 and keys.pending() == 0, "the rest")
    stop(process)
    keys.check(rig)


def test_entries_trimmed_in_flight_are_stored_and_not_reported_as_lost(
    keys: RedisKeys, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    """Trim them: Redis then removes them from the pending list once they are claimed, even by the same receiver."""
    rig = make_rig(keys.source(claim_after="1s"))
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        keys.send(20)
        eventually(lambda: keys.all_came(rig) and keys.pending() == 0, "the first ones")
        proxy.away = True
        proxy.cut()
        keys.send(20)
        eventually(lambda: keys.pending() == 20, "those that can't be registered")
        for name in keys.names:
            keys.client.xtrim(name, maxlen=0, approximate=False)
        eventually(lambda: keys.pending() == 0, "an empty list")
        proxy.away = False
        eventually(lambda: rig.registered() == 40, "all of them")
        stop(process)
    assert not rig.said("trimmed")


def test_a_non_text_field_name_becomes_a_dead_letter_and_blocks_nothing(
    keys: RedisKeys, make_rig: Callable[..., SourceRig]
) -> None:
    keys.send(10)
    keys.add({b"\xff": b"poison", b"ok": b"1"})
    keys.send(10)
    rig = make_rig(keys.source())
    process = rig.start()
    eventually(lambda: rig.registered() == 20, "the others")
    eventually(lambda: keys.pending() == 0, "the acknowledgements")
    stop(process)
    assert rig.execute("SELECT reason FROM forebay.dead_letters") == [("invalid_encoding",)]
    assert len(rig.rows()) == 20


def test_a_recreated_stream_is_read_from_its_beginning(keys: RedisKeys, make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(keys.source(start="latest"))
    process = rig.start()
    eventually(lambda: all(keys.client.exists(name) for name in keys.names), "the groups")
    keys.send(20)
    eventually(lambda: rig.registered() == 20, "20 entries")
    keys.client.delete(keys.names[0])
    keys.send(20)
    eventually(lambda: rig.registered() == 40, "also those of the new one")
    eventually(lambda: rig.said("was gone; it is made again"), "the event")
    stop(process)


def test_a_group_that_is_gone_at_the_next_start_is_reported(
    keys: RedisKeys, make_rig: Callable[..., SourceRig]
) -> None:
    """Check it across processes: the second one has only the driver log, and start="latest" would skip what came."""
    rig = make_rig(keys.source(start="latest"))
    process = rig.start()
    eventually(lambda: rig.said("connected to"), "the groups")
    keys.send(20)
    eventually(lambda: rig.registered() == 20, "20 entries")
    process.kill()
    process.wait(60)
    keys.client.delete(keys.names[0])
    keys.send(20)
    process = rig.start()
    eventually(lambda: rig.said("a gap of unknown size"), "the event")
    eventually(lambda: rig.registered() == 40, "what is there")
    stop(process)


def _set_forward(keys: RedisKeys) -> None:
    """Let the group go on behind all that it has not read."""
    keys.client.xgroup_setid(keys.names[0], keys.source().group, "$")


def _make_group_again(keys: RedisKeys) -> None:
    keys.client.xgroup_destroy(keys.names[0], keys.source().group)
    keys.client.xgroup_create(keys.names[0], keys.source().group, "$")


def _destroy_group(keys: RedisKeys) -> None:
    keys.client.xgroup_destroy(keys.names[0], keys.source().group)


def _make_stream_again(keys: RedisKeys) -> None:
    """Delete the stream, and make another one whose group has read it to its end."""
    keys.client.delete(keys.names[0])
    for number in range(3):
        keys.add({b"new": b"%d" % number})
    keys.client.xgroup_create(keys.names[0], keys.source().group, "$")


def _delete_unread(keys: RedisKeys) -> None:
    entries = keys._entries(keys.names[0])
    keys.client.xdel(keys.names[0], *[entry_id for entry_id, _ in entries[-5:-1]])


def _trim_read(keys: RedisKeys) -> None:
    """Trim what was acknowledged, and nothing else."""
    entries = keys._entries(keys.names[0])
    keys.client.xtrim(keys.names[0], minid=entries[10][0], approximate=False)


# What someone does to the first of two streams while no receiver runs, after 20 entries that were read, before and
# after 10 that were not; what is said of it; and how many of all entries come.
KILLED, STOPPED = True, False
GAPS = [
    (STOPPED, _set_forward, "past 10 entries that it had not read", 40),
    (KILLED, _set_forward, "past 10 entries that it had not read", 40),
    (KILLED, _make_group_again, "past 10 entries that it had not read", 40),
    (KILLED, _destroy_group, "no entry is lost", 50),
    (STOPPED, _make_stream_again, "past 3 entries that it had not read", 40),
    (STOPPED, _make_stream_again, "what it had after", 40),
    (KILLED, _make_stream_again, "what it had after", 40),
    (KILLED, lambda keys: keys.client.xtrim(keys.names[0], maxlen=0, approximate=False), "a gap of 10 entries", 40),
    (KILLED, _delete_unread, "were deleted before they were read (a gap of unknown size)", 46),
    (KILLED, _trim_read, None, 50),
    (STOPPED, lambda keys: keys.client.xgroup_setid(keys.names[0], keys.source().group, "0"), None, 50),
    (KILLED, lambda keys: keys.client.xgroup_delconsumer(keys.names[0], keys.source().group, "forebay-1"), None, 50),
    (KILLED, lambda _: None, None, 50),
]


@pytest.mark.parametrize(("is_killed", "change", "said", "come"), GAPS)
def test_what_a_group_will_never_read_is_reported_and_nothing_else(
    keys: RedisKeys,
    make_rig: Callable[..., SourceRig],
    is_killed: bool,
    change: Callable[[RedisKeys], object],
    said: str | None,
    come: int,
) -> None:
    """Check it across processes: the second one has only the driver log, and the group of Redis."""
    rig = make_rig(keys.source(), receivers=2)
    process = rig.start()
    eventually(lambda: rig.said("connected to"), "the groups")
    keys.send(40)
    eventually(lambda: rig.registered() == 40 and keys.pending() == 0, "what is read")
    if is_killed:
        process.kill()
        process.wait(60)
    else:
        stop(process)
    for _ in range(10):
        keys.add({b"unread": b"1"})
    change(keys)
    process, other = rig.start(), rig.start(1)
    keys.add({b"last": b"1"}, 0)
    eventually(lambda: rig.registered() == come + 1, "what is left")
    eventually(lambda: said is None or rig.said(said), "the event")
    stop(process)
    stop(other)
    assert (said is None) is not rig.said("a gap of") or said == "no entry is lost"


def test_entries_past_which_a_group_is_moved_while_it_reads_are_counted(
    keys: RedisKeys, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(keys.source(), receivers=2)
    processes = [rig.start(0), rig.start(1)]
    keys.send(100)
    eventually(lambda: rig.registered() == 100 and keys.pending() == 0, "the first ones")
    with keys.client.pipeline(transaction=True) as at_once:
        for _ in range(30):
            at_once.xadd(keys.names[0], {"n": "passed"})
        at_once.xgroup_setid(keys.names[0], keys.source().group, "$")
        at_once.execute()
    keys.send(100)
    eventually(lambda: rig.said("past 30 entries that it had not read"), "the event")
    eventually(lambda: rig.registered() == 200, "what came since")
    for process in processes:
        stop(process)


def test_what_another_program_reads_in_the_group_is_counted_in_few_events(
    keys: RedisKeys, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(keys.source())
    process = rig.start()
    keys.send(20)
    eventually(lambda: rig.registered() == 20 and keys.pending() == 0, "the first ones")
    for number in range(30):
        with keys.client.pipeline(transaction=True) as at_once:
            # The other program gets the first one before the receiver is asked again.
            entry = f"{2**42 + number}-1"
            at_once.xadd(keys.names[0], {"of": "another"}, entry)
            at_once.xreadgroup(keys.source().group, "another", {keys.names[0]: ">"})
            at_once.xack(keys.names[0], keys.source().group, entry)
            at_once.execute()
        keys.add({b"of": b"ours"}, entry_id=f"{2**42 + number}-2")
        eventually(lambda number=number: rig.registered() == 21 + number, "ours")  # type: ignore[misc]
    stop(process)
    said = rig.execute("SELECT message FROM forebay.receiver_events WHERE message LIKE '%%past %% entries%%'")
    sizes = [int(message.partition("a gap of ")[2].split()[0]) for (message,) in said]
    assert (sum(sizes), len(sizes) <= 3) == (30, True)


def test_reused_ids_with_other_entries_lose_none(keys: RedisKeys, make_rig: Callable[..., SourceRig]) -> None:
    """Use explicit ids in a stream that is deleted and recreated: the driver log knows all of them."""
    rig = make_rig(keys.source())
    process = rig.start()
    for n in range(10):
        keys.add({b"n": b"first %d" % n}, entry_id=f"{n + 1}-0")
    eventually(lambda: rig.registered() == 10 and keys.pending() == 0, "the first ones")
    keys.client.delete(keys.names[0])
    for n in range(10):
        keys.add({b"n": b"second %d" % n}, entry_id=f"{n + 1}-0")
    eventually(lambda: rig.registered() == 20, "also those of the new stream")
    stop(process)
    assert len({row["fields"][0][1] for row in rig.rows()}) == 20


def test_large_pending_entries_are_read_a_few_at_a_time(keys: RedisKeys, make_rig: Callable[..., SourceRig]) -> None:
    """If all were read at once, a process with too little memory would be killed again and again."""
    rig = make_rig(keys.source())
    name = keys.names[0]
    keys.client.xgroup_create(name, keys.source().group, "0", mkstream=True)
    for n in range(60):
        keys.add({b"n": b"%d" % n, b"large": b"x" * 900_000})
    keys.client.xreadgroup(keys.source().group, f"forebay-{rig.receiver_ids[0]}", {name: ">"})
    with keys.client.monitor() as monitor:  # type: ignore[no-untyped-call]
        process = rig.start()
        eventually(lambda: rig.registered() == 60 and keys.pending() == 0, "all of them")
        keys.client.echo("the end")
        said = []
        while "the end" not in (command := monitor.next_command()["command"]):
            said.append(command)
    stop(process)
    own = [line for line in said if line.startswith("XREADGROUP") and not line.endswith(">")]
    assert len(own) >= 6
    assert {line.partition("COUNT ")[2].partition(" ")[0] for line in own} == {"10"}


def test_tls_and_a_password_by_reference(
    tmp_path: Path, make_rig: Callable[..., SourceRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "tls")
    certificate = authority.issue("localhost")
    holder = RedisServer(tmp_path / "redis")
    settings = {
        "port": 0,
        "tls-port": holder.port,
        "tls-cert-file": certificate.certificate_file,
        "tls-key-file": certificate.key_file,
        "tls-ca-cert-file": authority.ca_file,
        "tls-auth-clients": "no",
        "user": "reader on >hunter2 ~* +@all",
    }
    server = RedisServer(tmp_path / "redis", settings)
    server.port = holder.port
    options: dict[str, object] = {"ssl": True, "ssl_ca_certs": authority.ca_file}
    server.start(**options)
    try:
        client = server.client(**options)
        client.xadd("orders", {"n": "1"})
        source = RedisKeys(server).source(
            streams="orders", username="reader", password=EnvVar("REDIS_PASSWORD"), tls=Tls(ca_file=authority.ca_file)
        )
        rig = make_rig(source)
        monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
        process = rig.start()
        eventually(lambda: rig.registered() == 1, "the entry")
        stop(process)
        monkeypatch.setenv("REDIS_PASSWORD", "wrong")
        process = rig.start()
        eventually(lambda: rig.said("invalid username-password pair"), "the refusal")
        assert not rig.said("hunter2")
        stop(process)
    finally:
        server.kill()


def test_the_pages_commands_and_its_declaration(redis_server: RedisServer, make_rig: Callable[..., SourceRig]) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    commands = [
        line.replace("redis-cli", f"redis-cli -p {redis_server.port}")
        for block in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    [declaration] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(declaration, "README.md", "exec"), names)
    orders = names["orders"]
    assert isinstance(orders, Stream)
    subprocess.run(commands[0], shell=True, check=True, timeout=120)
    rig = make_rig(orders.source.model_copy(update={"port": redis_server.port}))
    process = rig.start()
    eventually(lambda: rig.registered() == 1, "the entry")
    stop(process)
    shown = subprocess.run(commands[1], shell=True, check=True, capture_output=True, text=True, timeout=120)
    assert "forebay-orders" in shown.stdout
    [row] = rig.rows()
    assert row["fields"] == [("customer", b"7"), ("amount", b"12.50")]
