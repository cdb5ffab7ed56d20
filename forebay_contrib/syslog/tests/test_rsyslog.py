"""Debian's rsyslog as the sender to a syslog source: its framings and formats, and TLS if its module is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay_contrib.syslog.declaration import Syslog
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.sources.fields.tcp import Tls
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually, reaches

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.brokers

RSYSLOGD = shutil.which("rsyslogd") or "/usr/sbin/rsyslogd"
# Provided by Debian's package rsyslog-gnutls.
HAS_TLS = bool(list(Path("/usr/lib").glob("*/rsyslog/lmnsd_gtls.so")))

FORMATS = ["RSYSLOG_SyslogProtocol23Format", "RSYSLOG_TraditionalForwardFormat", "RSYSLOG_ForwardFormat"]

_CONFIGURATION = """
{settings}
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="{root}/in.sock" CreatePath="on" RateLimit.Interval="0")
action(type="omfwd" target="127.0.0.1" port="{port}" template="{template}" {transport}
       action.resumeRetryCount="-1" action.resumeInterval="1" queue.type="LinkedList" queue.size="100000")
"""


@contextmanager
def rsyslog(root: Path, port: int, template: str, transport: str, settings: str = "") -> Iterator[Path]:
    """Run rsyslog, which forwards messages that come to the returned socket."""
    root.mkdir(parents=True)
    configuration = root / "rsyslog.conf"
    configuration.write_text(
        _CONFIGURATION.format(root=root, port=port, template=template, transport=transport, settings=settings)
    )
    with (root / "out.log").open("wb") as out:
        process = subprocess.Popen(
            [RSYSLOGD, "-n", "-C", "-f", str(configuration), "-i", str(root / "pid")], stdout=out, stderr=out
        )
    try:
        eventually((root / "in.sock").exists, "rsyslog's socket")
        yield root / "in.sock"
    finally:
        process.terminate()
        process.wait(20)
        print((root / "out.log").read_text())  # noqa: T201  shown if the test fails


def log(where: Path, *messages: str) -> None:
    """Send messages with util-linux's logger, as programs do with syslog(3)."""
    subprocess.run(
        [
            "logger",
            "--socket",
            str(where),
            "--socket-errors=on",
            "--tag",
            "my-app",
            "--priority",
            "user.info",
            "--id=7",
        ],
        input="".join(f"{message}\n" for message in messages),
        text=True,
        check=True,
        timeout=120,
    )


def port_of(made: Rig) -> int:
    """Return the receiver's port, once it listens."""

    def said() -> list[str]:
        return [reason for reason in made.reporter.reasons if reason.startswith("listening on ")]

    eventually(said, "listening")
    return int(said()[-1].rpartition(":")[2])


def rows(made: Rig) -> list[dict[str, Any]]:
    found = []
    for item in made.log.chain(1):
        at = item.handle
        for batch in made.store.read_batches(made.rows.paths[at.segment_id], at.offset, at.length, at.crc32c):
            found += batch.to_pylist()
    return found


@pytest.mark.core
@pytest.mark.parametrize("template", FORMATS)
@pytest.mark.parametrize(
    "transport",
    ['protocol="tcp" TCP_Framing="octet-counted"', 'protocol="tcp" TCP_Framing="traditional"', 'protocol="udp"'],
)
def test_messages_come_parsed(tmp_path: Path, template: str, transport: str) -> None:
    of_source = "udp" if "udp" in transport else "tcp"
    source = Syslog.model_validate({"listen": "127.0.0.1:0", "transports": [of_source]})
    with rig(tmp_path / "rig", make_receiver(source)) as made:
        with rsyslog(tmp_path / "rsyslog", port_of(made), template, transport) as where:
            log(where, *(f"message {number}: über" for number in range(500)))
            eventually(reaches(lambda: sum(row["app_name"] == "my-app" for row in rows(made)), 500))
        found = [row for row in rows(made) if row["app_name"] == "my-app"]
    assert [row["message"].strip() for row in found] == [f"message {number}: über" for number in range(500)]
    for row in found:
        assert (row["priority"], row["proc_id"], row["parse_error"]) == (14, "7", None)
        assert row["hostname"] == socket.gethostname().partition(".")[0]
        assert row["version"] == (1 if template == FORMATS[0] else None)
        if template != FORMATS[1]:
            assert abs((row["received_at"] - row["timestamp"]).total_seconds()) < 60


def test_messages_queued_while_nothing_listens_come_later(tmp_path: Path) -> None:
    transport = 'protocol="tcp" TCP_Framing="octet-counted"'
    with held_port() as port, rsyslog(tmp_path / "rsyslog", port, FORMATS[0], transport) as where:
        source = Syslog(listen=f"127.0.0.1:{port}", transports=("tcp",))
        log(where, *(f"message {number}" for number in range(1000)))
        with rig(tmp_path / "rig", make_receiver(source)) as made:
            # Do not count rows: one of them may be a repetition.
            eventually(
                reaches(lambda: len({row["message"] for row in rows(made) if row["app_name"] == "my-app"}), 1000)
            )
            found = [row["message"].strip() for row in rows(made) if row["app_name"] == "my-app"]
    # rsyslog sends the message that it could not deliver at first twice, to any receiver.
    assert list(dict.fromkeys(found)) == [f"message {number}" for number in range(1000)]
    assert len(found) <= 1001


@pytest.mark.skipif(not HAS_TLS, reason="rsyslog's TLS module is not here: install Debian's rsyslog-gnutls")
def test_messages_come_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.issue("receiver.test")
    tls = Tls(certificate_file=certificate.certificate_file, key_file=certificate.key_file)
    source = Syslog(listen="127.0.0.1:0", transports=("tcp",), tls=tls)
    transport = (
        'protocol="tcp" TCP_Framing="octet-counted" StreamDriver="gtls" StreamDriverMode="1" '
        'StreamDriverAuthMode="x509/name" StreamDriverPermittedPeers="receiver.test"'
    )
    settings = f'global(DefaultNetstreamDriverCAFile="{authority.ca_file}")'
    with (
        rig(tmp_path / "rig", make_receiver(source)) as made,
        rsyslog(tmp_path / "rsyslog", port_of(made), FORMATS[0], transport, settings) as where,
    ):
        log(where, *(f"message {number}" for number in range(500)))
        eventually(reaches(lambda: sum(row["app_name"] == "my-app" for row in rows(made)), 500))
