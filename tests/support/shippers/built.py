"""Real shippers, as their makers publish them: programs that Go builds once, and Debian's.

``python -m tests.support.shippers.built`` makes all of them. What can't be had here raises NoProgramError.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.commands.made_programs import NoProgramError, made, tool

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOURCES = Path(__file__).parent
# Two compilers at once: some of these packages take 2 GB each.
_GO_ENVIRONMENT = {"GOFLAGS": "-p=2 -mod=mod"}
_TELEGRAF_PLUGINS = (
    *("inputs.tail", "parsers.influx", "parsers.value"),
    *("outputs.elasticsearch", "outputs.http", "outputs.loki"),
    *("serializers.influx", "serializers.prometheusremotewrite", "serializers.splunkmetric"),
)
#: What Go builds: the package, by the program's name, and the build tags that leave out what no test uses.
_BY_GO: Mapping[str, tuple[str, str]] = {
    "collector": (".", ""),
    "prometheus": ("github.com/prometheus/prometheus/cmd/prometheus", "remove_all_sd"),
    "promtail": ("github.com/grafana/loki/v3/clients/cmd/promtail", ""),
    "telegraf": ("github.com/influxdata/telegraf/cmd/telegraf", ",".join(("custom", *_TELEGRAF_PLUGINS))),
}
# syslog-ng is unpacked and not installed, because Debian lets it stand beside no rsyslog.
_SYSLOG_NG_PACKAGES = (
    *("syslog-ng-core", "syslog-ng-mod-http", "syslog-ng-scl"),
    *("libivykis0", "libnet1", "libpcre3", "libwrap0"),
)


@dataclass(frozen=True)
class Program:
    """Hold how a program is called, and what it finds in its environment."""

    path: str
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path("/")


def program(name: str) -> Program:
    """Return a shipper, and make it if it is missing. Raises NoProgramError.

    Args:
        name: ``collector``, ``prometheus``, ``promtail``, ``telegraf``, ``syslog-ng``, or a program of Debian, such as
            ``rsyslogd``.
    """
    if name in _BY_GO:
        return _by_go(name)
    if name == "syslog-ng":
        return _syslog_ng()
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise NoProgramError(f"Debian's {name} is missing: install it")
    return Program(found)


def _by_go(name: str) -> Program:
    package, tags = _BY_GO[name]
    folder = _SOURCES / name
    made_in = made(
        f"shipper-{name}",
        folder,
        sorted(path.name for path in folder.iterdir()),
        lambda into: [[tool("go"), "build", "-tags", tags, "-o", f"{into}/program", package]],
        _GO_ENVIRONMENT,
    )
    return Program(str(made_in / "program"))


def _syslog_ng() -> Program:
    folder = made(
        "syslog-ng",
        _SOURCES,
        [],
        lambda _: [
            [tool("apt-get"), "-q", "download", *_SYSLOG_NG_PACKAGES],
            ["sh", "-c", 'for package in *.deb; do dpkg-deb --extract "$package" . || exit 1; done'],
        ],
    )
    libraries = [path.parent for path in sorted(folder.rglob("*.so.*"))]
    env = {"LD_LIBRARY_PATH": ":".join(map(str, dict.fromkeys(libraries)))}
    return Program(str(folder / "usr" / "sbin" / "syslog-ng"), env, folder)


if __name__ == "__main__":
    for each in (*_BY_GO, "syslog-ng"):
        print(program(each).path)  # noqa: T201  for whom makes them
