"""Send by Elasticsearch's own client: it looks at the product before it sends, and at each item of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from elasticsearch import ApiError, Elasticsearch
from elasticsearch.helpers import bulk, streaming_bulk

from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from pathlib import Path


def test_the_client_sends_documents_and_learns_which_were_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "abc")
    with (
        listening(tmp_path, protocols="elasticsearch", tokens="env:A_TOKEN") as made,
        Elasticsearch(f"http://127.0.0.1:{made.port}", api_key=("id", "abc"), http_compress=True) as client,
    ):
        assert client.info()["version"]["number"].startswith("8.")
        assert client.ping()
        assert client.indices.exists_index_template(name="logs")
        documents = ({"_op_type": "create", "_index": "logs", "_id": n, "n": n} for n in range(1200))
        assert bulk(client, documents, chunk_size=500) == (1200, [])
        assert len(made.rows()) == 1200
        assert {row["id"] for row in made.rows()} == {str(n) for n in range(1200)}
        mixed = [{"_index": "logs", "n": 1}, {"_op_type": "delete", "_index": "logs", "_id": 1}]
        outcomes = list(streaming_bulk(client, mixed, raise_on_error=False))
        assert [good for good, _ in outcomes] == [True, False]
        assert outcomes[1][1]["delete"]["status"] == 400


def test_a_wrong_key_is_an_error_of_authentication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abc")
    with (
        listening(tmp_path, protocols="elasticsearch", tokens="env:A_TOKEN") as made,
        Elasticsearch(f"http://127.0.0.1:{made.port}", basic_auth=("elastic", "wrong")) as client,
        pytest.raises(ApiError, match="security_exception"),
    ):
        client.info()
