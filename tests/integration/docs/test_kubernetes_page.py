"""Test docs/how-to/kubernetes-spark.md: the executor pod that Spark itself makes of its settings and its template."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.support.commands.run_program import run_program
from tests.support.pages.kubernetes import ROOT, TEMPLATE, documented_configuration

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("executor_pod.py")


def executor_pod(**more: str) -> dict[str, Any]:
    configuration = {
        **documented_configuration(),
        "spark.master": "k8s://https://kubernetes.default.svc:443",
        "spark.app.name": "words",
        "spark.app.id": "app-1",
        "spark.kubernetes.executor.podTemplateFile": TEMPLATE.as_uri(),
        **more,
    }
    # Of the driver's own pod, and read from the cluster.
    del configuration["spark.kubernetes.driver.pod.name"]
    # Spark draws a secret when it starts, in the driver.
    configuration["spark.authenticate"] = "false"
    done = run_program([sys.executable, str(PROGRAM), json.dumps(configuration)], cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    pod: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return pod


@pytest.mark.slow
@pytest.mark.core
def test_spark_makes_a_valid_pod_of_the_documented_settings_and_template() -> None:
    key = "spark.kubernetes.executor.secretKeyRef.BLOCK_KEY"
    pod = executor_pod(**{key: "forebay-block-key:blocks"})
    kubernetes_validate.validate(pod, "1.37", strict=True)
    spec = pod["spec"]
    [container] = spec["containers"]
    # What the template says.
    assert {"blocks", "output", "block-key"} <= {volume["name"] for volume in spec["volumes"]}
    assert {"/blocks", "/output", "/run/secrets/forebay"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    assert spec["terminationGracePeriodSeconds"] == 120
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    [secret] = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "block-key"]
    assert secret["defaultMode"] == 0o440
    # What the settings say.
    assert container["image"] == "registry.example.com/spark-python:4.3.0"
    assert container["resources"]["requests"]["cpu"] == "2"
    assert spec["restartPolicy"] == "Never"
    environment = {entry["name"]: entry for entry in container["env"]}
    assert environment["SPARK_DRIVER_URL"]["value"].endswith("@forebay-driver.default.svc:7078")
    reference = environment["BLOCK_KEY"]["valueFrom"]["secretKeyRef"]
    assert (reference["name"], reference["key"]) == ("forebay-block-key", "blocks")
    # An executor whose pod is told to end is decommissioned first.
    assert "decom" in json.dumps(container["lifecycle"]["preStop"])
