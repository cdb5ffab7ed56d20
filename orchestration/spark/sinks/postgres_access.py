"""Check whether a sink's Postgres could be written to, without writing: its schema, its table and the login's rights.

All SQL here runs on the target, and changes nothing; this module never touches the driver log.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from orchestration.spark.sinks.postgres_staging import Address
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_REFERENCES = ("env:", "file:")


def missing_rights(sink: Mapping[str, Any], application_name: str) -> list[str]:
    """Return what the login lacks to write an output there, as sentences; empty if it can.

    `sink`: the declaration of a `PostgresSink`. Raises TargetError if there is no connection, and SecretError.
    """
    url = Secret(sink["url"]).resolve() if sink["url"].startswith(_REFERENCES) else sink["url"]
    password = None if sink["password"] is None else Secret(sink["password"]).resolve()
    schema, _, table = sink["table"].partition(".")
    with closing(Address(SecretUrl(url), password, application_name).connect()) as connection:
        connection.set_session(readonly=True, autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'CREATE'), false), "
                "c.oid IS NULL OR has_table_privilege(c.oid, 'INSERT, DELETE'), current_user "
                "FROM (VALUES (1)) AS one "
                "LEFT JOIN pg_namespace n ON n.nspname = %(schema)s "
                "LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = %(table)s",
                {"schema": schema, "table": table},
            )
            exists, may_create, may_write, login = cursor.fetchone()
    if not exists:
        return [f"there is no schema {schema}"]
    lacking = []
    if not may_create:
        lacking.append(f"{login} may not create tables in the schema {schema}, which every attempt does")
    if not may_write:
        lacking.append(f"{login} lacks INSERT or DELETE on {schema}.{table}")
    return lacking
