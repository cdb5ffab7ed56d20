r"""Read RFC 3164 headers as devices write them, in bulk: the facts are their vendors' own.

A header is what stands between the priority and the message. RFC 3164's is ``Jan 12 10:01:02 host tag:``. Devices put
before it a sequence number, their name or a card (``43: sw1: RP/0/RSP0/CPU0:``) and a mark (``*`` or ``.``: the clock
is not set). They write the time with a year, a fraction or a zone (``Jan 12 2026 10:01:02.663 UTC:``), or as the time
since their start (``3w2d:``). They end it by a colon, with or without a space before it (``fw1 : %ASA-6-302013:``).

Owns the grammar, as regular expressions that Arrow runs, and the zones that have one meaning. A header matches one of
them from its beginning to its message, or nothing of it is used: this module must never guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_Places = npt.NDArray[np.int64]

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Minutes east of Greenwich. Those of RFC 822, and others that have one meaning; "IST" and "CST" outside America have
# several, and RFC 822 says which "CST" is meant.
_ZONES = {
    "UTC": 0,
    "GMT": 0,
    "Z": 0,
    "WET": 0,
    "WEST": 60,
    "BST": 60,
    "CET": 60,
    "MET": 60,
    "MEZ": 60,
    "WAT": 60,
    "CEST": 120,
    "MEST": 120,
    "MESZ": 120,
    "CAT": 120,
    "SAST": 120,
    "EET": 120,
    "EEST": 180,
    "MSK": 180,
    "EAT": 180,
    "IDT": 180,
    "PKT": 300,
    "WIB": 420,
    "SGT": 480,
    "HKT": 480,
    "AWST": 480,
    "JST": 540,
    "KST": 540,
    "ACST": 570,
    "ACDT": 630,
    "AEST": 600,
    "AEDT": 660,
    "NZST": 720,
    "NZDT": 780,
    "EST": -300,
    "EDT": -240,
    "CST": -360,
    "CDT": -300,
    "MST": -420,
    "MDT": -360,
    "PST": -480,
    "PDT": -420,
    "AKST": -540,
    "AKDT": -480,
    "HST": -600,
}
_OFFSET = r"[+-]\d\d(?::?\d\d)?"
_KNOWN_ZONE = f"(?:{'|'.join(sorted(_ZONES, key=len, reverse=True))}|{_OFFSET})"
_ANY_ZONE = rf"(?:[A-Z]{{2,5}}(?:[+-]\d{{1,2}}(?::?\d\d)?)?|{_OFFSET})"
# Words that belong to the time before them, or may do so: a zone with several meanings, "PM".
_TIME_WORD = (
    rf"^(?:{'|'.join(_ZONES)}|[AaPp]\.?[Mm]\.?|IST|AST|ADT|SST|ChST|(?:UTC|GMT)[+-][0-9]{{1,4}}|utc|gmt"
    r"|[A-Z]{3,4}[0-9]{1,2}[A-Z]{3,4}"
    r"|(?:Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Etc|Europe|Indian|Pacific|US)/[A-Za-z_/+-]+)(?:\s|$)"
)
# A name, an IPv4 address or an IPv6 address. syslog-ng joins names: "source@first/relay".
_HOST = (
    r"(?:[0-9._-]*[A-Za-z_][A-Za-z0-9_.@/-]*|\d{1,3}(?:\.\d{1,3}){3}"
    r"|\[?[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*(?:%[A-Za-z0-9]+)?\]?)"
)
_IN_TAG = r"[A-Za-z0-9_/%.()*~@+#&$-]"
_TAG = (
    rf"(?P<tag>[A-Za-z0-9_/%.(*]{_IN_TAG}*(?:::{_IN_TAG}+)*)"
    r"(?:(?P<open>\[)(?P<process>[^\[\]\s]+)(?P<close>\]))?(?P<tag_end>:)(?P<behind_tag> |$)"
)
_MNEMONIC = r"(?P<tag>[%#][A-Za-z0-9_]+(?:-[A-Za-z0-9_/]+)*-{1,2}[0-7]-[A-Za-z0-9_]+)(?P<tag_end> ?:)(?P<behind_tag> ?)"
# A sequence number or two, the colon of a missing name, and a card.
_LEAD = r"(?P<lead>(?:\d{1,10}: ){0,2}(?:: ?)?)"
_NODE = rf"(?P<node>(?:(?:{_HOST} )?[A-Za-z0-9]+(?:/[A-Za-z0-9]+){{2,4}}:)?)"
_MONTH = "|".join(MONTHS)
#: Digits of a fraction that a time in microseconds does not have.
FINER = r"\d{6}0*[1-9]"
_ISO = (
    r"(?P<iso>\d{4}[-:]\d\d[-:]\d\d[T-]\d\d:\d\d:\d\d)(?:[.,](?P<iso_fraction>\d{1,9}))?"
    rf"(?P<iso_zone>(?:Z|{_OFFSET})?)"
)
_UPTIME = r"\d+y\d+w|\d+w\d+d|\d+d\d+h|\d{1,3}:\d\d:\d\d(?:\.\d{1,6})?"


def _clock(zone: str) -> str:
    return (
        rf"(?:(?P<year_first>\d{{4}}) )?(?P<month>{_MONTH}) {{1,2}}(?P<day>\d{{1,2}}) (?:(?P<year>\d{{4}}) )?"
        r"(?P<hour>\d{1,2}):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
        rf"(?: (?P<year_behind>20\d\d))?(?: ?(?P<zone>{zone}))?(?: (?P<year_last>20\d\d))?"
    )


_TIMED = rf"^{_LEAD}{_NODE}(?P<time>[*.]?(?:{_clock(_KNOWN_ZONE)}|{_ISO}))"
_CONTEXT = r"(?P<context>(?:%\$ VDC-\d+ %\$ )?)"
# Before a Cisco mnemonic, a colon ends the time, so that what stands before it is a zone of any name.
_CISCO = (
    rf"^{_LEAD}(?:(?P<origin>{_HOST})(?P<behind_origin> ?: ))?(?P<number>(?:\d{{1,10}}: )?)"
    rf"(?P<thread>(?:\*[A-Za-z0-9_.-]+: )?){_NODE}"
)
_CISCO_COLON = rf"{_CISCO}(?P<time>[*.]?(?:{_clock(_ANY_ZONE)}|{_ISO}|{_UPTIME}))(?P<space>: {{1,2}}){_MNEMONIC}"
_CISCO_HOST = (
    rf"{_CISCO}(?P<time>[*.]?(?:{_clock(_KNOWN_ZONE)}|{_ISO}))(?P<space> {{1,2}}(?:: {{1,2}})?)"
    rf"(?:(?P<host>{_HOST})(?P<behind_host>(?: {{0,2}}:)? {{1,2}}))?{_CONTEXT}{_MNEMONIC}"
)
_CISCO_NO_TIME = rf"^{_LEAD}(?:(?P<host>{_HOST})(?P<behind_host>(?: {{0,2}}:)? {{1,2}}))?{_MNEMONIC}"
# AIX names the host whose message it forwards. An access point of UniFi names its model, its address and its version.
_FORWARDED = rf"{_TIMED}(?P<space> Message forwarded from )(?P<host>{_HOST})(?P<behind_host>: )(?:{_TAG})?"
_UNIFI = (
    rf'{_TIMED}(?P<space> (?:\(")?)(?P<host>[A-Za-z0-9.-]+,[0-9A-Fa-f]{{12}},v[A-Za-z0-9.+-]+)'
    rf'(?P<behind_host>(?:"\))?:? )(?:{_TAG})?'
)
_TAGGED = (
    rf"{_TIMED}(?:(?P<colon> ?: ?)|(?P<space> {{1,2}})(?:(?P<host>{_HOST})(?P<behind_host>(?: {{1,2}}:)? {{1,2}}))?)"
    rf"{_CONTEXT}{_TAG}"
)
# Messages that begin without a host: documents, repetitions, marks, a single word.
_BODY = (
    r'\{|\[[{"]|<[?A-Za-z]|CEF:\d|LEEF:\d|-- MARK --|(?:last )?message repeated \d|[A-Za-z_][A-Za-z0-9_.-]*='
    r"|\d,\d{4}/\d\d/\d\d |\S*$"
)
_UNTAGGED = (
    rf"{_TIMED}(?:$|(?P<colon> ?: ?)"
    rf"|(?P<space> {{1,2}})(?:(?P<body>{_BODY})|(?P<host>{_HOST})(?P<behind_host> : ?| |\t)))"
)
_TAG_ONLY = f"^{_TAG}"
_PATTERNS = (
    *(_CISCO_COLON, _CISCO_HOST, _CISCO_NO_TIME, _FORWARDED, _UNIFI, _TAGGED, _UNTAGGED),
    _TAG_ONLY.replace("[A-Za-z0-9_/%.(*]", "[A-Za-z_/%.(*]", 1),  # a number is no application without a time
)
# A text that begins like this has a time; if no pattern matched, its header is unknown. The second form has the dates
# of other standards, by which no device is known to begin a header; months may have their names in any language. What
# goes on behind a time's seconds with a colon is an address (`port 12 00:11:22:33:44:55`).
_BEGINS_WITH_TIME = (
    rf"^(?:\d{{1,10}}: ){{0,2}}(?:: ?)?(?:\S+ )?(?:\S+:)?[*.]?"
    rf"(?:(?:\d{{4}} )?(?:{_MONTH}) {{1,2}}\d{{1,2}} (?:\d{{4}} )?\d{{1,2}}:\d\d:\d\d|\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d)"
    r"|^\[?(?:\pL{2,10}[.,]? )?(?:"
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/. ]+(?:\pL{3,10}|\d{1,2})[-/. ]+\d{2,4})[T_, :]+"
    r"|\pL{3,10}\.? +(?:0?[1-9]|[12]\d|3[01])(?:,? \d{4})?,? +)\d{1,2}:\d\d:\d\d(?:[^:\d]|$)"
)
# Behind a word of a few capitals, a year, or a host and a tag, say that the word is no host. F5 writes the severity
# between host and tag.
_MAY_BE_ZONE = r"^[A-Z]{2,5}$"
_YEAR_OR_HOST = rf"^(?:\d{{4}}\s|{_HOST} {{1,2}}{_TAG})"
_SEVERITY = r"^(?:emerg|alert|crit|err|error|warning|warn|notice|info|debug) "
# The groups of a pattern that follow one another: their lengths say where each of them is.
_STRETCHES = (
    *("lead", "origin", "behind_origin", "number", "thread", "node", "time", "colon", "space", "host", "behind_host"),
    *("context", "tag", "open", "process", "close", "tag_end", "behind_tag"),
)
_UNKNOWN_ZONE = np.iinfo(np.int64).min
#: In place of an offset: the time has no zone.
NO_ZONE = _UNKNOWN_ZONE + 1


@dataclass(slots=True)
class DeviceHeaders:
    """Hold what was read of some texts. Places count from each text's beginning; a part that is missing is empty.

    ``unknown``: there is a time, and no header that is known; all other fields are as if there were none.
    ``time`` is a local time, in microseconds; ``offset`` its zone, in minutes east of Greenwich, or ``NO_ZONE``.
    ``has_time``: there is one, and it exists. ``wants_time``: there is one that may not exist. ``is_finer``: it has
    more digits than microseconds. ``message_at``: where the message begins.
    """

    unknown: npt.NDArray[np.bool_]
    time: npt.NDArray[np.datetime64]
    offset: _Places
    has_time: npt.NDArray[np.bool_]
    wants_time: npt.NDArray[np.bool_]
    is_finer: npt.NDArray[np.bool_]
    host_at: _Places
    host_end: _Places
    app_at: _Places
    app_end: _Places
    process_at: _Places
    process_end: _Places
    message_at: _Places


def read_device_headers(texts: pa.Array, years: _Places) -> DeviceHeaders:
    """Read the headers of texts that begin behind their priorities.

    Args:
        texts: without nulls.
        years: for each month, from 1 on, the year of a time that has none.
    """
    size = len(texts)
    read = DeviceHeaders(
        np.zeros(size, dtype=bool),
        np.zeros(size, dtype="datetime64[us]"),
        np.full(size, NO_ZONE),
        *(np.zeros(size, dtype=bool) for _ in range(3)),
        *(np.zeros(size, dtype=np.int64) for _ in range(7)),
    )
    rest = np.arange(size)
    for pattern in _PATTERNS:
        if not rest.size:
            break
        some = texts.take(pa.array(rest))
        matched = pc.extract_regex(some, pattern)
        is_hit = np.asarray(matched.is_valid())
        if is_hit.any():
            hits = pa.array(np.flatnonzero(is_hit))
            _put(read, rest[is_hit], _Matches(some.take(hits), matched.take(hits)), years)
            rest = rest[~is_hit]
    if rest.size:
        read.unknown[rest] = pc.match_substring_regex(texts.take(pa.array(rest)), _BEGINS_WITH_TIME)
    return read


class _Matches:
    """Give the groups of the texts that matched one pattern."""

    def __init__(self, texts: pa.Array, matched: pa.StructArray) -> None:
        self._texts = texts
        self._matched = matched
        self._names = {field.name for field in matched.type}
        lengths = np.array([self.lengths(name) for name in _STRETCHES])
        self._stops = dict(zip(_STRETCHES, np.cumsum(lengths, axis=0), strict=True))

    def text(self, name: str) -> pa.Array:
        if name not in self._names:
            return pa.array([""] * len(self._texts), pa.string())
        return pc.fill_null(pc.struct_field(self._matched, name), "")

    def lengths(self, name: str) -> _Places:
        return np.asarray(pc.binary_length(self.text(name)), dtype=np.int64)

    def places(self, name: str) -> tuple[_Places, _Places]:
        """Return where a stretch begins and ends."""
        stop = self._stops[name]
        return stop - self.lengths(name), stop

    def are_messages_like(self, pattern: str, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return where, among ``rows``, what stands behind the header matches ``pattern``."""
        found = np.zeros(rows.size, dtype=bool)
        places = np.flatnonzero(rows)
        octets = self._texts.take(pa.array(places)).cast(pa.binary()).to_pylist()
        stops = self._stops["behind_tag"][places].tolist()
        messages = [text[stop:] for text, stop in zip(octets, stops, strict=True)]
        if messages:
            found[places] = pc.match_substring_regex(pa.array(messages, pa.binary()), pattern)
        return found


def _put(read: DeviceHeaders, rows: _Places, matches: _Matches, years: _Places) -> None:
    unknown = _changes_the_time(matches)
    read.unknown[rows] = unknown
    known = ~unknown
    # The name in front, or that of the card's host, or the word behind the time.
    node_at, _ = matches.places("node")
    node_host = np.asarray(pc.find_substring(matches.text("node"), " "), dtype=np.int64)
    host_at, host_end = matches.places("host")
    origin_at, origin_end = matches.places("origin")
    is_node, is_origin = (host_end == host_at) & (node_host > 0), (host_end == host_at) & (node_host <= 0)
    host_at = np.where(is_origin, origin_at, np.where(is_node, node_at, host_at))
    host_end = np.where(is_origin, origin_end, np.where(is_node, node_at + node_host, host_end))
    read.host_at[rows], read.host_end[rows] = host_at * known, host_end * known
    for name, at, end in (("tag", read.app_at, read.app_end), ("process", read.process_at, read.process_end)):
        begin, stop = matches.places(name)
        at[rows], end[rows] = begin * known, stop * known
    read.message_at[rows] = matches.places("behind_tag")[1] * known
    time, offset, exists, wanted = _times(matches, years)
    read.time[rows], read.offset[rows] = time, offset
    fraction = pc.binary_join_element_wise(matches.text("fraction"), matches.text("iso_fraction"), "")
    read.is_finer[rows] = known & np.asarray(pc.match_substring_regex(fraction, FINER))
    read.wants_time[rows] = wanted & known
    read.has_time[rows] = wanted & exists & known & (offset != _UNKNOWN_ZONE)


def _changes_the_time(matches: _Matches) -> npt.NDArray[np.bool_]:
    """Return where the word behind the time may belong to it, so that neither time nor host is known."""
    host = matches.text("host")
    has_host, has_tag, is_colon = (matches.lengths(name) > 0 for name in ("host", "tag", "colon"))
    first = pc.if_else(pa.array(has_host), host, matches.text("tag"))
    is_word = np.asarray(pc.match_substring_regex(first, _TIME_WORD)) & ~is_colon
    is_word |= matches.are_messages_like(_TIME_WORD, ~has_host & ~has_tag & ~is_colon)
    is_second = np.asarray(pc.match_substring_regex(host, _MAY_BE_ZONE)) & ~has_tag
    is_second &= matches.are_messages_like(_YEAR_OR_HOST, is_second)
    is_second &= ~matches.are_messages_like(_SEVERITY, is_second)
    return (matches.lengths("time") > 0) & (is_word | is_second)


def _times(
    matches: _Matches, years: _Places
) -> tuple[npt.NDArray[np.datetime64], _Places, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return local times, their offsets, whether they exist, and whether there is one at all."""

    def numbers(texts: pa.Array) -> _Places:
        return np.asarray(pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int64()), dtype=np.int64)

    iso = matches.text("iso")

    def part(name: str, start: int, stop: int) -> _Places:
        return numbers(matches.text(name)) + numbers(pc.utf8_slice_codeunits(iso, start, stop))

    month = np.asarray(pc.fill_null(pc.index_in(matches.text("month"), pa.array(MONTHS)), -1), dtype=np.int64) + 1
    month += numbers(pc.utf8_slice_codeunits(iso, 5, 7))
    wanted = np.asarray(pc.greater(pc.binary_length(iso), 0)) | (month > 0)
    exists = (month > 0) & (month <= len(MONTHS))
    month = np.where(exists, month, 1)
    names = ("year_first", "year", "year_behind", "year_last")
    given = np.maximum.reduce(
        [numbers(matches.text(name)) for name in names] + [numbers(pc.utf8_slice_codeunits(iso, 0, 4))]
    )
    year = np.where(given > 0, given, years[month])
    day, hour = part("day", 8, 10), part("hour", 11, 13)
    minute, second = part("minute", 14, 16), part("second", 17, 19)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    exists &= (days.astype("datetime64[M]") == months) & (day > 0)
    exists &= (hour < 24) & (minute < 60) & (second < 60)  # noqa: PLR2004  of a clock
    fraction = pc.binary_join_element_wise(matches.text("fraction"), matches.text("iso_fraction"), "")
    micros = numbers(pc.utf8_slice_codeunits(pc.utf8_rpad(fraction, 6, "0"), 0, 6))
    seconds = np.where(exists, hour * 3600 + minute * 60 + second, 0)
    time = days.astype("datetime64[us]") + (seconds * 1_000_000 + micros).astype("timedelta64[us]")
    return (
        time,
        _offsets(pc.binary_join_element_wise(matches.text("zone"), matches.text("iso_zone"), "")),
        exists,
        wanted,
    )


def _offsets(zones: pa.Array) -> _Places:
    """Return the offsets of zones by name or number, in minutes."""
    # Few zones are different ones.
    coded = pc.dictionary_encode(zones)
    values = [_offset(zone) for zone in coded.dictionary.to_pylist()]
    offsets: _Places = np.array(values, dtype=np.int64)[np.asarray(coded.indices)]
    return offsets


def _offset(zone: str) -> int:
    if not zone:
        return NO_ZONE
    if zone[0] in "+-":
        digits = zone[1:].replace(":", "")
        hours, minutes = int(digits[:2]), int(digits[2:] or 0)
        if hours >= 24 or minutes >= 60:  # noqa: PLR2004  of a clock
            return _UNKNOWN_ZONE
        minutes += 60 * hours
        return -minutes if zone[0] == "-" else minutes
    return _ZONES.get(zone, _UNKNOWN_ZONE)
