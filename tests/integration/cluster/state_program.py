"""Write two versions of a state in this process, on FOREBAY_SPARK_MASTER, and print what is read of them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session
from orchestration.state.reading import read_state
from orchestration.state.state_schema import StateSchema
from orchestration.state.writing import write_state

SCHEMA = StateSchema.parse(key="user STRING", value="n BIGINT, expires_at TIMESTAMP")
TIME = datetime(2026, 1, 1, tzinfo=UTC)

if __name__ == "__main__":
    settings = Settings()
    session = spark_session(settings, application="state")
    place: dict[str, Any] = {
        "roots": settings.block_store_roots,
        "block_keys": ",".join(map(str, settings.block_key_references)),
        "expected": {},
        "buckets": 4,
    }
    users = session.range(100).selectExpr(
        "concat('user ', id) AS user", "id AS n", "CAST(NULL AS TIMESTAMP) AS expires_at"
    )
    first = write_state(
        session,
        SCHEMA,
        users,
        [],
        ordinal=1,
        folder="state/1/o/1-1",
        batch_time=TIME,
        attempt=1,
        ttl=timedelta(hours=1),
        **place,
    )
    some = users.where("n < 10").selectExpr("user", "n + 1000 AS n", "expires_at")
    second = write_state(
        session,
        SCHEMA,
        some,
        [first.frames],
        ordinal=2,
        folder="state/1/o/2-1",
        batch_time=TIME + timedelta(minutes=30),
        attempt=1,
        ttl=timedelta(hours=1),
        **place,
    )
    later = TIME + timedelta(hours=1)
    keys = users.where("n < 3").select("user")
    state = read_state(session, SCHEMA, [first.frames, second.frames], keys, batch_time=later, **place)
    rows = state.collect()
    expired = sorted(row["n"] for row in rows if row["is_expired"])
    live = sorted(row["n"] for row in rows if not row["is_expired"])
    sys.stdout.write(json.dumps([first.keys, second.changed, len(expired), *expired, *live]) + "\n")
