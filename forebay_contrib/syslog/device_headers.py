r"""Read the headers that devices write in the place of RFC 3164's, in bulk: the facts are their vendors' own.

A header is what stands between the priority and the message. RFC 3164's is ``Jan 12 10:01:02 host tag:``. Devices put
before it a sequence number, their name or a card (``43: sw1: RP/0/RSP0/CPU0:``) and a mark (``*`` or ``.``: the clock
is not set). They write the time with a year, a fraction or a zone (``Jan 12 2026 10:01:02.663 UTC:``), or as the time
since their start (``3w2d:``). They end it by a colon, with or without a space before it (``fw1 : %ASA-6-302013:``).

Owns the grammar, as one regular expression that Arrow runs, and the zones that have one meaning. What it does not
match is no such header: it must never guess.
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
    "CEST": 120,
    "MEST": 120,
    "EET": 120,
    "EEST": 180,
    "MSK": 180,
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
_OFFSET = r"[+-]\d\d:?\d\d"
# A sequence number or two, the colon of a missing name, and a card.
_LEAD = r"(?P<lead>(?:\d{1,10}: ){0,2}(?:: ?)?)"
_NODE = r"(?P<node>(?:(?:[^\s:]+ )?[A-Za-z0-9]+(?:/[A-Za-z0-9]+){2,4}:)?)"
_CLOCK = (
    rf"(?:(?P<year_first>\d{{4}}) )?(?P<month>{'|'.join(MONTHS)}) {{1,2}}(?P<day>\d{{1,2}}) (?:(?P<year>\d{{4}}) )?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?: (?P<year_last>20\d\d))?"
)
_ISO = r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d))"
_UPTIME = r"\d+y\d+w|\d+w\d+d|\d+d\d+h|\d{1,3}:\d\d:\d\d"
_ZONE = f"(?:{'|'.join(sorted(_ZONES, key=len, reverse=True))}|{_OFFSET})"
# A name in front, a zone of any name and the time since the start can only be these where a Cisco mnemonic follows.
_CISCO = (
    rf"^{_LEAD}(?:(?P<origin>[^\s:]*[A-Za-z_][^\s:]*)(?P<behind_origin>: ))?{_NODE}"
    rf"(?P<time>[*.]?(?:{_CLOCK}(?: ?(?P<zone>[A-Z]{{2,5}}|{_OFFSET}))?|{_ISO}|{_UPTIME}))(?P<colon> ?: )%"
)
_OTHERS = (
    rf"^{_LEAD}{_NODE}(?P<time>[*.]?(?:{_CLOCK}(?: ?(?P<zone>{_ZONE}))?|{_ISO}))"
    r"(?:(?P<colon> ?: ?)|(?P<space>  ?)(?P<host>[^\s:]+)(?P<behind_host> : | )|(?P<no_host>  ?))"
)
# The groups of a pattern that follow one another: their lengths say where each of them is.
_STRETCHES = ("lead", "origin", "behind_origin", "node", "time", "colon", "space", "host", "behind_host", "no_host")
_UNKNOWN_ZONE = np.iinfo(np.int64).min
#: In place of an offset: the time has no zone.
NO_ZONE = _UNKNOWN_ZONE + 1


@dataclass(slots=True)
class DeviceHeaders:
    """Hold what was read of some texts. Places count from each text's beginning, and mean nothing unless ``found``.

    ``time`` is a local time, in microseconds; ``offset`` its zone, in minutes east of Greenwich, or ``NO_ZONE``.
    ``has_time``: there is one, and it exists. ``wants_time``: there is one that may not exist. ``iso_at`` and
    ``iso_end``: a time of RFC 3339, which is read elsewhere; both 0 where there is none. ``host_at`` and ``host_end``:
    the same of the host. ``end``: where the tag or the message begins.
    """

    found: npt.NDArray[np.bool_]
    time: npt.NDArray[np.datetime64]
    offset: _Places
    has_time: npt.NDArray[np.bool_]
    wants_time: npt.NDArray[np.bool_]
    iso_at: _Places
    iso_end: _Places
    host_at: _Places
    host_end: _Places
    end: _Places


def read_device_headers(texts: pa.Array, years: _Places) -> DeviceHeaders:
    """Read the headers of texts that begin behind their priorities.

    Args:
        texts: without nulls.
        years: for each month, from 1 on, the year of a time that has none.
    """
    size = len(texts)
    found = np.zeros(size, dtype=bool)
    read = DeviceHeaders(
        found,
        np.zeros(size, dtype="datetime64[us]"),
        np.full(size, NO_ZONE),
        np.zeros(size, dtype=bool),
        np.zeros(size, dtype=bool),
        *(np.zeros(size, dtype=np.int64) for _ in range(5)),
    )
    for pattern in (_CISCO, _OTHERS):
        rows = np.flatnonzero(~found)
        if not rows.size:
            break
        matched = pc.extract_regex(texts.take(pa.array(rows)), pattern)
        hits = np.flatnonzero(np.asarray(matched.is_valid()))
        if hits.size:
            _put(read, rows[hits], matched.take(pa.array(hits)), years)
    return read


def _put(read: DeviceHeaders, rows: _Places, matched: pa.StructArray, years: _Places) -> None:
    names = {field.name for field in matched.type}

    def group(name: str) -> pa.Array:
        return pc.struct_field(matched, name)

    def lengths(name: str) -> _Places:
        if name not in names:
            return np.zeros(rows.size, dtype=np.int64)
        return np.asarray(pc.fill_null(pc.binary_length(group(name)), 0), dtype=np.int64)

    def numbers(name: str, missing: int = 0) -> _Places:
        texts = group(name)
        there = pc.greater(pc.binary_length(texts), 0)
        return np.asarray(pc.fill_null(pc.if_else(there, texts, None).cast(pa.int64()), missing), dtype=np.int64)

    stops = dict(zip(_STRETCHES, np.cumsum([lengths(name) for name in _STRETCHES], axis=0), strict=True))
    read.found[rows] = True
    read.end[rows] = stops["no_host"]
    # The name in front, or that of the card's host, or the word behind the time.
    node_host = np.asarray(pc.find_substring(group("node"), " "), dtype=np.int64)
    origin, host = lengths("origin"), lengths("host")
    at = np.where(host > 0, stops["space"], np.where(node_host > 0, stops["behind_origin"], stops["lead"]))
    end = np.where(
        host > 0, stops["host"], np.where(node_host > 0, stops["behind_origin"] + node_host, stops["origin"])
    )
    has_host = (host > 0) | (node_host > 0) | (origin > 0)
    read.host_at[rows], read.host_end[rows] = np.where(has_host, at, 0), np.where(has_host, end, 0)

    iso = lengths("iso")
    iso_at = stops["time"] - iso
    read.iso_at[rows], read.iso_end[rows] = np.where(iso > 0, iso_at, 0), np.where(iso > 0, stops["time"], 0)

    month = np.asarray(pc.fill_null(pc.index_in(group("month"), pa.array(MONTHS)), -1), dtype=np.int64) + 1
    is_clock = month > 0
    month = np.where(is_clock, month, 1)
    given = np.maximum.reduce([numbers("year_first"), numbers("year"), numbers("year_last")])
    year = np.where(given > 0, given, years[month])
    day, hour = numbers("day", 1), numbers("hour")
    minute, second = numbers("minute"), numbers("second")
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    exists = (days.astype("datetime64[M]") == months) & (day > 0) & (hour < 24) & (minute < 60) & (second < 60)  # noqa: PLR2004
    micros = np.asarray(
        pc.fill_null(pc.utf8_slice_codeunits(pc.utf8_rpad(group("fraction"), 6, "0"), 0, 6).cast(pa.int64()), 0)
    )
    seconds = np.where(exists, hour * 3600 + minute * 60 + second, 0)
    read.time[rows] = days.astype("datetime64[us]") + (seconds * 1_000_000 + micros).astype("timedelta64[us]")
    offset = _offsets(group("zone"))
    read.offset[rows] = offset
    read.wants_time[rows] = is_clock
    read.has_time[rows] = is_clock & exists & (offset != _UNKNOWN_ZONE)


def _offsets(zones: pa.Array) -> _Places:
    """Return the offsets of zones by name or number, in minutes."""
    # Few zones are different ones.
    coded = pc.dictionary_encode(pc.fill_null(zones, ""))
    values = [_offset(zone) for zone in coded.dictionary.to_pylist()]
    offsets: _Places = np.array(values, dtype=np.int64)[np.asarray(coded.indices)]
    return offsets


def _offset(zone: str) -> int:
    if not zone:
        return NO_ZONE
    if zone[0] in "+-":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        return -minutes if zone[0] == "-" else minutes
    return _ZONES.get(zone, _UNKNOWN_ZONE)
