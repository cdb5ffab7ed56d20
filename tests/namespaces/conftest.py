"""Three hosts as network namespaces. If none can be made, tests are skipped with the reason; in CI they fail."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.namespaces.hosts import BridgedPostgres
from tests.namespaces.network import Network, NoNamespacesError
from tests.support.machine.state_directory import state_directory
from tests.support.servers.s3 import NoServerError, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """Make the hosts on a bridge."""
    try:
        made = Network(("h1", "h2", "h3")).__enter__()
    except NoNamespacesError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield made
    made.__exit__(None, None, None)


@pytest.fixture(scope="session")
def postgres(network: Network) -> Iterator[BridgedPostgres]:
    """Start a durable server that the hosts can reach."""
    with state_directory() as directory, BridgedPostgres(directory / "postgres", network) as server:
        yield server


@pytest.fixture(scope="session")
def s3(network: Network) -> Iterator[S3Server]:
    """Start an S3 server that the hosts can reach."""
    with state_directory() as directory:
        try:
            server = S3Server(directory, address=network.address)
        except NoServerError as error:
            if os.environ.get("CI") == "true":
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
        server.start()
        yield server
        server.kill()
