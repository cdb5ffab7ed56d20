"""Send by real shippers: rsyslog's, syslog-ng's and Telegraf's outputs of Elasticsearch. ``make senders``."""

from __future__ import annotations

import contextlib
import json
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

_RSYSLOG = """
global(maxMessageSize="64k" workDirectory="{root}")
module(load="imfile")
module(load="omelasticsearch")
input(type="imfile" File="{file}" Tag="app" reopenOnTruncate="on")
template(name="document" type="list" option.jsonf="on") {{
  property(outname="@timestamp" name="timereported" dateFormat="rfc3339" format="jsonf")
  property(outname="message" name="msg" format="jsonf")
}}
action(type="omelasticsearch" server="127.0.0.1" serverport="{port}" uid="any" pwd="{token}" bulkmode="on"
       template="document" searchIndex="web" errorFile="{root}/refused"
       action.resumeRetryCount="-1" action.resumeInterval="1"
       queue.type="LinkedList" queue.size="100000" queue.dequeueBatchSize="500")
"""


@contextlib.contextmanager
def rsyslog(stage: Stage) -> Iterator[None]:
    """Run rsyslog with its module omelasticsearch."""
    configuration = stage.root / "rsyslog.conf"
    text = _RSYSLOG.format(root=stage.root, file=stage.file, port=stage.port, token=TOKEN)
    configuration.write_text(text, encoding="utf-8")
    with stage.run(program("rsyslogd"), "-n", "-C", "-f", str(configuration), "-i", str(stage.root / "pid")):
        yield


_SYSLOG_NG = """
@version: 3.38
@include "{include}/scl/elasticsearch/*.conf"
options {{ keep-hostname(yes); log-msg-size(65536); stats-freq(0); }};
source app {{ file("{file}" flags(no-parse) follow-freq(0.1) log-iw-size(10000)); }};
destination web {{
  elasticsearch-http(url("http://127.0.0.1:{port}/_bulk") index("web") type("") user("any") password("{token}")
                     template("$(format-json message=$MESSAGE)")
                     workers(2) batch-lines(500) batch-timeout(200) time-reopen(1)
                     disk-buffer(reliable(yes) disk-buf-size(100M) mem-buf-size(10M) dir("{root}")));
}};
log {{ source(app); destination(web); flags(flow-control); }};
"""


@contextlib.contextmanager
def syslog_ng(stage: Stage) -> Iterator[None]:
    """Run syslog-ng with its destination elasticsearch-http()."""
    configuration = stage.root / "syslog-ng.conf"
    configuration.write_text(
        _SYSLOG_NG.format(
            include=program("syslog-ng").folder / "usr/share/syslog-ng/include",
            root=stage.root,
            file=stage.file,
            port=stage.port,
            token=TOKEN,
        ),
        encoding="utf-8",
    )
    with stage.syslog_ng(configuration):
        yield


# Telegraf's output elasticsearch.
_TELEGRAF = """
[[outputs.elasticsearch]]
  urls = ["http://127.0.0.1:{port}"]
  username = "any"
  password = "{token}"
  index_name = "web-%Y.%m.%d"
  manage_template = true
  template_name = "web"
  health_check_interval = "1s"
"""


def value_of_telegraf(row: Mapping[str, Any]) -> str:
    """Return the line of a metric that Telegraf made of it."""
    text: str = json.loads(row["body"])["tail"]["value"]
    return text


def message(row: Mapping[str, Any]) -> str:
    """Return the line of a document."""
    text: str = json.loads(row["body"])["message"]
    return text


SHIPPERS = {
    "rsyslog": Shipper(rsyslog, message, "elasticsearch"),
    "syslog-ng": Shipper(syslog_ng, message, "elasticsearch"),
    "telegraf": Shipper(lambda stage: telegraf(stage, _TELEGRAF), value_of_telegraf, "elasticsearch"),
}
