"""Check that a sender ends at once where no request can be taken: at a wrong URL, or a source without channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.client import RequestRefusedError, Sender
from tests.support.servers.channel_receiver import ChannelReceiver, Reply, channel_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def receiver() -> Iterator[ChannelReceiver]:
    with channel_receiver() as made:
        yield made


def refusal(receiver: ChannelReceiver, spool: Path) -> str:
    """Return why a record is refused, which is still in the spool."""
    with Sender("http://127.0.0.1:1", channel="a", spool=spool) as sender:
        sender.send(b"1")
        sender.close(0)
    with Sender(receiver.url, channel="a", spool=spool) as sender:
        with pytest.raises(RequestRefusedError) as refused:
            sender.flush(10)
        assert (sender.status().waiting, sender.status().refused) == (1, 0)
    return str(refused.value)


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_position_that_is_refused_ends_the_sender(receiver: ChannelReceiver, tmp_path: Path, status: int) -> None:
    receiver.before_position = lambda: Reply(status, {"detail": "this source takes keys from body:/id"})
    assert f"({status}: this source takes keys from body:/id): give the stream's" in refusal(receiver, tmp_path / "s")
    assert not receiver.channels


@pytest.mark.parametrize("status", [404, 405])
def test_a_path_that_takes_no_records_ends_the_sender(receiver: ChannelReceiver, tmp_path: Path, status: int) -> None:
    receiver.before = lambda *_: Reply(status, {"detail": "path: there is no /: POST to /v1/s"})
    assert f"({status}: path: there is no /: POST to /v1/s)" in refusal(receiver, tmp_path / "s")


@pytest.mark.parametrize("body", ["whole", "json", 1, None])
def test_a_source_that_makes_no_record_of_each_line_is_sent_nothing(
    receiver: ChannelReceiver, tmp_path: Path, body: object
) -> None:
    receiver.before_position = lambda: Reply(200, {"channel": "a", "offset": 0, "body": body})
    assert f"the source has body={body!r}" in refusal(receiver, tmp_path / "s")
    assert not receiver.channels
