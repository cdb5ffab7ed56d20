"""Declare that a stream's records are lines of a log: of a pattern with named groups, or pairs as logfmt has them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from receiver_runtime.sources.records.ddl import parse_ddl
from receiver_runtime.sources.records.text_records import TextRecords

_ACCESS_TIME = {"time": "%d/%b/%Y:%H:%M:%S %z"}
_ACCESS_COLUMNS = (
    "client STRING, user STRING, time TIMESTAMP, request STRING, method STRING, path STRING, protocol STRING, "
    "status INT, size BIGINT, referrer STRING, agent STRING"
)


class Regex(TextRecords):
    r"""Each record is a line that a pattern matches as a whole: its named groups become columns by name.

    Patterns are RE2's: they have no look-around and no backreference, and take time in proportion to a line's length.
    A group that matches nothing, or an empty text, is null. Groups without a column are left out.

    ``Regex.nginx()``, ``Regex.apache()`` and ``Regex.syslog()`` are ready. Each takes the columns that you want of it.

    Args:
        pattern: with a named group, as ``(?P<status>\d+)``, for each column; other groups are ``(?:…)``.
        schema: the columns in Spark's DDL, as ``"item STRING, pieces BIGINT NOT NULL, at TIMESTAMP"``.
        times: for columns whose times are not as ISO 8601 has them: a format by the column's name.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "forebay_contrib.log_lines.regex_reader:RegexReader"

    kind: Literal["regex"] = "regex"
    pattern: str

    def __init__(self, pattern: str | None = None, schema: str | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from DDL, or, stored before, as ``columns`` and ``required``. Raises ValueError."""
        if pattern is not None:
            fields = {"pattern": pattern, **fields}
        super().__init__(schema, **fields)

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        # Only its reader knows which patterns it takes.
        self.load_reader()(self)
        return self

    @classmethod
    def nginx(cls, schema: str = f"{_ACCESS_COLUMNS}, forwarded_for STRING", /, *, raw: bool = False) -> Self:
        """Return nginx's access log: the format ``combined``, and ``main``, which has X-Forwarded-For behind it.

        Where nginx writes ``-``, there is null. A request that is no HTTP has null in ``method``, ``path`` and
        ``protocol``.
        """
        pattern = _access(quoted='[^"]*') + r'(?: "(?:-|(?P<forwarded_for>[^"]*))")?'
        return cls(pattern, schema, times=_times(schema), raw=raw)

    @classmethod
    def apache(cls, schema: str = _ACCESS_COLUMNS, /, *, raw: bool = False) -> Self:
        r"""Return Apache's access log: the formats ``common`` and ``combined``.

        Where Apache writes ``-``, there is null. Its escapes, such as ``\"``, are kept.
        """
        return cls(_access(quoted=r'(?:[^"\\]|\\.)*'), schema, times=_times(schema), raw=raw)

    @classmethod
    def syslog(
        cls,
        schema: str = (
            "priority INT, timestamp TIMESTAMP, hostname STRING, app_name STRING, proc_id STRING, msg_id STRING, "
            "structured_data STRING, message STRING"
        ),
        /,
        *,
        raw: bool = False,
    ) -> Self:
        """Return lines of syslog as RFC 5424 has them: ``<34>1 2026-01-02T03:04:05.678Z host app 1 id - message``."""
        word = r"[!-~]+"
        pair = rf'{word}?="(?:[^"\\\]]|\\.)*"'
        return cls(
            r"<(?P<priority>\d{1,3})>1 (?:-|(?P<timestamp>[0-9][^ ]*)) "
            rf"(?:-|(?P<hostname>{word})) (?:-|(?P<app_name>{word})) (?:-|(?P<proc_id>{word})) "
            rf"(?:-|(?P<msg_id>{word})) (?:-|(?P<structured_data>(?:\[{word}?(?: {pair})*\])+))"
            r"(?: (?:\x{FEFF})?(?P<message>(?s:.*)))?",
            schema,
            raw=raw,
        )

    @classmethod
    def syslog_3164(
        cls,
        schema: str = "priority INT, timestamp STRING, hostname STRING, tag STRING, proc_id STRING, message STRING",
        /,
        *,
        raw: bool = False,
    ) -> Self:
        """Return lines of syslog as RFC 3164 has them, also without priority, as in ``/var/log/syslog``.

        ``timestamp`` is text: ``Oct 11 22:14:15`` has neither year nor zone. The source ``Syslog`` completes it from
        the time of arrival.
        """
        return cls(
            r"(?:<(?P<priority>\d{1,3})>)?"
            r"(?P<timestamp>[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[^ ]+) "
            r"(?P<hostname>[^ ]+) (?P<tag>[^ :\[]+)(?:\[(?P<proc_id>[^\]]*)\])?:(?: (?P<message>(?s:.*)))?",
            schema,
            raw=raw,
        )


class Logfmt(TextRecords):
    """Each record is a line of pairs, as ``level=info msg="it is done" took=1.5``: they become columns by key.

    A value with spaces is in double quotes, with the escapes of JSON. Pairs without a column are left out. A key
    without ``=`` is true in a BOOLEAN column, and does not fit another one. ``key=`` is null; ``key=""`` is an empty
    text in a STRING column, else null too. A key that stands twice does not fit, if it has a column.

    Args:
        schema: the columns in Spark's DDL, as ``"item STRING, pieces BIGINT NOT NULL, at TIMESTAMP"``.
        times: for columns whose times are not as ISO 8601 has them: a format by the column's name.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "forebay_contrib.log_lines.logfmt_reader:LogfmtReader"

    kind: Literal["logfmt"] = "logfmt"

    def __init__(self, schema: str | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from DDL, or, stored before, as ``columns`` and ``required``. Raises ValueError."""
        super().__init__(schema, **fields)


def _access(quoted: str) -> str:
    """Return the pattern of an access log; ``quoted`` is that of a text in quotes."""
    return (
        r"(?P<client>[^ ]+) [^ ]+ (?:-|(?P<user>[^ ]+)) \[(?P<time>[^\]]+)\] "
        rf'"(?P<request>(?:(?P<method>[A-Z]+) (?P<path>[^ "]+) (?P<protocol>HTTP/[0-9.]+))|{quoted})" '
        r"(?P<status>[0-9]+) (?:-|(?P<size>[0-9]+))"
        rf'(?: "(?:-|(?P<referrer>{quoted}))" "(?:-|(?P<agent>{quoted}))")?'
    )


def _times(schema: str) -> dict[str, str]:
    """Return the format of the time, if the columns have it."""
    return {
        name: _ACCESS_TIME[name]
        for name, kind in parse_ddl(schema).columns
        if name in _ACCESS_TIME and kind != "string"
    }
