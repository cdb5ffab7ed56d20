from __future__ import annotations

from receiver_runtime.receivers.mqtt.session import MqttSession


def test_a_message_is_due_when_it_is_registered_and_once() -> None:
    session = MqttSession()
    session.begin(present=False)
    held = session.arrived(1, 1, 77, again=False)
    assert held is not None
    assert session.due() == []
    session.registered([held])
    assert session.due() == [(1, 1)]
    assert session.due() == []


def test_what_is_held_and_comes_again_is_acknowledged_on_the_newest_connection_and_stored_once() -> None:
    session = MqttSession()
    session.begin(present=False)
    first = session.arrived(1, 1, 77, again=False)
    second = session.arrived(2, 2, 78, again=False)
    assert first is not None
    assert second is not None
    assert session.begin(present=True) is False
    session.registered([second])
    # Neither has come on this connection yet.
    assert session.due() == []
    assert session.arrived(1, 1, 77, again=True) is None
    assert session.arrived(2, 2, 78, again=True) is None
    assert session.due() == [(2, 2)]
    session.registered([first])
    assert session.due() == [(1, 1)]


def test_an_id_of_qos_2_is_ours_until_it_is_released() -> None:
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
    """The broker may have taken it: what comes by it then must not be taken for what we had."""
    session = MqttSession()
    session.begin(present=False)
    held = session.arrived(1, 1, 77, again=False)
    assert held is not None
    session.registered([held])
    session.due()
    session.begin(present=True)
    assert session.arrived(1, 1, 77, again=True) is not None


def test_an_id_by_which_another_message_comes_is_new() -> None:
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


def test_a_session_that_the_broker_lost_is_said_and_forgotten() -> None:
    session = MqttSession()
    assert session.begin(present=False) is False
    assert session.arrived(1, 1, 77, again=False) is not None
    assert session.begin(present=False) is True
    assert session.arrived(1, 1, 77, again=True) is not None


def test_what_nobody_will_store_counts_as_new_when_it_comes_again() -> None:
    session = MqttSession()
    session.begin(present=False)
    held = session.arrived(1, 1, 77, again=False)
    assert held is not None
    session.dropped([held])
    session.begin(present=True)
    assert session.arrived(1, 1, 77, again=True) is not None
