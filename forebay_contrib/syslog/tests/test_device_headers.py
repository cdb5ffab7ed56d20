"""Check the headers of messages as devices send them: each line has the form that its vendor writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.syslog.parsing import NO_TIME, UNKNOWN_HEADER, parse
from tests.support.searches import examples

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


def rows(*messages: bytes, zone: str = "UTC") -> list[dict[str, Any]]:
    data = b"\n".join(messages)
    lengths = np.array([len(message) for message in messages], dtype=np.int64)
    ends = np.cumsum(lengths + 1) - 1
    columns = parse(data, ends - lengths, ends, received_at=int(NOW.timestamp()) * 1_000_000, timezone=zone)
    for column in columns.values():
        column.validate(full=True)
    made = [
        dict(zip(columns, row, strict=True)) for row in zip(*(c.to_pylist() for c in columns.values()), strict=True)
    ]
    assert [row["raw"] for row in made] == list(messages)
    return made


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


# Behind the priority: what came; then time, host, application, process, message.
DEVICES: dict[str, tuple[str, str | None, str | None, str | None, str | None, str]] = {
    "IOS, a fraction": (
        "Mar 10 10:01:02.663: %SYS-5-CONFIG_I: Configured from console",
        *("2026-03-10T10:01:02.663Z", None, "%SYS-5-CONFIG_I", None, "Configured from console"),
    ),
    "IOS, a number and a clock that is not set": (
        "43: *Mar 10 10:01:02.663 UTC: %LINK-3-UPDOWN: Interface Gi1/0/4, changed state to up",
        *("2026-03-10T10:01:02.663Z", None, "%LINK-3-UPDOWN", None, "Interface Gi1/0/4, changed state to up"),
    ),
    "IOS, two numbers, a year and a zone": (
        "148883: 148879: .Mar  1 2026 20:25:25.123 CET: %SYS-6-LOGGINGHOST_STARTSTOP: Logging to host",
        *("2026-03-01T19:25:25.123Z", None, "%SYS-6-LOGGINGHOST_STARTSTOP", None, "Logging to host"),
    ),
    "IOS, a name in front": (
        "2361044: sw01: Mar 10 2026 12:59:59.398 UTC: %FOO-6-BAR: text",
        *("2026-03-10T12:59:59.398Z", "sw01", "%FOO-6-BAR", None, "text"),
    ),
    "IOS, since its start": (
        "12: 00:00:46: %LINK-3-UPDOWN: Interface up",
        *(None, None, "%LINK-3-UPDOWN", None, "Interface up"),
    ),
    "IOS, weeks since its start": ("9: 3w2d: %SYS-5-RESTART: up", None, None, "%SYS-5-RESTART", None, "up"),
    "IOS XR": (
        "7: RP/0/RSP0/CPU0:Mar 10 10:01:02.663 : config[65749]: %MGBL-CONFIG-6-DB_COMMIT : Configuration committed",
        *("2026-03-10T10:01:02.663Z", None, "config", "65749"),
        "%MGBL-CONFIG-6-DB_COMMIT : Configuration committed",
    ),
    "IOS XR, with its host": (
        "7: core1 RP/0/RSP0/CPU0:Mar 10 10:01:02.663 UTC: bgp[1052]: %ROUTING-BGP-5-ADJCHANGE : neighbor up",
        *("2026-03-10T10:01:02.663Z", "core1", "bgp", "1052", "%ROUTING-BGP-5-ADJCHANGE : neighbor up"),
    ),
    "NX-OS": (
        ": 2026 Mar 10 10:01:02 UTC: %ETHPORT-5-IF_DOWN: Interface Ethernet1/1 is down",
        *("2026-03-10T10:01:02Z", None, "%ETHPORT-5-IF_DOWN", None, "Interface Ethernet1/1 is down"),
    ),
    "NX-OS, with a host": (
        "2026 Mar 10 10:01:02.345 nx1 %VSHD-5-VSHD_SYSLOG_CONFIG_I: Configured from vty",
        *("2026-03-10T10:01:02.345Z", "nx1", "%VSHD-5-VSHD_SYSLOG_CONFIG_I", None, "Configured from vty"),
    ),
    "ASA, no time": ("%ASA-6-302013: Built outbound", None, None, "%ASA-6-302013", None, "Built outbound"),
    "ASA, a year": (
        "Mar 10 2026 10:01:02: %ASA-6-302013: Built outbound",
        *("2026-03-10T10:01:02Z", None, "%ASA-6-302013", None, "Built outbound"),
    ),
    "ASA, a year and its name": (
        "Mar 10 2026 10:01:02 fw-1 : %ASA-6-302013: Built outbound",
        *("2026-03-10T10:01:02Z", "fw-1", "%ASA-6-302013", None, "Built outbound"),
    ),
    "ASA, no year and its name": (
        "Mar 10 10:01:02 fw-1 : %ASA-6-302013: Built outbound",
        *("2026-03-10T10:01:02Z", "fw-1", "%ASA-6-302013", None, "Built outbound"),
    ),
    "ASA, a colon in front": (
        ":Mar 10 10:01:02 UTC: %ASA-session-6-302015: Built inbound",
        *("2026-03-10T10:01:02Z", None, "%ASA-session-6-302015", None, "Built inbound"),
    ),
    "FTD": (
        "2026-03-10T10:01:02Z firepower : %FTD-6-305011: Built dynamic",
        *("2026-03-10T10:01:02Z", "firepower", "%FTD-6-305011", None, "Built dynamic"),
    ),
    "ISE": (
        "Mar 10 10:01:02 ise1 CISE_Passed_Authentications 0000012345 1 0 2026-03-10 10:01:02.345 +01:00 5200 NOTICE",
        *("2026-03-10T10:01:02Z", "ise1", None, None),
        "CISE_Passed_Authentications 0000012345 1 0 2026-03-10 10:01:02.345 +01:00 5200 NOTICE",
    ),
    "Junos": (
        "Mar 10 10:01:02  mx1 mgd[1234]: UI_COMMIT: User 'lab'",
        *("2026-03-10T10:01:02Z", "mx1", "mgd", "1234", "UI_COMMIT: User 'lab'"),
    ),
    "Junos, milliseconds and a year": (
        "Mar 10 10:01:02.345 2026 mx1 sshd[77]: Accepted",
        *("2026-03-10T10:01:02.345Z", "mx1", "sshd", "77", "Accepted"),
    ),
    "ArubaOS": (
        "Mar 10 10:01:02 2026 aruba-1 authmgr[1234]: <522008> <NOTI> text",
        *("2026-03-10T10:01:02Z", "aruba-1", "authmgr", "1234", "<522008> <NOTI> text"),
    ),
    "FortiGate": (
        'date=2026-03-10 time=10:01:02 devname="FGT" logid="0000000013"',
        *(None, None, None, None, 'date=2026-03-10 time=10:01:02 devname="FGT" logid="0000000013"'),
    ),
    "PAN-OS": (
        "Mar 10 10:01:02 PA-220 1,2026/03/10 10:01:02,001234,TRAFFIC,end",
        *("2026-03-10T10:01:02Z", "PA-220", None, None, "1,2026/03/10 10:01:02,001234,TRAFFIC,end"),
    ),
    "BIG-IP": (
        "Mar 10 10:01:02 bigip1.example.com info tmm[1234]: Rule fired",
        *("2026-03-10T10:01:02Z", "bigip1.example.com", None, None, "info tmm[1234]: Rule fired"),
    ),
    "EdgeOS": (
        "Mar 10 10:01:02 gw kernel: [WAN_LOCAL-default-D]IN=eth0",
        *("2026-03-10T10:01:02Z", "gw", "kernel", None, "[WAN_LOCAL-default-D]IN=eth0"),
    ),
    "RouterOS, as it is": (
        "dhcp,info dhcp1 assigned 10.0.0.1",
        *(None, None, None, None, "dhcp,info dhcp1 assigned 10.0.0.1"),
    ),
    "RouterOS, BSD": (
        "Mar 10 10:01:02 MikroTik dhcp1 assigned 10.0.0.1",
        *("2026-03-10T10:01:02Z", "MikroTik", None, None, "dhcp1 assigned 10.0.0.1"),
    ),
    "ESXi": (
        "2026-03-10T10:01:02.345Z esx1.example.com Hostd: info hostd[2099921] text",
        *("2026-03-10T10:01:02.345Z", "esx1.example.com", "Hostd", None, "info hostd[2099921] text"),
    ),
    "DSM": (
        "Mar 10 10:01:02 NAS Connection: User [admin] logged in",
        *("2026-03-10T10:01:02Z", "NAS", "Connection", None, "User [admin] logged in"),
    ),
    "HAProxy": (
        "Mar 10 10:01:02 haproxy[1234]: 10.0.0.1:5000 fe be/srv 0/0/1/2/3 200",
        *("2026-03-10T10:01:02Z", None, "haproxy", "1234", "10.0.0.1:5000 fe be/srv 0/0/1/2/3 200"),
    ),
    "kubelet by journald": (
        "Mar 10 10:01:02 node1 kubelet[123]: I0310 10:01:02.345678     123 kubelet.go:12] text",
        *("2026-03-10T10:01:02Z", "node1", "kubelet", "123", "I0310 10:01:02.345678     123 kubelet.go:12] text"),
    ),
    "logger": ("Mar 10 10:01:02 me: text", "2026-03-10T10:01:02Z", None, "me", None, "text"),
    "cron, without a host": (
        "Mar 10 10:01:02 CRON[5]: (root) CMD x",
        *("2026-03-10T10:01:02Z", None, "CRON", "5", "(root) CMD x"),
    ),
    "pfSense, a fraction": (
        "Mar 10 12:59:59.250 edge-fw01 pf[412]: block in on em0",
        *("2026-03-10T12:59:59.250Z", "edge-fw01", "pf", "412", "block in on em0"),
    ),
    "a day of one digit": ("Mar 2 10:01:02 h app: text", "2026-03-02T10:01:02Z", "h", "app", None, "text"),
    "an offset": ("Mar 10 10:01:02 +0100 h app: text", "2026-03-10T09:01:02Z", "h", "app", None, "text"),
    "a zone, then a host": ("Mar 10 10:01:02 CEST h app: text", "2026-03-10T08:01:02Z", "h", "app", None, "text"),
    "an address": ("Mar 10 10:01:02 10.0.0.99 app: text", "2026-03-10T10:01:02Z", "10.0.0.99", "app", None, "text"),
    "a year that is the host's first digits": (
        *("Mar 10 10:01:02 2026-host app: text", "2026-03-10T10:01:02Z", "2026-host", "app", None, "text"),
    ),
    "a document": ('Mar 10 10:01:02 host {"a": 1}', "2026-03-10T10:01:02Z", "host", None, None, '{"a": 1}'),
    "a document, no host": ('Mar 10 10:01:02 {"a": 1}', "2026-03-10T10:01:02Z", None, None, None, '{"a": 1}'),
    "a document, no space": (
        'Mar 10 10:01:02 {"a":1,"b c": 2}',
        "2026-03-10T10:01:02Z",
        *3 * (None,),
        '{"a":1,"b c": 2}',
    ),
    "a document, no time": ('{"a": 1}', None, None, None, None, '{"a": 1}'),
    "a list": ('Mar 10 10:01:02 [{"a": 1}]', "2026-03-10T10:01:02Z", None, None, None, '[{"a": 1}]'),
    "a document and a tag": ('Mar 10 10:01:02 h app: {"a": 1}', "2026-03-10T10:01:02Z", "h", "app", None, '{"a": 1}'),
    "logfmt": ("Mar 10 10:01:02 level=info msg=x: y", "2026-03-10T10:01:02Z", *3 * (None,), "level=info msg=x: y"),
    "a repetition": (
        "Mar 10 10:01:02 last message repeated 3 times",
        *("2026-03-10T10:01:02Z", None, None, None, "last message repeated 3 times"),
    ),
    "a host and a repetition": (
        "Mar 10 10:01:02 web-01 last message repeated 3 times",
        *("2026-03-10T10:01:02Z", "web-01", None, None, "last message repeated 3 times"),
    ),
    "a tag and a repetition": (
        "Mar 10 10:01:02  sshd[3613]: last message repeated 2 times",
        *("2026-03-10T10:01:02Z", None, "sshd", "3613", "last message repeated 2 times"),
    ),
    "rsyslog's repetition": (
        "Mar 10 10:01:02 message repeated 2 times: [ a: b]",
        *("2026-03-10T10:01:02Z", None, None, None, "message repeated 2 times: [ a: b]"),
    ),
    "a mark": ("Mar 10 10:01:02 -- MARK --", "2026-03-10T10:01:02Z", None, None, None, "-- MARK --"),
    "a mark of a host": ("Mar 10 10:01:02 h -- MARK --", "2026-03-10T10:01:02Z", "h", None, None, "-- MARK --"),
    "hours": ("Mar 10 10:01:02 +02 host app: text", "2026-03-10T08:01:02Z", "host", "app", None, "text"),
    "a zone and a year": ("Mar 10 10:01:02 CEST 2026 host app: x", "2026-03-10T08:01:02Z", "host", "app", None, "x"),
    "ISO, hours": ("2026-03-10T10:01:02+0200 host app: x", "2026-03-10T08:01:02Z", "host", "app", None, "x"),
    "ISO, nanoseconds": (
        "2026-03-10T10:01:02.123456000Z host app: x",
        *("2026-03-10T10:01:02.123456Z", "host", "app", None, "x"),
    ),
    "ISO, no zone": ("2026-03-10T10:01:02,5 host app: x", "2026-03-10T10:01:02.5Z", "host", "app", None, "x"),
    "FTD, a name": ("fw1 : %FTD-6-305011: Built", None, "fw1", "%FTD-6-305011", None, "Built"),
    "FTD, a name and a colon": ("fw1: %FTD-6-430003: Event", None, "fw1", "%FTD-6-430003", None, "Event"),
    "FTD, a name and a space": ("fw1 %ASA-6-302013: Built", None, "fw1", "%ASA-6-302013", None, "Built"),
    "FTD, no name": (
        "2026-03-10T10:01:02Z  %FTD-1-430003: E",
        "2026-03-10T10:01:02Z",
        None,
        "%FTD-1-430003",
        None,
        "E",
    ),
    "FTD, two spaces": (
        "2026-03-10T10:01:02Z firepower  %FTD-1-430003: E",
        *("2026-03-10T10:01:02Z", "firepower", "%FTD-1-430003", None, "E"),
    ),
    "FTD, an address": (
        "Mar 10 10:01:02 10.0.0.254  : %FTD-6-430003: E: x",
        *("2026-03-10T10:01:02Z", "10.0.0.254", "%FTD-6-430003", None, "E: x"),
    ),
    "FTD, its manager": (
        "Mar 10 10:01:02 fmc1 SFIMS: [Primary Detection Engine] x",
        *("2026-03-10T10:01:02Z", "fmc1", "SFIMS", None, "[Primary Detection Engine] x"),
    ),
    "ASA, a name of capitals": (
        "Mar 10 10:01:02 FW : %ASA-6-302013: Built",
        *("2026-03-10T10:01:02Z", "FW", "%ASA-6-302013", None, "Built"),
    ),
    "ASA, a name and a colon": (
        "Mar 10 2026 10:01:02 fw-1: %ASA-6-302013: Built",
        *("2026-03-10T10:01:02Z", "fw-1", "%ASA-6-302013", None, "Built"),
    ),
    "ASA, no colon": (
        "Mar 10 10:01:02 fw-1 %ASA-6-302013 Built: x",
        *("2026-03-10T10:01:02Z", "fw-1", None, None, "%ASA-6-302013 Built: x"),
    ),
    "IOS, an address and a second number": (
        "236: 10.0.0.1: 002359: *Mar 10 10:01:02.663: %SYS-5-CONFIG_I: x",
        *("2026-03-10T10:01:02.663Z", "10.0.0.1", "%SYS-5-CONFIG_I", None, "x"),
    ),
    "IOS XE": (
        "147: Switch: Mar 10 2026 10:01:02.663 EST: %IOSXE-5-PLATFORM: R0/0: kernel: x",
        *("2026-03-10T15:01:02.663Z", "Switch", "%IOSXE-5-PLATFORM", None, "R0/0: kernel: x"),
    ),
    "WLC": (
        "wlc-1: *Dot1x_NW_MsgTask_0: Mar 10 10:01:02.456: %DOT1X-3-INVALID_REPLAY_CTR: 1x_eapkey.c:458 x",
        *("2026-03-10T10:01:02.456Z", "wlc-1", "%DOT1X-3-INVALID_REPLAY_CTR", None, "1x_eapkey.c:458 x"),
    ),
    "WLC, old": (
        "*apfMsConnTask_1: Mar 10 10:01:02.456: #APF-6-EXCLUDED: apf_ms.c:4994 x",
        *("2026-03-10T10:01:02.456Z", None, "#APF-6-EXCLUDED", None, "apf_ms.c:4994 x"),
    ),
    "CUCM": (
        "12: cucm1.example.com: Mar 10 2026 10:01:02.345 UTC :  %UC_AUDITLOG-5-AdministrativeEvent: x",
        *("2026-03-10T10:01:02.345Z", "cucm1.example.com", "%UC_AUDITLOG-5-AdministrativeEvent", None, "x"),
    ),
    "NX-OS, a context": (
        "2026 Mar 10 10:01:02 nx1 %$ VDC-1 %$ %POAP-2-POAP_INFO: - Abort",
        *("2026-03-10T10:01:02Z", "nx1", "%POAP-2-POAP_INFO", None, "- Abort"),
    ),
    "NX-OS, a context and a process": (
        "2026 Mar 10 10:01:02 nx1 %$ VDC-1 %$ pltfm_config[9616]: WARNING: x",
        *("2026-03-10T10:01:02Z", "nx1", "pltfm_config", "9616", "WARNING: x"),
    ),
    "ISE, behind a relay": (
        "Mar 10 10:01:02 10.0.0.1 Mar 10 10:01:02 ise1 CISE_Passed_Authentications 0000000487 1 0",
        *("2026-03-10T10:01:02Z", "10.0.0.1", None, None),
        "Mar 10 10:01:02 ise1 CISE_Passed_Authentications 0000000487 1 0",
    ),
    "Junos, its kernel": ("Mar 10 10:01:02  mx1 /kernel: x", "2026-03-10T10:01:02Z", "mx1", "/kernel", None, "x"),
    "Junos, a card": (
        "Mar 10 10:01:02  mx1 fpc0 PFEMAN: x",
        *("2026-03-10T10:01:02Z", "mx1", None, None, "fpc0 PFEMAN: x"),
    ),
    "Junos, a priority": ("Mar 10 10:01:02 mx1 : %PFE-6: x", "2026-03-10T10:01:02Z", "mx1", "%PFE-6", None, "x"),
    "Fortinet, CEF": (
        "Mar 10 10:01:02 FGT CEF:0|Fortinet|Fortigate|v7|1|x|3|src=1",
        *("2026-03-10T10:01:02Z", "FGT", None, None, "CEF:0|Fortinet|Fortigate|v7|1|x|3|src=1"),
    ),
    "CEF, no host": ("Mar 10 10:01:02 CEF:0|A b|c: d", "2026-03-10T10:01:02Z", None, None, None, "CEF:0|A b|c: d"),
    "PAN-OS, no host": ("Mar 10 10:01:02 1,2026/03/10 1: x", "2026-03-10T10:01:02Z", *3 * (None,), "1,2026/03/10 1: x"),
    "BIG-IP, a blade": (
        "Mar 10 10:01:02 slot1/LTM info tmm1[1234]: Rule fired",
        *("2026-03-10T10:01:02Z", "slot1/LTM", None, None, "info tmm1[1234]: Rule fired"),
    ),
    "BIG-IP, a name of capitals": (
        "Mar 10 10:01:02 LTM info tmm1[1234]: Rule fired",
        *("2026-03-10T10:01:02Z", "LTM", None, None, "info tmm1[1234]: Rule fired"),
    ),
    "UniFi": (
        "Mar 10 10:01:02 U7PG2,788a20aabbcc,v4.0.42.10433: hostapd: ath1: STA x",
        *("2026-03-10T10:01:02Z", "U7PG2,788a20aabbcc,v4.0.42.10433", "hostapd", None, "ath1: STA x"),
    ),
    "UniFi, in quotes": (
        'Mar 10 10:01:02 ("U7PG2,788a20aabbcc,v3.9.27.8537") syslog[1]: x',
        *("2026-03-10T10:01:02Z", "U7PG2,788a20aabbcc,v3.9.27.8537", "syslog", "1", "x"),
    ),
    "UniFi, new": (
        "Mar 10 10:01:02 ap-1 788a20aabbcc,UAP-AC-Pro-6.0.21+13673: hostapd[123]: x",
        *("2026-03-10T10:01:02Z", "ap-1", None, None, "788a20aabbcc,UAP-AC-Pro-6.0.21+13673: hostapd[123]: x"),
    ),
    "RouterOS, BSD, a topic": (
        "Mar 10 10:01:02 MikroTik firewall,info forward: in:ether1 out:",
        *("2026-03-10T10:01:02Z", "MikroTik", None, None, "firewall,info forward: in:ether1 out:"),
    ),
    "ESXi 7": (
        "2026-03-10T10:01:02.345Z esx1 Hostd[2099921]: info hostd[1] x",
        *("2026-03-10T10:01:02.345Z", "esx1", "Hostd", "2099921", "info hostd[1] x"),
    ),
    "nginx, no host": (
        "Mar 10 10:01:02 nginx: 10.0.0.1 - -",
        "2026-03-10T10:01:02Z",
        None,
        "nginx",
        None,
        "10.0.0.1 - -",
    ),
    "syslog-ng, a chain": (
        "Mar 10 10:01:02 s_local@web-01/relay app[1]: x",
        *("2026-03-10T10:01:02Z", "s_local@web-01/relay", "app", "1", "x"),
    ),
    "NXLog": (
        "Mar 10 10:01:02 WIN-1 Microsoft-Windows-Security-Auditing[724]: x",
        *("2026-03-10T10:01:02Z", "WIN-1", "Microsoft-Windows-Security-Auditing", "724", "x"),
    ),
    "Snare": (
        "Mar 10 10:01:02 WIN1\tMSWinEventLog\t1\tSecurity\t4624: x",
        *("2026-03-10T10:01:02Z", "WIN1", None, None, "MSWinEventLog\t1\tSecurity\t4624: x"),
    ),
    "Check Point": (
        'Mar 10 10:01:02 cp1 CheckPoint: [action:"Accept"; flags:"4"]',
        *("2026-03-10T10:01:02Z", "cp1", "CheckPoint", None, '[action:"Accept"; flags:"4"]'),
    ),
    "Sophos UTM": ("2026:03:10-10:01:02 utm1 httpproxy[7]: x", "2026-03-10T10:01:02Z", "utm1", "httpproxy", "7", "x"),
    "Sophos XG": ('device="SFW" date=2026-03-10 x: y', None, None, None, None, 'device="SFW" date=2026-03-10 x: y'),
    "Zyxel": (
        'Mar 10 10:01:02 usg60 src="10.0.0.1: 80" msg="x"',
        *("2026-03-10T10:01:02Z", "usg60", None, None, 'src="10.0.0.1: 80" msg="x"'),
    ),
    "Comware": (
        "Mar 10 10:01:02 2026 H3C %%10IFNET/3/PHY_UPDOWN: x",
        *("2026-03-10T10:01:02Z", "H3C", "%%10IFNET/3/PHY_UPDOWN", None, "x"),
    ),
    "VRP": (
        "Mar 10 2026 10:01:02+01:00 NE40 %%01IFNET/4/LINK_STATE(l)[1]:The line",
        *("2026-03-10T09:01:02Z", "NE40", None, None, "%%01IFNET/4/LINK_STATE(l)[1]:The line"),
    ),
    "ProCurve": (
        "Mar 10 10:01:02 10.0.0.1 00076 ports: port 1 is up",
        *("2026-03-10T10:01:02Z", "10.0.0.1", None, None, "00076 ports: port 1 is up"),
    ),
    "AIX": (
        "Mar 10 10:01:02 Message forwarded from aix1: sshd[123]: x",
        *("2026-03-10T10:01:02Z", "aix1", "sshd", "123", "x"),
    ),
    "AIX, a repetition": (
        "Mar 10 10:01:02 Message forwarded from aix1: last message repeated 3 times",
        *("2026-03-10T10:01:02Z", "aix1", None, None, "last message repeated 3 times"),
    ),
    "Solaris": (
        "Mar 10 10:01:02 sol1 genunix: [ID 540533 kern.notice] x",
        *("2026-03-10T10:01:02Z", "sol1", "genunix", None, "[ID 540533 kern.notice] x"),
    ),
    "IPv6": ("Mar 10 10:01:02 2001:db8::1 app: text", "2026-03-10T10:01:02Z", "2001:db8::1", "app", None, "text"),
}


@pytest.mark.parametrize("device", DEVICES)
def test_a_devices_header_is_read(device: str) -> None:
    line, time, host, app, process, message = DEVICES[device]
    [row] = rows(f"<189>{line}".encode())
    assert row["parse_error"] is None
    assert row["timestamp"] == (None if time is None else at(time))
    assert (row["hostname"], row["app_name"], row["proc_id"]) == (host, app, process)
    assert row["message"] == message


def test_the_same_lines_side_by_side_do_not_affect_each_other() -> None:
    lines = [f"<189>{line}".encode() for line, *_ in DEVICES.values()]
    assert rows(*lines) == [row for line in lines for row in rows(line)]


@pytest.mark.parametrize(
    "line",
    [
        # The name of the zone has several meanings, or none.
        "Mar 10 10:01:02 IST: %SYS-5-RESTART: up",
        "Feb 30 2026 10:01:02: %ASA-6-302013: Built",
        "Mar 10 2026 25:01:02 h app: text",
    ],
)
def test_a_time_that_is_not_understood_is_said(line: str) -> None:
    [row] = rows(f"<189>{line}".encode())
    assert row["parse_error"] == NO_TIME
    assert row["timestamp"] is None


# What may stand in or behind a time, and says that neither the time nor the next word is known.
UNKNOWN = (
    *(
        "#7",
        "PM",
        "pm",
        "p.m.",
        "GMT+2",
        "UTC-5",
        "+2",
        "IST",
        "XYZ 2018",
        "XYZ",
        "(CET)",
        "[UTC]",
        "CEST (x)",
        "EST5EDT",
    ),
    *("Europe/Berlin", "=", "|", "-- x", '"a"', "12345", "+02 +03", "~"),
)


@pytest.mark.parametrize("time", ["Mar 10 10:01:02", "Mar 10 2026 10:01:02", "2026-03-10T10:01:02"])
@pytest.mark.parametrize("word", UNKNOWN)
@pytest.mark.parametrize("apart", ["", " "])
def test_a_header_that_is_not_known_is_said_and_nothing_of_it_is_used(time: str, word: str, apart: str) -> None:
    line = f"{time}{apart}{word} host app: text"
    [row] = rows(f"<189>{line}".encode())
    assert row["parse_error"] is not None
    found = [row[name] for name in ("timestamp", "hostname", "app_name", "proc_id", "message")]
    assert found == [None, None, None, None, line]


@pytest.mark.parametrize(
    "time",
    [
        *(
            "2026-03-10 10:01:02",
            "2026-03-10 10:01:02,123",
            "2026/03/10 10:01:02",
            "[2026-03-10 10:01:02]",
            "10.03.2026 10:01:02",
        ),
        *("10 Mar 2026 10:01:02", "10/Mar/2026:10:01:02", "Tue, 10 Mar 2026 10:01:02 +0100", "Mar 10, 2026 10:01:02"),
        *(
            "mar 10 10:01:02",
            "MAR 10 10:01:02",
            "März 10 10:01:02",
            "mars 10 10:01:02",
            "мар 10 10:01:02",
            "03-10-26 10:01:02",
        ),
    ],
)
def test_a_time_in_another_form_is_said(time: str) -> None:
    line = f"{time} host app: text"
    [row] = rows(f"<189>{line}".encode())
    found = [row[name] for name in ("parse_error", "timestamp", "hostname", "app_name", "message")]
    assert found == [UNKNOWN_HEADER, None, None, None, line]


@pytest.mark.parametrize(
    "line",
    [
        *("date=2026-03-10 time=10:01:02 devname=x", "1,2026/03/10 10:01:01,0018", "I0310 10:01:02.123456 1 x.go:116]"),
        # An address, and a number, behind a word.
        *("MAC Address 00:11:22:33:44:55 learned", "port 12 10:11:22:33:44:55 moved", "Client 10:11:22:33:44:55"),
        *("Unit 1: 10:01:02 up", "CPU 0 10:01:02"),
    ],
)
def test_a_message_that_has_a_time_of_its_own_has_no_header(line: str) -> None:
    [row] = rows(f"<189>{line}".encode())
    assert (row["parse_error"], row["message"]) == (None, line)


_TOKEN = st.one_of(
    st.sampled_from(UNKNOWN),
    st.text(st.characters(codec="ascii", exclude_categories=["Cc", "Zs"]), min_size=1, max_size=8),
)


@pytest.mark.search
@settings(max_examples=examples(300), deadline=None)
@given(
    time=st.sampled_from(["", "Mar 10 10:01:02 ", "2026-03-10T10:01:02Z ", "7: *Mar 10 2026 10:01:02.5 UTC: ", "+ "]),
    words=st.lists(_TOKEN, max_size=4),
    tag=st.sampled_from(["", "app: ", "app[7]: ", "%ASA-6-302013: ", '{"a": ', "x:y "]),
)
def test_no_byte_of_a_message_is_lost_and_each_part_is_a_word_of_the_header(
    time: str, words: list[str], tag: str
) -> None:
    line = time + "".join(f"{word} " for word in words) + tag + "text"
    [row] = rows(f"<13>{line}".encode())
    assert line.endswith(row["message"])
    if row["parse_error"] == UNKNOWN_HEADER:
        assert row["message"] == line
    # A host "a" is not the letter of "Mar".
    head = line.removesuffix(row["message"]).removeprefix(time)
    for part in ("hostname", "app_name", "proc_id"):
        if row[part] is not None:
            before, found, head = head.partition(row[part])
            assert found, part
            assert not before or before[-1] in ' [("'
    # Behind the application stands nothing but its colon; so nothing that was not understood is passed over.
    if row["app_name"] is not None:
        assert head.strip() in (":", "]:")


def test_a_number_in_front_of_a_text_is_no_application() -> None:
    [row] = rows(b"<189>43: something else")
    assert (row["app_name"], row["message"]) == (None, "43: something else")


def test_the_declared_zone_counts_where_a_time_names_none() -> None:
    lines = [b"<189>Mar 10 10:01:02.5: %A-1-B: c", b"<189>Mar 10 10:01:02.5 UTC: %A-1-B: c"]
    [here, there] = rows(*lines, zone="America/New_York")
    assert (here["timestamp"], there["timestamp"]) == (at("2026-03-10T14:01:02.5Z"), at("2026-03-10T10:01:02.5Z"))


# -- RFC 5424's grammar ----------------------------------------------------------------------------------------------

_PRINTABLE = "".join(map(chr, range(33, 127)))
_NAME = st.text([one for one in _PRINTABLE if one not in '="]'], min_size=1, max_size=32)
_VALUE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(
    lambda text: text.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")
)
_ELEMENT = st.tuples(_NAME, st.lists(st.tuples(_NAME, _VALUE), max_size=3)).map(
    lambda one: "[" + " ".join([one[0], *(f'{name}="{value}"' for name, value in one[1])]) + "]"
)
_DATA = st.one_of(st.just("-"), st.lists(_ELEMENT, min_size=1, max_size=3).map("".join))


def _word(most: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("-"), st.text(_PRINTABLE, min_size=1, max_size=most))


_TIMES = st.builds(
    lambda moment, digits, minutes: (
        moment.replace(microsecond=moment.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits)).astimezone(
            timezone(timedelta(minutes=minutes))
        ),
        digits,
    ),
    st.datetimes(datetime(1970, 1, 3), datetime(2999, 12, 28), timezones=st.just(UTC)),  # noqa: DTZ001  naive bounds
    st.integers(0, 6),
    st.integers(-23 * 60, 23 * 60),
)


def _written(time: datetime, digits: int) -> str:
    fraction = f".{time.microsecond:06}"[: digits + 1] if digits else ""
    zone = f"{time:%z}"
    return f"{time:%Y-%m-%dT%H:%M:%S}{fraction}" + ("Z" if zone == "+0000" else f"{zone[:3]}:{zone[3:]}")


@pytest.mark.search
@settings(max_examples=examples(400), deadline=None)
@given(
    priority=st.integers(0, 191),
    time=st.one_of(st.none(), _TIMES),
    host=_word(255),
    app=_word(48),
    process=_word(128),
    kind=_word(32),
    data=_DATA,
    message=st.one_of(
        st.none(),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), min_size=1, max_size=40),
    ),
)
def test_every_message_of_rfc_5424_is_read(
    priority: int,
    time: tuple[datetime, int] | None,
    host: str,
    app: str,
    process: str,
    kind: str,
    data: str,
    message: str | None,
) -> None:
    written = "-" if time is None else _written(*time)
    head = f"<{priority}>1 {written} {host} {app} {process} {kind} {data}"
    [row] = rows((head if message is None else f"{head} {message}").encode())
    assert row["parse_error"] is None
    assert (row["priority"], row["version"]) == (priority, 1)
    assert row["timestamp"] == (None if time is None else time[0].astimezone(UTC))
    words = [None if word == "-" else word for word in (host, app, process, kind, data)]
    assert [row[name] for name in ("hostname", "app_name", "proc_id", "msg_id", "structured_data")] == words
    expected = None if message is None else message.removeprefix("\ufeff")
    assert row["message"] == expected


@pytest.mark.parametrize(
    "header",
    [
        "1 2026-03-10T10:01:02.{}Z h a - - -",
        "2026-03-10T10:01:02.{}Z longhost app: x",
        "2026-03-10T10:01:02.{}+0000 host app: x",
        "Mar 10 10:01:02.{} UTC host app: x",
        "Mar 10 2026 10:01:02.{} UTC: %ASA-6-302013: x",
    ],
)
def test_a_time_is_never_cut_without_a_word(header: str) -> None:
    """Check it alike in all forms: the microseconds are there, and it is said that there were more digits."""
    for fraction, said in (
        ("123456", None),
        ("123456000", None),
        ("1234560", None),
        ("1234567", "a time finer than microseconds"),
        ("123456001", "a time finer than microseconds"),
    ):
        [row] = rows(f"<189>{header.format(fraction)}".encode())
        assert (row["timestamp"].microsecond, row["parse_error"]) == (123_456, said)
        assert row["hostname"] or "%ASA" in header


@pytest.mark.parametrize("offset", ["-24:00", "+24:00", "+99:99", "-00:60", "+2400"])
@pytest.mark.parametrize("header", ["1 2026-03-10T10:01:02{} h a - - -", "2026-03-10T10:01:02{} host app: x"])
def test_an_offset_that_no_zone_has_gives_no_time(offset: str, header: str) -> None:
    [row] = rows(f"<189>{header.format(offset)}".encode())
    assert (row["timestamp"], row["parse_error"]) == (None, "no such time")


@pytest.mark.parametrize(
    ("data", "is_good"),
    [
        ('[a b="c"]', True),
        ('[a b="c"][d@1 e="" f="g h"]', True),
        (r'[a b="c \" \] \\ \x"]', True),
        ('[a b="c]"]', True),
        ("[a]", True),
        ('[a  b="c" ]', True),
        ('[a b="c" d]', False),
        ("[a b=c]", False),
        ("[a b]", False),
        ('[a="c"]', False),
        ('[ a b="c"]', False),
        ('[a b="c"d="e"]', False),
        ('[a b="c"x]', False),
        ("[]", False),
        ('[a b="c"', False),
        ('[a b="c"] [d]x', True),
    ],
)
def test_structured_data_are_read_as_a_whole_or_not_at_all(data: str, is_good: bool) -> None:
    [row] = rows(f"<189>1 - h a - - {data} m".encode())
    assert (row["parse_error"] is None) is is_good
    assert row["structured_data"] == (data.partition(" [d]x")[0] if is_good else None)
    assert data in row["raw"].decode()
