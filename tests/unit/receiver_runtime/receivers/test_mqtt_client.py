from __future__ import annotations

import pytest

pytest.importorskip("paho.mqtt.client")

from paho.mqtt.client import Client

from receiver_runtime.receivers.mqtt_client import MqttClient, UnknownPahoError
from receiver_runtime.sources.mqtt import Mqtt

SOURCE = Mqtt(host="127.0.0.1", topics=("a",), client_id="c")


@pytest.mark.parametrize("name", ["_send_pubrec", "_handle_publish", "_handle_pubrel"])
def test_a_paho_that_is_another_inside_is_refused_and_not_trusted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its own way with QoS 2 loses what a killed process had in memory."""
    monkeypatch.delattr(Client, name)
    with pytest.raises(UnknownPahoError, match=f"install paho-mqtt 2.1. It has no {name}"):
        MqttClient(SOURCE, "c-1")


def test_the_one_that_is_installed_is_known() -> None:
    assert MqttClient(SOURCE, "c-1").is_v5
