"""Send by real shippers: the Collector's exporter of Splunk HEC, Telegraf, and syslog-ng. ``make senders``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.shippers.scenes import TELEGRAF_METRICS, TOKEN, Shipper, Stage, program, telegraf
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

_COLLECTOR = """
receivers: {{filelog: {{include: ["{file}"], start_at: beginning, poll_interval: 100ms}}}}
exporters:
  splunk_hec:
    endpoint: http://127.0.0.1:{port}/services/collector
    token: {token}
    source: shop
    sourcetype: app
    health_check_enabled: true
    retry_on_failure: {{initial_interval: 200ms, max_interval: 1s, max_elapsed_time: 0}}
    sending_queue: {{queue_size: 10000, block_on_overflow: true}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{logs: {{receivers: [filelog], exporters: [splunk_hec]}}}}
"""


@contextlib.contextmanager
def collector(stage: Stage) -> Iterator[None]:
    """Run OpenTelemetry's Collector with its exporter splunk_hec."""
    configuration = stage.root / "collector.yaml"
    configuration.write_text(_COLLECTOR.format(file=stage.file, port=stage.port, token=TOKEN), encoding="utf-8")
    with stage.run(program("collector"), "--config", f"file:{configuration}"):
        yield


def line(row: Mapping[str, Any]) -> str:
    """Return the line of an event."""
    attributes = dict(row["attributes"])
    assert (attributes["source"], attributes["sourcetype"]) == ("shop", "app")
    text: str = row["body"].decode()
    return text


_SYSLOG_NG = """
@version: 3.38
options {{ keep-hostname(yes); log-msg-size(65536); stats-freq(0); }};
source app {{ file("{file}" flags(no-parse) follow-freq(0.1) log-iw-size(10000)); }};
destination hec {{
  http(url("http://127.0.0.1:{port}/services/collector/event") method("POST")
       headers("Authorization: Splunk {token}", "Content-Type: application/json")
       body("$(format-json event=$MESSAGE time=$S_UNIXTIME source=shop sourcetype=app)") delimiter("\\n")
       workers(2) batch-lines(500) batch-timeout(200) time-reopen(1)
       disk-buffer(reliable(yes) disk-buf-size(100M) mem-buf-size(10M) dir("{root}")));
}};
log {{ source(app); destination(hec); flags(flow-control); }};
"""


@contextlib.contextmanager
def syslog_ng(stage: Stage) -> Iterator[None]:
    """Run syslog-ng with its destination http()."""
    configuration = stage.root / "syslog-ng.conf"
    text = _SYSLOG_NG.format(root=stage.root, file=stage.file, port=stage.port, token=TOKEN)
    configuration.write_text(text, encoding="utf-8")
    with stage.syslog_ng(configuration):
        yield


# Telegraf's output http, in Splunk's format of metrics.
_TELEGRAF = """
[[outputs.http]]
  url = "http://127.0.0.1:{port}/services/collector"
  non_retryable_statuscodes = [400, 413]
  data_format = "splunkmetric"
  splunkmetric_hec_routing = true
  [outputs.http.headers]
    Content-Type = "application/json"
    Authorization = "Splunk {token}"
"""


def metric(row: Mapping[str, Any]) -> str:
    """Return the line from which a metric was made."""
    attributes = dict(row["attributes"])
    assert (row["body"], attributes["fields.metric_name"]) == (b"metric", "app.n")
    return f"app,line={attributes['fields.line']} n={attributes['fields._value']}i {attributes['time']}000000000"


SHIPPERS = {
    "collector": Shipper(collector, line, "splunk_hec"),
    "syslog-ng": Shipper(syslog_ng, line, "splunk_hec"),
    "telegraf": Shipper(
        lambda stage: telegraf(stage, _TELEGRAF, reads=TELEGRAF_METRICS), metric, "splunk_hec", has_text=False
    ),
}
