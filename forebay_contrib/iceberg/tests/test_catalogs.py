"""Check the catalogs that pyiceberg opens: what is a secret, what messages show, and what Spark's tasks are given.

A REST catalog is played here by recorded answers; `make catalogs` has a real one. Glue is moto's.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

import pytest
import requests
from moto import mock_aws
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitStateUnknownException, ForbiddenError

from forebay import DeclarationError, EnvVar, IcebergSink
from forebay_contrib.iceberg.files import IcebergFiles, place_of, store_of
from orchestration.declarations.sink import SinkError, TargetUnavailableError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay_contrib.iceberg.catalogs import Properties

_LOGIN = "client-7:hunter2-of/the+catalog"


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": "postgresql://me:hunter2@db/catalog"},
        {"s3.secret-access-key": "hunter2"},
        {"s3.session-token": "hunter2"},
        {"adls.account-key": "hunter2"},
        {"adls.connection-string": "AccountKey=hunter2"},
        {"adls.sas-token.account.dfs.core.windows.net": "hunter2"},
        {"gcp.bigquery.credentials-info": "hunter2"},
        {"gcs.oauth2.token": "hunter2"},
        {"token": "hunter2"},
        {"credential": "me:hunter2"},
        {"header.Authorization": "Bearer hunter2"},
        {"auth": {"type": "oauth2", "oauth2": {"client_id": "me", "client_secret": "hunter2"}}},
    ],
)
def test_a_literal_secret_of_the_catalog_is_refused_and_not_shown(properties: Properties) -> None:
    with pytest.raises(DeclarationError, match=r'holds a secret.*"env:NAME"') as raised:
        IcebergSink("s.t", catalog=properties)
    assert "hunter2" not in str(raised.value)


def test_what_only_has_the_word_of_a_secret_in_it_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    properties: Properties = {
        "type": "rest",
        "token-refresh-enabled": "true",
        "client.role-session-name": "forebay",
        "oauth2-server-uri": "https://login/token",
        "gcs.oauth2.token-expires-at": "1",
        "credential": EnvVar("LOGIN"),
        "auth": {"type": "oauth2", "oauth2": {"client_id": "me", "client_secret": "env:LOGIN"}},
        "ssl": {"cabundle": "file:///ca"},
    }
    declared = IcebergSink("s.t", catalog=properties).declaration()["properties"]
    assert declared == json.loads(json.dumps(declared))
    assert declared["credential"] == declared["auth"]["oauth2"]["client_secret"] == "env:LOGIN"
    assert declared["ssl"] == {"cabundle": "file:///ca"}
    with pytest.raises(DeclarationError, match="catalog\\['a'\\] is a bool: pyiceberg takes texts, as 'True'"):
        IcebergSink("s.t", catalog=cast("Properties", {"a": True}))
    monkeypatch.delenv("LOGIN", raising=False)
    with pytest.raises(TargetUnavailableError, match="LOGIN"):
        IcebergSink("s.t", catalog=properties).write(words(("a", 1)), attempt())


class Recorded:
    """Server that answers each request as it was recorded, and keeps what it was asked."""

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        asked = self.asked = list[tuple[str, dict[str, str], str]]()

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                asked.append((f"{self.command} {self.path}", dict(self.headers), body))
                status, said = answers.get(f"{self.command} {self.path}", (404, {"error": {"message": self.path}}))
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_HEAD = answer  # noqa: N815  their names

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.uri = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def _metadata(folder: Path) -> dict[str, Any]:
    """Return what a catalog says of a table without a snapshot, whose files lie on S3."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
    with load_catalog("forebay", **properties) as catalog:
        catalog.create_namespace("s")
        from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark  # noqa: PLC0415

        schema = FrameWithoutSpark([]).batch([]).schema
        table = catalog.create_table("s.t", schema)
        return {**json.loads(table.metadata.model_dump_json()), "location": "s3://lake/s/t"}


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    table = {
        "metadata-location": "s3://lake/s/t/metadata/0.json",
        "metadata": _metadata(tmp_path),
        "config": {
            "s3.access-key-id": "vended-id",
            "s3.secret-access-key": "vended-secret",
            "s3.session-token": "vended-token",
            "client.region": "eu-west-1",
        },
    }
    server = Recorded(
        {
            "POST /token": (200, {"access_token": "of-the-login", "token_type": "bearer", "expires_in": 3600}),
            "POST /no-token": (401, {"error": "invalid_client", "error_description": f"no client {_LOGIN}"}),
            "GET /v1/config?warehouse=lake": (200, {"defaults": {}, "overrides": {"prefix": "p1"}}),
            "GET /v1/p1/namespaces/s/tables/t": (200, table),
            "GET /v1/p1/namespaces/s/tables/t?snapshots=all": (200, table),
        }
    )
    yield server
    server.close()


def _rest(server: Recorded, token: str = "token") -> dict[str, Any]:
    return {
        "type": "rest",
        "uri": server.uri,
        "warehouse": "lake",
        "credential": EnvVar("CATALOG_LOGIN"),
        "oauth2-server-uri": f"{server.uri}/{token}",
        "scope": "PRINCIPAL_ROLE:ALL",
        "s3.endpoint": "http://127.0.0.1:9",
    }


def test_a_rest_catalog_is_asked_by_its_login_and_the_tasks_get_what_it_vends(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_LOGIN", _LOGIN)
    sink = IcebergSink("s.t", catalog=_rest(recorded))
    with sink._connect("here") as catalog:
        table = sink._catalog.table(catalog, "s.t", "here")
        assert table is not None
        store = store_of(table, place_of(table), "here")
    asked = {path: (headers, body) for path, headers, body in recorded.asked}
    login = parse_qs(asked["POST /token"][1])
    assert (login["grant_type"], login["scope"]) == (["client_credentials"], ["PRINCIPAL_ROLE:ALL"])
    [loaded] = [headers for path, (headers, _) in asked.items() if "/tables/t" in path]
    assert loaded["Authorization"] == "Bearer of-the-login"
    assert loaded["X-Iceberg-Access-Delegation"] == "vended-credentials"
    assert store.place == "s3://lake/s/t/data"
    assert isinstance(store, IcebergFiles)
    assert store.io.properties["s3.secret-access-key"] == "vended-secret"
    # Spark's tasks get none of the catalog's own secrets, and neither they nor messages show the table's.
    given = pickle.dumps(store)
    assert b"vended-token" in given
    assert not any(secret in given for secret in (b"hunter2", b"of-the-login"))
    assert "vended" not in repr(store)


def test_a_login_that_the_catalog_refuses_is_not_shown(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_LOGIN", _LOGIN)
    sink = IcebergSink("s.t", catalog=_rest(recorded, "no-token"))
    with pytest.raises(SinkError, match=r"can't be opened: .*no client \(env:CATALOG_LOGIN\)") as raised:
        sink.write(words(("a", 1)), attempt())
    assert "hunter2" not in str(raised.value)
    assert "client-7" not in str(raised.value)


def test_a_catalog_that_is_away_blocks_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_LOGIN", _LOGIN)
    server = Recorded({})
    server.close()
    with pytest.raises(TargetUnavailableError, match="the catalog 'forebay' can't be opened"):
        IcebergSink("s.t", catalog=_rest(server)).write(words(("a", 1)), attempt())


def test_a_store_whose_client_is_not_installed_blocks_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    catalog: Properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "abfss://c@a.dfs/w"}
    with pytest.raises(TargetUnavailableError, match="adlfs"):
        IcebergSink("s.t", catalog=catalog).write(words(("a", 1)), attempt())


def test_a_catalog_that_goes_away_blocks_the_batch_and_shows_no_secret(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_LOGIN", _LOGIN)
    sink = IcebergSink("s.t", catalog=_rest(recorded))

    def use(error: Exception) -> None:
        with sink._connect("here"):
            raise error

    with pytest.raises(
        TargetUnavailableError, match=r"the catalog 'forebay' can't be reached: cut \(env:CATALOG_LOGIN"
    ):
        use(requests.ConnectionError(f"cut {_LOGIN}"))
    with pytest.raises(TargetUnavailableError, match="can't be reached: 502"):
        use(CommitStateUnknownException("502"))
    with pytest.raises(SinkError, match=r"the catalog 'forebay' refuses it: no \(env:CATALOG_LOGIN"):
        use(ForbiddenError(f"no {_LOGIN}"))
    with pytest.raises(ZeroDivisionError):
        use(ZeroDivisionError())


def test_a_catalog_that_signs_requests_itself_is_refused(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_LOGIN", _LOGIN)
    sink = IcebergSink("s.t", catalog={**_rest(recorded), "s3.signer": "S3V4RestSigner"})
    assert "signs each request of S3 itself (s3.signer)" in sink.check_target().found


def test_glue_keeps_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLUE_SECRET", "testing")
    catalog: Properties = {
        "type": "glue",
        "glue.region": "us-east-1",
        "glue.access-key-id": EnvVar("GLUE_SECRET"),
        "glue.secret-access-key": EnvVar("GLUE_SECRET"),
        "warehouse": f"file://{tmp_path}/w",
    }
    with mock_aws():
        sink = IcebergSink("s.t", catalog=catalog)
        assert sink.check_target().found == "s.t is made at the first batch"
        sink.write(words(("a", 1)), attempt())
        sink.write(words(("a", 2)), attempt(2))
        found = IcebergSink("s.t", catalog=catalog).committed(attempt(3))
        assert found is not None
        assert (found.attempt, found.written.rows) == (2, 1)
        with sink._connect("here") as opened:
            assert opened.load_table("s.t").scan().to_arrow()["n"].to_pylist() == [2]
