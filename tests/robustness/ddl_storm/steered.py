"""No dice: a list of operations, one after the other, that goes through each hole of sabotage.py. It is driven against
the real database, and the storm's oracle judges its log.
"""

import asyncpg
from tests.robustness.ddl_storm import log
from tests.robustness.ddl_storm.ddl import Ddl
from tests.robustness.ddl_storm.direct_writers import DirectWriter
from tests.robustness.ddl_storm.emitter import Emitter
from tests.robustness.ddl_storm.storm import Server, Storm, judge, prepare
from tests.robustness.ddl_storm.world import GROUPS, World

OLD, NEW = 120, 130
"""Tokens: NEW is accepted, then OLD must not be."""


async def steer(running: Server, sabotage: str) -> tuple[dict[str, str], Storm]:
    """Drive the list; give what its two stale writes were answered (`committed`, or an SQLSTATE), and the judgement.

    `sabotage` is SQL that is run after `fencepost migrate`.
    """
    await prepare(running, sabotage)
    world = World(running.dsn, seed=0, operations=0)  # it is over from its start: nobody waits for anybody
    emitter, writer = Emitter(world), DirectWriter(world, 0)
    ddl = Ddl(world, emitter, {})
    row, neighbour, stale = frozenset({1}), frozenset({1 + GROUPS}), {}  # of one scope

    rows = await ddl.create("fa", "plain")
    await ddl.actor.protect(rows, "strict", "external")
    await writer.attempt("insert", rows, row, 110)
    await writer.attempt("delete", rows, row, NEW)
    stale["insert"] = (await writer.attempt("insert", rows, row, OLD)).answer

    scoped = await ddl.create("fb", "plain")
    await ddl.actor.protect(scoped, "strict", "external", scoped=True)
    await writer.attempt("insert", scoped, row, 110)
    await writer.attempt("insert", scoped, neighbour, NEW)
    await ddl.actor.protect(scoped, scoped=False)
    stale["update"] = (await writer.attempt("update", scoped, row, OLD)).answer

    await emitter.close()
    await ddl.actor.close()
    writer.close()
    connection = await asyncpg.connect(running.dsn)
    read = await log.drain(connection, log.Decoder())
    await log.end(connection)
    await connection.close()
    return stale, judge(world, read)
