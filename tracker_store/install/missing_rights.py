"""Say how a login gets a right that an upgrade of the driver log lacks, by how the database is set up.

Reads Postgres's catalogs, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tracker_store.connection.log_address import LOG_OWNER

# Without locks. Names come quoted, as statements need them.
_SETUP = f"""
SELECT quote_ident(current_user) AS login, quote_ident(d.datname) AS database, quote_ident(o.rolname) AS database_owner,
       has_database_privilege(d.oid, 'CREATE') AS may_create, quote_ident(s.rolname) AS log_owner,
       coalesce(s.rolcanlogin, false) AS owner_logs_in, coalesce(pg_has_role(s.oid, 'MEMBER'), false) AS is_member,
       coalesce(pg_has_role(s.oid, 'USAGE'), false) AS inherits,
       current_setting('server_version_num')::int >= 160000 AS inherits_by_grant
FROM pg_catalog.pg_database d
JOIN pg_catalog.pg_roles o ON o.oid = d.datdba
LEFT JOIN pg_catalog.pg_roles s ON s.oid = ({LOG_OWNER})
WHERE d.datname = current_database()
"""  # noqa: S608  a constant

#: What to do where the catalogs do not say more.
UNKNOWN_SETUP = "An administrator of this Postgres can grant what is named there."


@dataclass(frozen=True, slots=True)
class DatabaseSetup:
    """Hold who owns what, and what this login may; `log_owner` owns the driver log's schema, None: it does not exist.

    is_member: of `log_owner`, or is it; inherits: has its rights without SET ROLE; inherits_by_grant: each GRANT of a
    role says whether it is inherited (Postgres 16), and not the member for all of its roles.
    """

    login: str
    database: str
    database_owner: str
    may_create: bool
    log_owner: str | None = None
    owner_logs_in: bool = False
    is_member: bool = False
    inherits: bool = False
    inherits_by_grant: bool = True

    @property
    def advice(self) -> str:
        """Return what to do so that an upgrade has the right that it lacked."""
        if self.log_owner is None or self.inherits:
            if self.may_create:
                return UNKNOWN_SETUP
            return (
                f"As {self.database_owner}, which owns the database, or as an administrator: `GRANT CREATE ON DATABASE "
                f"{self.database} TO {self.login};`: Forebay makes its schemas there."
            )
        if self.is_member:
            if self.inherits_by_grant:
                statement = f"GRANT {self.log_owner} TO {self.login} WITH INHERIT TRUE;"
            else:
                statement = f"ALTER ROLE {self.login} INHERIT;"
            return (
                f"{self.login} is a member of {self.log_owner}, which owns the driver log, and does not inherit its "
                f"rights: `{statement}`."
            )
        if self.owner_logs_in:
            return (
                f"The driver log belongs to {self.log_owner}: let FOREBAY_DATABASE_URL name that login for `forebay "
                "db` and `forebay up`. All else takes a login with Forebay's roles."
            )
        return (
            f"The driver log belongs to the role {self.log_owner}, which can't log in: let FOREBAY_DATABASE_URL name a "
            f"login that is a member of it for `forebay db` and `forebay up`, or `GRANT {self.log_owner} TO "
            f"{self.login};`."
        )


def database_setup(connection: sa.Connection) -> DatabaseSetup:
    """Return how the database behind `connection` is set up for its login. No locks."""
    return DatabaseSetup(**connection.execute(sa.text(_SETUP)).mappings().one())
