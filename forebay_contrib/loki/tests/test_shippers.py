"""Send by real shippers: Promtail, and Telegraf's output of Loki. ``make senders``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.shippers.scenes import TOKEN, Shipper, Stage, program, telegraf
from tests.support.shippers.tests_of_lines import (  # noqa: F401  the tests
    make_rig,
    pytest_generate_tests,
    test_a_line_that_is_refused_holds_up_no_other,
    test_each_line_arrives,
    test_nothing_is_lost_by_kills,
    token,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.senders, pytest.mark.timeout(1800)]

_PROMTAIL = """
server: {{disable: true}}
positions: {{filename: {root}/positions, sync_period: 200ms}}
clients:
  - url: http://127.0.0.1:{port}/loki/api/v1/push
    tenant_id: shop
    bearer_token: {token}
    batchwait: 200ms
    backoff_config: {{min_period: 200ms, max_period: 1s, max_retries: 0}}
scrape_configs:
  - job_name: app
    static_configs: [{{targets: [localhost], labels: {{job: app, __path__: {file}}}}}]
"""


@contextlib.contextmanager
def promtail(stage: Stage) -> Iterator[None]:
    """Run Promtail."""
    configuration = stage.root / "promtail.yaml"
    text = _PROMTAIL.format(root=stage.root, file=stage.file, port=stage.port, token=TOKEN)
    configuration.write_text(text, encoding="utf-8")
    with stage.run(program("promtail"), f"-config.file={configuration}"):
        yield


def line(row: Mapping[str, Any]) -> str:
    """Return the line of an entry."""
    assert dict(row["attributes"])["labels.job"] == "app"
    text: str = row["body"].decode()
    return text


# Telegraf's output loki.
_TELEGRAF = """
[[outputs.loki]]
  domain = "http://127.0.0.1:{port}"
  username = "any"
  password = "{token}"
  gzip_request = true
"""


def value_of_telegraf(row: Mapping[str, Any]) -> str:
    """Return the line of a metric that Telegraf made of it: it escapes nothing in it."""
    text: str = row["body"].decode()
    return text.removeprefix('value="').removesuffix('" ')


SHIPPERS = {
    "promtail": Shipper(promtail, line, "loki"),
    "telegraf": Shipper(lambda stage: telegraf(stage, _TELEGRAF), value_of_telegraf, "loki"),
}
