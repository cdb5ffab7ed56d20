from __future__ import annotations
import pytest
from forebay.testing.sinks import attempt, run
from forebay_contrib.kafka.tests.kafka_target import KafkaTarget, counted
from tests.integration.orchestration.frame_without_spark import words
pytestmark = pytest.mark.kafka

def test_first(broker):
    target = KafkaTarget(broker.address)
    import time
    for n in (1,2,3):
        t=time.perf_counter()
        written = run(target.sink(), words(("a", 1), ("b", 2)), attempt(1, output=f"o{n}"))
        print(written, time.perf_counter()-t)
    t=time.perf_counter()
    found = target.sink().committed(attempt(2, output="o1"))
    print(found, time.perf_counter()-t)
    assert counted(target) == {("a", 1): 3, ("b", 2): 3}
