"""Check which refusals of a connection say that the server is away, and which that a setting is wrong."""

from __future__ import annotations

import psycopg2
import pytest

from orchestration.sinks.postgres.postgres_staging import is_away

SERVER = 'connection to server at "db" (10.0.0.1), port 5432 failed: '


@pytest.mark.parametrize(
    "said",
    [
        f"{SERVER}Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
        f"{SERVER}timeout expired",
        f"{SERVER}No route to host",
        f"{SERVER}FATAL:  the database system is starting up",
        f"{SERVER}FATAL:  sorry, too many clients already",
        f"{SERVER}FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'could not translate host name "db" to address: Temporary failure in name resolution',
        "server closed the connection unexpectedly",
        f"{SERVER}FATAL:  pgbouncer cannot connect to server",
        f"{SERVER}FATAL:  server login has been failing, cached error: connect failed (server_login_retry)",
        'connection to server on socket "/run/.s.PGSQL.5432" failed: No such file or directory',
    ],
)
def test_a_server_that_may_come_back_is_waited_for(said: str) -> None:
    assert is_away(psycopg2.OperationalError(said))


@pytest.mark.parametrize(
    "said",
    [
        f'{SERVER}FATAL:  password authentication failed for user "me"',
        f'{SERVER}FATAL:  Passwort-Authentifizierung fuer Benutzer "me" fehlgeschlagen',
        f'{SERVER}FATAL:  database "nowhere" does not exist',
        f"{SERVER}fe_sendauth: no password supplied",
        f"{SERVER}server does not support SSL, but SSL was required",
        f"{SERVER}session is not read-only",
        'invalid sslmode value: "bogus"',
        'could not translate host name "nowhere" to address: Name or service not known',
        "channel binding required, but server authenticated client without channel binding",
    ],
)
def test_a_wrong_setting_is_not(said: str) -> None:
    assert not is_away(psycopg2.OperationalError(said))
    assert not is_away(psycopg2.ProgrammingError(said))
