"""Test the checks of `forebay doctor` on packages, limits, ports and Dagster's settings, each with its cause."""

from __future__ import annotations

import json
import resource
import socket
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.cli.checks import machine_checks
from forebay.cli.checks.dagster_checks import check_instance
from forebay.cli.checks.findings import Health
from forebay.cli.checks.machine_checks import check_extras, check_limits, check_packages, check_ports, tasks_limit
from forebay.cli.instance.dagster_home import write_dagster_home
from orchestration.declarations.settings import Settings
from tests.support.machine.held_ports import held_port

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.cli.checks.findings import Finding

DEPLOYED = Path(__file__).parents[4] / "deploy" / "dagster.yaml"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Settings(home=tmp_path / "state", tracker_http="127.0.0.1:0")


def the_one(findings: Iterable[Finding]) -> Finding:
    [found] = findings
    assert found.way_out or found.health is Health.OK
    return found


# -- packages --------------------------------------------------------------------------------------------------------


def test_a_package_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert the_one(check_packages()).health is Health.OK
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "4.0.1" if name == "pyspark" else real(name))
    found = the_one(check_packages())
    assert (found.health, found.found) == (Health.FAILED, f"pyspark is 4.0.1, and must be {real('pyspark')}")
    assert "pip install" in found.way_out


def test_extras_that_no_stream_needs_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "is_installed", lambda extra: extra == "mqtt")
    found = the_one(check_extras({"a": "mqtt", "b": "http", "c": "a kind of a later version"}))
    assert (found.health, found.found) == (Health.OK, "installed: mqtt")
    found = the_one(check_extras({"a": "mqtt", "b": "kafka", "c": "kafka"}))
    assert (found.health, found.found.partition(" can't")[0]) == (Health.WARNING, "b, c")


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "processes", "group", "expected"),
    [
        (1 << 20, 1 << 16, None, [Health.OK, Health.OK]),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, [Health.OK, Health.OK]),
        (1024, 1 << 16, None, [Health.WARNING, Health.OK]),
        (1 << 20, 512, None, [Health.OK, Health.WARNING]),
        (1 << 20, resource.RLIM_INFINITY, 300, [Health.OK, Health.WARNING]),
    ],
)
def test_each_limit_that_is_too_low_is_a_warning(
    files: int, processes: int, group: int | None, expected: list[Health], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_NOFILE: (1024, files), resource.RLIMIT_NPROC: (processes, processes)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(machine_checks, "tasks_limit", lambda: group)
    found = list(check_limits())
    assert [finding.health for finding in found] == expected
    for setting, finding in zip(("LimitNOFILE= in systemd", "TasksMax= in systemd"), found, strict=True):
        assert (setting in finding.way_out) is (finding.health is Health.WARNING)


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/system.slice/forebay.service\n", {"system.slice/forebay.service": "4915"}, 4915),
        ("0::/a/b\n", {"a": "200", "a/b": "max"}, 200),
        ("9:name=systemd:/\n8:pids:/docker/x\n1:cpu:/\n", {"pids/docker/x": "100", "pids/docker": "max"}, 100),
        ("0::/a\n", {}, None),
    ],
)
def test_a_control_groups_limit_is_found_in_both_versions(
    tmp_path: Path, lines: str, files: dict[str, str], limit: int | None
) -> None:
    for folder, text in files.items():
        (tmp_path / "cgroup" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / folder / "pids.max").write_text(f"{text}\n")
    (tmp_path / "self").write_text(lines)
    assert tasks_limit(tmp_path / "self", tmp_path / "cgroup") == limit
    assert tasks_limit(tmp_path / "none", tmp_path / "cgroup") is None


# -- ports -----------------------------------------------------------------------------------------------------------


def test_the_trackers_port_is_looked_at_where_it_is_configured(settings: Settings) -> None:
    with held_port() as port:
        where = f"127.0.0.1:{port}"
        used = settings.model_copy(update={"tracker_http": where})
        with socket.create_server(("127.0.0.1", port)):
            [_, found] = check_ports(used)
            assert (found.health, where in found.found) == (Health.WARNING, True)
            assert "FOREBAY_TRACKER_HTTP" in found.way_out
            # This home's own tracker has it.
            (settings.home / "run").mkdir(parents=True)
            (settings.home / "run" / "tracker.url").write_text(f"http://{where}\n")
            [_, found] = check_ports(used)
            assert (found.health, found.found) == (Health.OK, f"the tracker serves http://{where}")
        [_, found] = check_ports(used)
        assert (found.health, found.found) == (Health.OK, f"the tracker has {where}")
    assert len(list(check_ports(settings.model_copy(update={"tracker_http": "off"})))) == 1
    [_, found] = check_ports(settings.model_copy(update={"tracker_http": "0.0.0.0:3070"}))
    assert (found.health, "FOREBAY_TRACKER_TOKEN" in found.found) == (Health.FAILED, True)


# -- Dagster ---------------------------------------------------------------------------------------------------------


def test_the_instances_that_forebay_ships_have_no_finding(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "first start" in the_one(check_instance(settings)).found
    write_dagster_home(settings.home / "dagster", code_server=tmp_path / "socket")
    assert the_one(check_instance(settings)).health is Health.OK
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dagster.yaml").write_text(DEPLOYED.read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "mine"))
    found = the_one(check_instance(settings))
    assert (found.health, str(tmp_path / "mine") in found.found) == (Health.OK, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"storage": None}, "SQLite"),
        ({"run_launcher": None}, "run_launcher"),
        ({"run_launcher": {"module": "dagster", "class": "DefaultRunLauncher"}}, "run_launcher"),
        ({"sensors": None}, "no threads"),
        ({"sensors": {"use_threads": True, "num_workers": 2}}, "2 threads"),
        ({"run_monitoring": {"enabled": False}}, "run_monitoring"),
        ({"retention": None}, "retention"),
    ],
)
def test_each_setting_that_batches_need_is_named(settings: Settings, change: dict[str, object], said: str) -> None:
    home = settings.home / "dagster"
    write_dagster_home(home, code_server=home / "socket")
    shipped = json.loads((home / "dagster.yaml").read_text())
    (home / "dagster.yaml").write_text(json.dumps({**shipped, **change}))
    found = the_one(check_instance(settings))
    assert (found.health, said in found.found) == (Health.WARNING, True), found


@pytest.mark.parametrize(("text", "said"), [("[1]", "no mapping"), ("a: [", "can't be read")])
def test_a_file_that_is_no_mapping_fails(settings: Settings, text: str, said: str) -> None:
    home = settings.home / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(text)
    found = the_one(check_instance(settings))
    assert (found.health, said in found.found) == (Health.FAILED, True)


@pytest.mark.parametrize(("named", "health"), [("relative", Health.FAILED), ("/nowhere/dagster", Health.WARNING)])
def test_a_dagster_home_that_is_not_there_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, named: str, health: Health
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", named)
    found = the_one(check_instance(settings))
    assert (found.health, named in found.found) == (health, True)
