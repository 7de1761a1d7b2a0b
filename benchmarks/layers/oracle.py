"""What really happened to each order, in its order: an AFTER trigger logs each effect in the effect's transaction."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import asyncpg

SCHEMA = """
CREATE TABLE orders (order_id text PRIMARY KEY, version integer NOT NULL DEFAULT 0);
CREATE TABLE effects (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id text NOT NULL, version integer NOT NULL
);
CREATE FUNCTION log_effect() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  INSERT INTO effects (order_id, version) VALUES (new.order_id, new.version);
  RETURN NULL;
END $$;
CREATE TRIGGER log_effect AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION log_effect();
"""


@dataclass(frozen=True, slots=True)
class Effects:
    """Faults, counted. A late duplicate is both a duplicate and stale."""

    effects: int
    duplicates: int
    """Effects of an event that had one before."""
    stale: int
    """Effects of an event after one of a later event of the same order."""
    wrong_at_the_end: int
    """Orders whose last effect is not that of their last event."""


def judge(effects: Iterable[tuple[str, int]], orders: int, versions: int) -> Effects:
    """Judge (order, version) in the order in which they happened, those of an order together."""
    total = duplicates = stale = right = 0
    for _, of_order in groupby(effects, key=lambda effect: effect[0]):
        seen: set[int] = set()
        last = 0
        for _, version in of_order:
            total += 1
            duplicates += version in seen
            stale += any(earlier > version for earlier in seen)
            seen.add(version)
            last = version
        right += last == versions
    return Effects(total, duplicates, stale, orders - right)


async def judged(connection: asyncpg.Connection, orders: int, versions: int) -> Effects:
    """Judge what the trigger has logged."""
    rows = await connection.fetch("SELECT order_id, version FROM effects ORDER BY order_id, number")
    return judge([(row["order_id"], row["version"]) for row in rows], orders, versions)
