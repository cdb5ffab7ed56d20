"""Let systemd, kustomize and Dagster themselves read the files of deploy/, and run the commands of the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from dagster import DagsterInstance

from orchestration.run_launcher.launcher import BatchRunLauncher
from tests.support.commands.run_program import run_program

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.fixture
def installed(tmp_path: Path) -> list[str]:
    """Write the units with this environment's programs in place of those in /opt/forebay; return their paths."""
    paths = []
    for path in UNITS:
        text = path.read_text(encoding="utf-8").replace("/opt/forebay/bin", str(Path(sys.executable).parent))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
        paths.append(str(tmp_path / path.name))
    return paths


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="asks systemd itself")
def test_systemd_accepts_the_units(installed: list[str]) -> None:
    done = run_program(
        ["systemd-analyze", "verify", "--man=no", *installed], env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    )
    said = "\n".join(line for line in done.stderr.splitlines() if "forebay" in line)
    assert (done.returncode, said) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="asks systemd itself")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_hardened(path: Path) -> None:
    """Systemd's own scale: 10 is unprotected, and a threshold is tenfold."""
    done = run_program(["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", str(path)])
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl has kustomize")
def test_kustomize_renders_manifests_that_the_api_takes() -> None:
    command = re.findall(r"^(kubectl kustomize .*) \|", PAGE, re.MULTILINE)[0]
    done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    maps = {document["metadata"]["name"] for document in documents if document["kind"] == "ConfigMap"}
    assert set(re.findall(r"configMap:\n\s+name: (\S+)", done.stdout)) == maps
    images = set(re.findall(r"image: (\S+)", done.stdout))
    assert images == {"registry.example.com/forebay:0.1.0"}


def test_dagster_loads_the_instance(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DAGSTER_DATABASE_URL", f"{database_url}&options=-csearch_path%3Dpublic")
    text = (DEPLOY / "dagster.yaml").read_text(encoding="utf-8")
    (tmp_path / "dagster.yaml").write_text(text.replace("/var/lib/forebay", str(tmp_path)), encoding="utf-8")
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.run_launcher, BatchRunLauncher)
        assert instance.get_runs() == []


@pytest.mark.parametrize("command", re.findall(r"^```sh runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_a_command_of_the_page(database_url: str, tmp_path: Path, command: str) -> None:
    environment = {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = run_program(["sh", "-euc", command], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
