"""Check docs/how-to/kubernetes-spark.md: the installed Spark has each setting, and the Kubernetes API takes the files.

Which pod Spark makes of them is checked with a JVM: tests/integration/docs/test_kubernetes_page.py.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import kubernetes_validate
import pyspark
import pytest
import yaml

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session_configuration import session_configuration
from receiver_runtime.sources.fields.units import parse_duration
from tests.support.pages.kubernetes import EXAMPLES, PAGE, ROOT, TEMPLATE, documented_configuration

KUBERNETES = "1.37"
DOCUMENTS = [
    pytest.param(document, id=f"{path.name}-{document['kind']}")
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_kubernetes_api_takes_each_file(document: dict[str, object]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_page_names_the_version_that_is_checked_and_both_files() -> None:
    assert f"Kubernetes {KUBERNETES}" in PAGE
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(
        re.findall(r"\(\.\./\.\./examples/kubernetes/(.+?)\)", PAGE)
    )


def test_the_installed_spark_has_each_setting_of_the_page() -> None:
    known: set[str] = set()
    jars = Path(pyspark.__file__).parent / "jars"
    for jar in [*jars.glob("spark-core_*.jar"), *jars.glob("spark-kubernetes_*.jar")]:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if "/internal/config/" in name or "/deploy/k8s/Config" in name:
                    keys = re.findall(rb"spark\.[A-Za-z][A-Za-z0-9.]+", archive.read(name))
                    known.update(key.decode() for key in keys)
    named = {*documented_configuration(), *re.findall(r"`\"?(spark\.[A-Za-z0-9.]+\w)", PAGE)}
    # The name of a variable follows these.
    prefixes = ("spark.kubernetes.executor.secretKeyRef.", "spark.kubernetes.driverEnv.", "spark.executorEnv.")
    unknown = {key for key in named if key not in known and not (key + ".").startswith(prefixes)}
    assert unknown == set()
    assert {"spark.kubernetes.executor.secretKeyRef.", "spark.kubernetes.driverEnv."} <= known


def test_the_documented_configuration_is_one_that_forebay_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    configuration = documented_configuration()
    made = session_configuration(
        Settings.model_validate(
            {
                "spark_master": "k8s://https://kubernetes.default.svc:443",
                "spark_configuration": configuration,
                "block_key": "file:/run/secrets/forebay/blocks",
            }
        )
    )
    assert configuration.items() <= made.items()
    assert Path(configuration["spark.kubernetes.executor.podTemplateFile"]).samefile(TEMPLATE)


def test_a_pod_has_time_to_be_decommissioned() -> None:
    configuration = documented_configuration()
    seconds = parse_duration(configuration["spark.kubernetes.executor.terminationGracePeriodSeconds"])
    assert seconds > parse_duration(configuration["spark.executor.decommission.forceKillTimeout"])
