from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forebay_contrib.mqtt.broker_answers import BrokerAnswers
from forebay_contrib.mqtt.client import MqttClient
from forebay_contrib.mqtt.declaration import Mqtt
from forebay_contrib.mqtt.session import MqttSession


@pytest.mark.parametrize(
    ("qos", "group", "is_plain"), [(0, None, True), (0, "g", False), (1, None, True), (1, "g", True)]
)
def test_only_at_qos_0_other_receivers_of_the_group_get_what_a_receiver_missed(
    qos: int, group: str | None, is_plain: bool
) -> None:
    source = Mqtt(host="127.0.0.1", topics=["t"], client_id="c", group=group, qos=qos)
    session = MqttSession()
    session.note_known()
    said: list[str] = []
    receiver: Any = SimpleNamespace(report_error=said.append)
    flags: Any = SimpleNamespace(session_present=False)
    reason: Any = SimpleNamespace(is_failure=False)
    BrokerAnswers(receiver, source, session, "c-1").on_connect(MqttClient(source, "c-1"), None, flags, reason, None)
    assert len(said) == 1
    assert ("is lost unless another receiver of the group was connected (" in said[0]) is not is_plain
    assert ("is lost (" in said[0]) is is_plain
