"""What is known of a role's privileges while PostgreSQL is away: a log may be there, which is what it is for."""

from dataclasses import replace

from tests.support.asking import READER, WEB, Acting
from tests.support.manual_clock import ManualClock

from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.tables import KnownPrivileges, ProtectedTable
from fencepost.server.times import Times


async def test_the_last_answer_counts_while_postgresql_is_away_and_before_the_first_one_nothing(stage: Acting) -> None:
    clock, table = ManualClock(), stage.gateway.catalog.current.find("orders")
    assert isinstance(table, ProtectedTable)
    known = KnownPrivileges(replace(Times(), clock=clock))
    may = await known.of(stage.gateway.database, READER, table)
    assert may is not None
    assert may.denial(table, "patch", ["status"], []) == "permission denied for table orders"
    away = await Database.open(stage.dsn, Limits(1))
    await away.close()
    await clock.advance(60)
    assert await known.of(away, READER, table) == may
    assert await known.of(away, WEB, table) is None
