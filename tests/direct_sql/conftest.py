"""SQLAlchemy's ORM on a shop of its own, once per server."""

from collections.abc import Iterator

import pytest
from tests.direct_sql.sqlalchemy_orm import Orm
from tests.scenarios.orm_shop import OrmShop, orm_shop

from fencepost.embedded.server import PostgresServer


@pytest.fixture(scope="session")
def shop_for_sqlalchemy(postgres: PostgresServer, template: str) -> Iterator[OrmShop]:
    with orm_shop(postgres, template) as running:
        yield running


@pytest.fixture(params=["psycopg-owner", "asyncpg-plain"])
def orm(request: pytest.FixtureRequest, shop_for_sqlalchemy: OrmShop) -> Orm:
    """Give one driver and one role at a time."""
    driver, role = request.param.split("-")
    return Orm(shop_for_sqlalchemy, driver, role)
