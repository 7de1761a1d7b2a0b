"""The pytest plugin: fixtures for tests of services that write through a fence. How to use them: docs/testing.md.

pytest loads this module in every run where Fencepost is installed. So it imports nothing but pytest; what a fixture
needs is imported when a test uses it.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencepost import Client, SyncClient
    from fencepost.client import Token
    from fencepost.testing.fixtures.gateway import GivenGateway, LockServers, LockService, OwnGateway
    from fencepost.testing.fixtures.tables import FencedTables


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that name a gateway which runs elsewhere."""
    group = parser.getgroup("fencepost", "Fencepost: tests of services that write through a fence")
    group.addoption(
        "--fencepost-url",
        metavar="URL",
        help="use the gateway that runs there (http://127.0.0.1:8080). Without it the harness runs one of its own.",
    )
    group.addoption(
        "--fencepost-api-token-file",
        metavar="FILE",
        help="with --fencepost-url: a file with a token or API key for that gateway (FENCEPOST_API_TOKEN_FILE; or"
        " FENCEPOST_API_TOKEN has it)",
    )
    group.addoption(
        "--fencepost-database",
        metavar="URL",
        help="with --fencepost-url: the PostgreSQL of that gateway (postgresql://user:password@host/db), in which"
        " fenced_table makes tables, and drops them after each test.",
    )


@pytest.fixture(scope="session")
def fencepost_gateway(pytestconfig: pytest.Config) -> Iterator["OwnGateway | GivenGateway"]:
    """Give a gateway for the session: `.url`, `.database`.

    It is one of the harness, on an embedded PostgreSQL and on free ports, started when it is used for the first
    time, in each worker of xdist; or the one that --fencepost-url names.
    """
    url, database = pytestconfig.getoption("--fencepost-url"), pytestconfig.getoption("--fencepost-database")
    if url is None and database is not None:
        pytest.fail(
            "--fencepost-database is for a gateway that runs elsewhere: give its --fencepost-url too", pytrace=False
        )
    if url is not None:
        from fencepost.testing.fixtures.gateway import GivenGatewayError, given_gateway  # noqa: PLC0415

        try:
            gateway = given_gateway(url, database)
        except GivenGatewayError as error:  # no pytest.exit: in a worker of xdist that is a crash without a message
            pytest.fail(str(error), pytrace=False)
        yield gateway
        return
    from fencepost.server.ops.embedded_files import EmbeddedServerError  # noqa: PLC0415
    from fencepost.testing.fixtures.gateway import own_gateway  # noqa: PLC0415

    try:
        own = own_gateway()
        with own as started:
            yield started
    except EmbeddedServerError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def fenced_table(fencepost_gateway: "OwnGateway | GivenGateway") -> Iterator["FencedTables"]:
    """Give a function that makes a protected table: `fenced_table("CREATE TABLE orders (…)", source="builtin")`.

    It takes DDL, a SQLAlchemy table or model, or a Django model, and the options of `fencepost protect`. In each
    test the database and the gateway are new.
    """
    from fencepost.testing.fixtures.gateway import GivenGatewayError  # noqa: PLC0415
    from fencepost.testing.fixtures.tables import fenced_tables  # noqa: PLC0415

    try:
        with fenced_tables(fencepost_gateway) as tables:
            yield tables
    except GivenGatewayError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def fencepost_client(request: pytest.FixtureRequest) -> Iterator["SyncClient"]:
    """Give a client of the gateway, for code that is not asynchronous."""
    from fencepost import SyncClient  # noqa: PLC0415

    with SyncClient(_address(request), token=_api_token(request)) as client:
        yield client


@pytest.fixture
def fencepost_async_client(request: pytest.FixtureRequest) -> "Client":
    """Give an asynchronous client of the gateway, to be entered in the test: `async with fencepost_async_client as c:`.

    The fixture itself is not asynchronous, so it works with pytest-asyncio, anyio and asyncio.run alike.
    """
    from fencepost import Client  # noqa: PLC0415

    return Client(_address(request), token=_api_token(request))


def _api_token(request: pytest.FixtureRequest) -> "Token | None":
    """Return the token for a gateway that runs elsewhere. One of the harness gets none: it wants none."""
    from fencepost import token_from_environment, token_from_file  # noqa: PLC0415

    file = request.config.getoption("--fencepost-api-token-file")
    if request.config.getoption("--fencepost-url") is None:
        if file is not None:
            pytest.fail(
                "--fencepost-api-token-file is for the gateway of --fencepost-url: give that too", pytrace=False
            )
        return None
    try:
        return token_from_environment() if file is None else token_from_file(file)
    except ValueError as error:
        pytest.fail(str(error), pytrace=False)


def _address(request: pytest.FixtureRequest) -> str:
    """Return the gateway's URL. A test that makes a table starts a gateway then, and needs none before."""
    gateway: OwnGateway | GivenGateway = request.getfixturevalue("fencepost_gateway")
    if "fenced_table" in request.fixturenames:
        return getattr(gateway, "address", None) or gateway.url
    return gateway.url


@pytest.fixture(scope="session")
def fencepost_lock_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator["LockServers"]:
    """Give the lock services' servers that this run has started."""
    from fencepost.testing.fixtures.gateway import LockServers  # noqa: PLC0415

    with closing(LockServers(tmp_path_factory.mktemp("fencepost-lock-services"))) as servers:
        yield servers


@pytest.fixture
def lock_service(request: pytest.FixtureRequest) -> "LockService":
    """Give a lock service: the built-in one, or those that the test names, each in a run of its own.

    `@pytest.mark.parametrize("lock_service", ["builtin", "redis", "etcd", "zookeeper"], indirect=True)`. A test
    skips when the server is not installed, and says what to install.
    """
    from fencepost.testing.fixtures.gateway import (  # noqa: PLC0415
        BUILTIN,
        LockService,
        OwnGateway,
    )
    from fencepost.testing.servers.lock_services import MissingServerError  # noqa: PLC0415

    name: str = getattr(request, "param", BUILTIN)
    client: SyncClient = request.getfixturevalue("fencepost_client")
    if name == BUILTIN:
        return LockService(name, client, None)
    gateway = request.getfixturevalue("fencepost_gateway")
    if not isinstance(gateway, OwnGateway):
        pytest.skip(f"the gateway of --fencepost-url does not know this run's {name}: leave --fencepost-url out")
    try:
        running = request.getfixturevalue("fencepost_lock_servers").get(name)
    except MissingServerError as missing:
        pytest.skip(str(missing))
    gateway.add_source(name, running.url)
    return LockService(name, client, running)
