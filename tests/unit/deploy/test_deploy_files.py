"""Check deploy/: commands and settings exist, manifests are valid for the API, nothing runs as root."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from forebay.cli.commands.up import AGENT_STOP_SECONDS
from forebay.cli.instance.dagster_home import DATABASE_VARIABLE, write_dagster_home
from forebay.cli.main import app
from orchestration.declarations.settings import Settings
from receiver_runtime.sources.fields.units import parse_duration
from tests.support.pages.kubernetes import documented_configuration

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCUMENTS: list[dict[str, Any]] = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    if path.name not in {"kustomization.yaml", "workspace.yaml"}
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
KNOWN = {f"FOREBAY_{name.upper()}" for name in Settings.model_fields} | {DATABASE_VARIABLE}


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    template = document["spec"].get("template") if "spec" in document else None
    return None if template is None else template["spec"]


def containers() -> list[Any]:
    found: list[dict[str, Any]] = []
    for document in DOCUMENTS:
        pod = pod_of(document)
        if pod is not None:
            found += [*pod.get("initContainers", []), *pod["containers"]]
    return found


def commands() -> list[tuple[str, list[str]]]:
    """Return each command that the files start, with the file that starts it."""
    found = [(path.name, shlex.split(unit(path)["Service"]["ExecStart"])) for path in UNITS]
    for name, service in COMPOSE["services"].items():
        if "command" in service:
            found.append((f"compose {name}", [*service.get("entrypoint", ["forebay"]), *service["command"]]))
    return found + [
        (f"container {container['name']}", container.get("command") or ["forebay", *container["args"]])
        for container in containers()
    ]


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize(("where", "command"), commands())
def test_each_command_and_its_options_exist(where: str, command: list[str]) -> None:
    program, *words = command
    if Path(program).name != "forebay":
        assert Path(program).name in {"dagster", "dagster-daemon", "dagster-webserver", "python"}, where
        return
    options = [word for word in words if word.startswith("--")]
    subcommand = [word for word in words[: 2 if words[0] == "db" else 1] if not word.startswith("--")]
    helped = CliRunner().invoke(app, [*subcommand, "--help"], env={"COLUMNS": "200"})
    assert helped.exit_code == 0, where
    assert all(option in helped.stdout for option in options)


def test_each_setting_is_one_of_the_programs() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            named = set(re.findall(r"\bFOREBAY_[A-Z_]+\b", path.read_text(encoding="utf-8")))
            assert named <= KNOWN, path
    assert set(re.findall(r"\bFOREBAY_[A-Z_]+\b", PAGE)) <= KNOWN


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_the_kubernetes_api_takes_each_manifest(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.37", strict=True)


def test_pods_run_without_root_and_can_change_no_image() -> None:
    for document in DOCUMENTS:
        pod = pod_of(document)
        if pod is None:
            continue
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= {volume["name"] for volume in pod.get("volumes", [])}


def test_services_and_budgets_select_pods_that_exist() -> None:
    labels = {
        document["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for document in DOCUMENTS
        if pod_of(document) is not None
    }
    for document in DOCUMENTS:
        selector = document["spec"].get("selector", {})
        selector = selector.get("matchLabels", selector)
        if selector:
            assert selector["app.kubernetes.io/name"] in labels, document["metadata"]["name"]


def test_agents_are_probed_and_only_one_at_a_time_is_taken_away() -> None:
    [budget] = [document for document in DOCUMENTS if document["kind"] == "PodDisruptionBudget"]
    [agents] = [document for document in DOCUMENTS if document["kind"] == "StatefulSet"]
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == agents["spec"]["selector"]
    [agent] = agents["spec"]["template"]["spec"]["containers"]
    assert {probe: agent[probe]["httpGet"]["path"] for probe in agent if probe.endswith("Probe")} == {
        "startupProbe": "/health",
        "livenessProbe": "/health",
        "readinessProbe": "/ready",
    }
    # A batch driver answers no request: the leading tracker watches its heartbeat.
    unwatched = {container["name"] for container in containers() if not any("Probe" in key for key in container)}
    jobs = {
        container["name"]
        for document in DOCUMENTS
        if document["kind"] == "Job"
        for container in [
            *document["spec"]["template"]["spec"].get("initContainers", []),
            *document["spec"]["template"]["spec"]["containers"],
        ]
    }
    assert unwatched - jobs == {"driver"}


def test_an_agent_has_time_to_drain_everywhere() -> None:
    [agents] = [document for document in DOCUMENTS if document["kind"] == "StatefulSet"]
    agents_unit = unit(DEPLOY / "systemd" / "forebay-agent.service")["Service"]
    for seconds in (
        agents["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        parse_duration(COMPOSE["services"]["agent"]["stop_grace_period"]),
        parse_duration(agents_unit["TimeoutStopSec"]),
    ):
        assert float(seconds) > AGENT_STOP_SECONDS
    assert agents_unit["Type"] == "notify"
    assert agents_unit["KillMode"] == "mixed"


def test_sparks_settings_are_those_of_its_page() -> None:
    [driver] = [container for container in containers() if container["name"] == "driver"]
    environment = {entry["name"]: entry.get("value") for entry in driver["env"]}
    configuration = json.loads(environment["FOREBAY_SPARK_CONFIGURATION"])
    assert configuration.pop("spark.kubernetes.executor.podTemplateFile") == "/etc/forebay/spark/executor-pod.yaml"
    expected = documented_configuration()
    del expected["spark.kubernetes.executor.podTemplateFile"]
    assert configuration == expected
    names = list(environment)
    assert names.index("POD_NAME") < names.index("FOREBAY_SPARK_CONFIGURATION")


def test_the_instance_is_the_one_that_forebay_up_makes(tmp_path: Path) -> None:
    write_dagster_home(tmp_path, code_server=tmp_path / "socket")
    made = json.loads((tmp_path / "dagster.yaml").read_text(encoding="utf-8"))
    shipped = yaml.safe_load((DEPLOY / "dagster.yaml").read_text(encoding="utf-8"))
    for instance in (made, shipped):
        del instance["compute_logs"]["config"]["base_dir"]
    assert shipped == made


def test_the_code_servers_socket_is_the_workspaces() -> None:
    [location] = yaml.safe_load((DEPLOY / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    command = unit(DEPLOY / "systemd" / "forebay-dagster-code.service")["Service"]["ExecStart"]
    assert location["grpc_server"]["socket"] in shlex.split(command)


def test_the_code_servers_address_in_kubernetes_is_the_workspaces() -> None:
    [location] = yaml.safe_load((DEPLOY / "kubernetes" / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "dagster.yaml").read_text(encoding="utf-8"))
    ports = {
        (document["metadata"]["name"], port["port"])
        for document in documents
        if document["kind"] == "Service"
        for port in document["spec"]["ports"]
    }
    assert (location["grpc_server"]["host"], location["grpc_server"]["port"]) in ports


def test_compose_names_only_what_it_declares() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= services.keys(), name
        assert ":" in service["image"].rpartition("/")[2], name
        for secret in service.get("secrets", []):
            assert (secret if isinstance(secret, str) else secret["source"]) in COMPOSE["secrets"]
        for config in service.get("configs", []):
            assert config["source"] in COMPOSE["configs"]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith("./") or source in COMPOSE["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "the webserver does not authenticate its clients"


def test_the_image_copies_what_there_is_and_runs_as_no_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line and not line.startswith(("#", " "))]
    stages = [line for line in words if line[0] == "FROM"]
    assert len(stages) == 2
    for stage in stages:
        assert re.fullmatch(r"\S+/python:3\.1[1-4]-slim-\w+", stage[1])
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    copied = [word for line in words if line[0] == "COPY" and not line[1].startswith("--from") for word in line[1:-1]]
    assert copied
    for path in copied:
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored
    assert not [line for line in words if line[0] == "ADD"]
    assert [line[1] for line in words if line[0] == "USER"] == ["10001:10001"]


def test_the_page_names_every_file_that_a_person_copies() -> None:
    named = set(re.findall(r"\(\.\./\.\./(deploy/[\w./-]+)\)", PAGE))
    assert all((ROOT / path).exists() for path in named)
    assert {"deploy/dagster.yaml", "deploy/compose.yaml", "deploy/Containerfile"} <= named
