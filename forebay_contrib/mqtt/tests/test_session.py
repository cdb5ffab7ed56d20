from __future__ import annotations

from forebay_contrib.mqtt.session import MqttSession


def test_a_message_is_due_once_when_it_is_registered() -> None:
    session = MqttSession()
    session.begin(present=False)
    held = session.arrived(1, 1, 77, again=False)
    assert held is not None
    assert session.due() == []
    session.registered([held])
    assert session.due() == [(1, 1)]
    assert session.due() == []


def test_a_repeated_message_is_stored_once_and_acknowledged_on_the_newest_connection() -> None:
    session = MqttSession()
    session.begin(present=False)
    first = session.arrived(1, 1, 77, again=False)
    second = session.arrived(2, 2, 78, again=False)
    assert first is not None
    assert second is not None
    assert session.begin(present=True) is False
    session.registered([second])
    # Neither message has come again on this connection yet.
    assert session.due() == []
    assert session.arrived(1, 1, 77, again=True) is None
    assert session.arrived(2, 2, 78, again=True) is None
    assert session.due() == [(2, 2)]
    session.registered([first])
    assert session.due() == [(1, 1)]


def test_a_qos_2_id_is_kept_until_it_is_released() -> None:
    session = MqttSession()
    session.begin(present=False)
    held = session.arrived(1, 2, 77, again=False)
    assert held is not None
    session.registered([held])
    assert session.due() == [(1, 2)]
    assert session.is_answering()
    session.begin(present=True)
    assert session.arrived(1, 2, 77, again=True) is None
    assert session.due() == [(1, 2)]
    session.released(1)
    assert not session.is_answering()
    assert session.arrived(1, 2, 77, again=True) is not None


def test_after_an_acknowledgement_of_qos_1_the_id_may_be_another_message() -> None:
    """The broker may have received the acknowledgement: a later message with this id may be another one."""
    session = MqttSession()
    session.begin(present=False)
    held = session.arrived(1, 1, 77, again=False)
    assert held is not None
    session.registered([held])
    session.due()
    session.begin(present=True)
    assert session.arrived(1, 1, 77, again=True) is not None


def test_another_message_with_a_known_id_is_new() -> None:
    session = MqttSession()
    session.begin(present=False)
    first = session.arrived(1, 1, 77, again=False)
    assert first is not None
    other = session.arrived(1, 1, 78, again=True)
    assert other is not None
    session.registered([first])
    assert session.due() == []
    session.registered([other])
    assert session.due() == [(1, 1)]


def test_a_session_that_the_broker_lost_is_reported_and_forgotten() -> None:
    session = MqttSession()
    assert session.begin(present=False) is False
    assert session.arrived(1, 1, 77, again=False) is not None
    assert session.begin(present=False) is True
    assert session.arrived(1, 1, 77, again=True) is not None


def test_a_dropped_message_counts_as_new_when_it_comes_again() -> None:
    session = MqttSession()
    session.begin(present=False)
    held = session.arrived(1, 1, 77, again=False)
    assert held is not None
    session.dropped([held])
    session.begin(present=True)
    assert session.arrived(1, 1, 77, again=True) is not None
