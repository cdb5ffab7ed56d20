"""Print the executor pod that Spark's own classes make of a configuration, as JSON. Asks no Kubernetes cluster.

Its argument is the configuration, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.java_gateway import launch_gateway

from orchestration.spark.session.java import find_java_home


def _scala_object(package: Any, name: str) -> Any:  # noqa: ANN401  what py4j returns
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def executor_pod(jvm: Any, configuration: dict[str, str]) -> dict[str, Any]:  # noqa: ANN401
    """Return the pod, as Spark sends it to the Kubernetes API."""
    spark = jvm.org.apache.spark
    conf = spark.SparkConf(False)  # noqa: FBT003  Java has no keywords
    for key, value in configuration.items():
        conf.set(key, value)
    none = _scala_object(jvm.scala, "None")
    settings = _scala_object(spark.internal.config, "package")
    fabric8 = jvm.io.fabric8.kubernetes.client
    # A client that is never used for a call: Spark reads the template with it.
    client_configuration = fabric8.ConfigBuilder(fabric8.Config.empty()).withMasterUrl("https://127.0.0.1:1").build()
    client = fabric8.KubernetesClientBuilder().withConfig(client_configuration).build()
    made = (
        spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
        .buildFromFeatures(
            spark.deploy.k8s.KubernetesExecutorConf(conf, "app-1", "1", none, 0),
            spark.SecurityManager(conf, none, settings.AUTH_SECRET_FILE()),
            client,
            _scala_object(spark.resource, "ResourceProfile").getOrCreateDefaultProfile(conf),
        )
        .pod()
    )
    serialization = fabric8.utils.KubernetesSerialization()
    pod: dict[str, Any] = json.loads(serialization.asJson(made.pod()))
    pod["spec"].setdefault("containers", []).append(json.loads(serialization.asJson(made.container())))
    return pod


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.environ["JAVA_HOME"] = str(find_java_home(Path(directory)))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        try:
            sys.stdout.write(json.dumps(executor_pod(gateway.jvm, json.loads(sys.argv[1]))) + "\n")
        finally:
            gateway.shutdown()
            gateway.proc.kill()
            gateway.proc.wait(30)
