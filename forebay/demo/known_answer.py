"""Hold the known answer of the flights demo: what the totals over all batches must be, written down, not computed.

The counts per carrier are those of the published data set (336,776 departures from New York's three airports
in 2013). They are constants so that a fault in reading the file can't change the answer along with the
output.
"""

from __future__ import annotations

from types import MappingProxyType

ROWS = 336_776

FLIGHTS_BY_CARRIER = MappingProxyType(
    {
        "9E": 18_460,
        "AA": 32_729,
        "AS": 714,
        "B6": 54_635,
        "DL": 48_110,
        "EV": 54_173,
        "F9": 685,
        "FL": 3_260,
        "HA": 342,
        "MQ": 26_397,
        "OO": 32,
        "UA": 58_665,
        "US": 20_536,
        "VX": 5_162,
        "WN": 12_275,
        "YV": 601,
    }
)
