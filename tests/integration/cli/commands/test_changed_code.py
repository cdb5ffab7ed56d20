"""Test what `forebay up` does when the code or the driver log changes beside it, without its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay import ConsoleSink, Pipeline, Stream
from forebay.cli.commands.up import CODE_SERVER, Services
from forebay.sources import SocketText
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa


def declared(interval: str, port: int = 9999) -> list[Pipeline]:
    """Return a pipeline of one stream with these values."""
    pipeline = Pipeline("words", interval=interval)

    @pipeline.output(inputs=[Stream("lines", SocketText(host="127.0.0.1", port=port))], sink=ConsoleSink())
    def counts(lines: object) -> object:
        return lines

    return [pipeline]


@pytest.mark.parametrize("changed", [declared("5s"), declared("10s", port=9998)])
def test_the_code_server_starts_again_when_apply_changed_the_driver_log(
    engine: sa.Engine, home: Path, monkeypatch: pytest.MonkeyPatch, changed: list[Pipeline]
) -> None:
    services = Services(Settings(home=home))
    restarted: list[str] = []
    monkeypatch.setattr(services._supervisor, "restart", restarted.append)
    with connect(engine) as connection:
        services._pipelines = declared("10s")
        apply(connection, services._pipelines)
        services._follow_the_driver_log(connection)
        restarted.clear()
        apply(connection, services._pipelines)
        services._follow_the_driver_log(connection)
        assert restarted == [], "nothing has changed"
        apply(connection, changed)
        services._follow_the_driver_log(connection)
        services._follow_the_driver_log(connection)
    assert restarted == [CODE_SERVER]
