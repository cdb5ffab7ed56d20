from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forebay_contrib.mqtt.broker_answers import BrokerAnswers
from forebay_contrib.mqtt.client import MqttClient
from forebay_contrib.mqtt.declaration import Mqtt
from forebay_contrib.mqtt.session import MqttSession


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("qos", [0, 1])
def test_what_a_lost_session_takes_with_it_is_said_for_a_receiver_of_a_group_too(qos: int, group: str | None) -> None:
    source = Mqtt(host="127.0.0.1", topics=["t"], client_id="c", group=group, qos=qos)
    session = MqttSession()
    session.note_known()
    said: list[str] = []
    receiver: Any = SimpleNamespace(report_error=said.append)
    flags: Any = SimpleNamespace(session_present=False)
    reason: Any = SimpleNamespace(is_failure=False)
    BrokerAnswers(receiver, source, session, "c-1").on_connect(MqttClient(source, "c-1"), None, flags, reason, None)
    assert len(said) == 1
    assert ("is lost unless another receiver of the group got it (" in said[0]) is (group is not None)
    assert ("what was not acknowledged" in said[0]) is (qos > 0)
