"""A gateway with keys for seals, one for all tests of this folder; each finds the rows as they were made."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.http.sealed_ways import SealedShop, key_line, sealed_shop
from tests.support.asking import Api
from tests.support.postgres import ReadyMade


@pytest.fixture(scope="package")
def shop(databases: ReadyMade, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedShop]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(key_line("one"))
    with sealed_shop(databases, keys) as shop:
        yield shop


@pytest.fixture
async def api(shop: SealedShop) -> AsyncIterator[Api]:
    await shop.reset()
    async with Api.open(shop.url) as api:
        yield api
