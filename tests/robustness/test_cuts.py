"""Writers whose connections break all the time, and an audit inside the database of what they really did.

Every logical write has a tag of its own, so the audit knows how often it was done: it is judged against what its
writer was answered. The audit shares no code with the product and knows nothing of it.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

import httpx
import pytest
from tests.support.gateways import in_thread
from tests.support.interleave import Connect, Connection
from tests.support.postgres import CuttingProxy, cutting_proxy
from tests.support.racing import owner
from tests.support.violations import assert_none

from fencepost import ApiError, Client, OutcomeUnknown, Retry, Unavailable
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import PATIENCE

TABLES = {"strictly": "strict", "leased": "epoch"}
KEYS = ("k0", "k1", "k2", "k3")

SCHEMA = """
CREATE SCHEMA oracle;
CREATE TABLE oracle.done (n bigserial PRIMARY KEY, tab text NOT NULL, key text NOT NULL, op text NOT NULL, tag text);
CREATE FUNCTION oracle.see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO oracle.done (tab, key, op, tag) VALUES (TG_TABLE_NAME, NEW.id, TG_OP, NEW.tag);
  RETURN NULL;
END $$;
"""
TABLE = """
CREATE TABLE public.{0} (id text PRIMARY KEY, tag text);
INSERT INTO public.{0} SELECT 'k' || i FROM generate_series(0, 3) i;
"""
AUDIT = "CREATE TRIGGER oracle AFTER INSERT OR UPDATE ON public.{0} FOR EACH ROW EXECUTE FUNCTION oracle.see()"

Outcome = Literal["done", "refused", "unknown"]


@dataclass
class Writers:
    """Write until it is enough. `outcomes` has what each logical write was answered with, by its tag."""

    url: str
    seed: int
    enough: Callable[[], bool]
    own_keys: bool = False
    """Whether the SDK's writers keep out of each other's way, so that no repeat is stale by another writer's write."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    tokens: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def write(self, *, with_sdk: int, by_hand: int) -> None:
        """Run so many writers of each kind side by side."""
        async with asyncio.TaskGroup() as group:
            for number in range(with_sdk):
                keys = (KEYS[number],) if self.own_keys else KEYS
                group.create_task(self._with_sdk(f"s{number}", keys))
            for number in range(by_hand):
                group.create_task(self._by_hand(f"h{number}"))

    @property
    def accepted(self) -> int:
        return self.answers["done: sdk"] + self.answers["done: by hand"]

    async def _with_sdk(self, name: str, keys: tuple[str, ...]) -> None:
        """The SDK repeats what it does not know, by itself."""
        chance = random.Random(f"{self.seed} {name}")
        async with Client(self.url, owner=name, retry=Retry(patience=10, first=0.01, longest=0.2)) as client:
            for number in itertools.count():
                if self.enough():
                    return
                tag, table, key = f"{name}.{number}", chance.choice(list(TABLES)), chance.choice(keys)
                token = next(self.tokens)
                try:
                    match chance.randrange(4):
                        case 0:
                            await client.post(table, {"id": tag, "tag": tag}, token=token)
                        case 1:
                            await client.put(table, key, {"tag": tag}, token=token)
                        case _:
                            await client.patch(table, key, {"tag": tag}, token=token)
                except (OutcomeUnknown, Unavailable) as error:
                    self._note(tag, "unknown", type(error).__name__)
                except ApiError as refused:
                    self._note(tag, "refused", str(refused.code))
                else:
                    self._note(tag, "done", "sdk")

    async def _by_hand(self, name: str) -> None:
        """A client without keys: its answers must be true, and it does not repeat."""
        chance = random.Random(f"{self.seed} {name}")
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=PATIENCE) as http:
            for number in itertools.count():
                if self.enough():
                    return
                tag, table, key = f"{name}.{number}", chance.choice(list(TABLES)), chance.choice(KEYS)
                headers = {"X-Fence-Token": str(next(self.tokens))}
                body = {"id": tag, "tag": tag}
                try:
                    if chance.randrange(3) == 0:
                        answer = await http.post(f"/v1/data/{table}", json=body, headers=headers)
                    else:
                        answer = await http.patch(f"/v1/data/{table}/{key}", json={"tag": tag}, headers=headers)
                except httpx.ConnectError:
                    self._note(tag, "refused", "no listener")
                    continue
                except httpx.TransportError:
                    self._note(tag, "unknown", "cut")
                    continue
                if answer.is_success:
                    self._note(tag, "done", "by hand")
                else:
                    code = json.loads(answer.content)["code"]
                    self._note(tag, "unknown" if code == "FP009" else "refused", code)

    def _note(self, tag: str, outcome: Outcome, answer: str) -> None:
        self.outcomes[tag] = outcome
        self.answers[f"{outcome}: {answer}"] += 1


async def judge(connection: Connection, writers: Writers) -> list[str]:
    """Compare the writers' answers with what was done; returns every contradiction."""
    rows = await connection.fetch("SELECT tag, count(*) AS times FROM oracle.done WHERE tag IS NOT NULL GROUP BY tag")
    done = {row["tag"]: row["times"] for row in rows}
    may_be = {"done": {1}, "refused": {0}, "unknown": {0, 1}}
    wrong = [
        f"{tag} was answered {outcome}, and was done {done.get(tag, 0)} times"
        for tag, outcome in writers.outcomes.items()
        if done.get(tag, 0) not in may_be[outcome]
    ]
    wrong += [f"{tag} was done, and no writer got an answer" for tag in done.keys() - writers.outcomes.keys()]
    for table in TABLES:
        lost = await connection.fetch(
            "SELECT t.id, t.tag, last.tag AS audited FROM oracle.done AS last"
            f" LEFT JOIN public.{table} AS t ON t.id = last.key"
            " WHERE last.n = (SELECT max(n) FROM oracle.done d WHERE d.tab = $1 AND d.key = last.key)"
            " AND last.tab = $1 AND t.tag IS DISTINCT FROM last.tag",
            table,
        )
        wrong += [f"{table}: {row['audited']} was the last write, and {row['tag']} is there" for row in lost]
    return wrong


# Connections cut at random, on both sides of the gateway, while many write (R15, R16).
# Each logical write is done exactly once when its writer gets a success, not at all when it is refused, and at most
# once when its outcome is answered as unknown.

CUTS = 500
LANDED = 100
WITHIN = 4 * PATIENCE  # seconds, of which it takes about twenty

Begin = Callable[[int], Awaitable[tuple[Writers, list[CuttingProxy]]]]


@pytest.fixture
async def watched(connect: Connect) -> Connection:
    """Make the tables, protected and audited; give a connection to look at them."""
    connection = await owner(connect, SCHEMA)
    for table, rule in TABLES.items():
        await connection.execute(TABLE.format(table))
        await protect(connection, table, rule="epoch" if rule == "epoch" else "strict")
        await connection.execute(AUDIT.format(table))
    return connection


@pytest.fixture
async def begin(watched: Connection, database: str, seed: int) -> AsyncIterator[Begin]:
    """A gateway between two proxies, and writers that know its address."""
    assert not watched.is_closed()  # the tables come first
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:

        async def start(cuts: int) -> tuple[Writers, list[CuttingProxy]]:
            # Its pool's first connection is made before anything is cut.
            inner, dsn = await stack.enter_async_context(
                cutting_proxy(database, lambda: chance.randrange(1_000, 16_000), seed)
            )
            inner.cutting = False
            url = await stack.enter_async_context(in_thread(dsn, log_level="error"))
            outer, url = await stack.enter_async_context(
                cutting_proxy(url, lambda: chance.randrange(200, 8_000), seed + 1)
            )
            inner.cutting = True
            proxies = [inner, outer]

            def enough() -> bool:
                """So many cuts, and writes between them; how many cuts a write meets depends on its bytes."""
                return writers.accepted > LANDED and sum(proxy.cuts for proxy in proxies) >= cuts

            writers = Writers(url, seed, enough)
            return writers, proxies

        yield start


@pytest.mark.long("storms")
async def test_when_connections_are_cut_at_random_each_write_is_done_as_often_as_was_reported(
    begin: Begin, watched: Connection, seed: int
) -> None:
    async with asyncio.timeout(WITHIN):
        writers, proxies = await begin(CUTS)
        await writers.write(with_sdk=8, by_hand=8)
    answer = f"FENCEPOST_STORM_SEED={seed} {dict(writers.answers)} {[proxy.cuts for proxy in proxies]}"
    assert_none(await judge(watched, writers), answer)
    assert min(proxy.cuts for proxy in proxies) > CUTS // 10, answer


@pytest.mark.long("storms")
async def test_the_oracle_sees_writes_that_are_done_twice(begin: Begin, watched: Connection, seed: int) -> None:
    """The control: with keys that are forgotten at once, the same cuts must come out wrong."""
    await watched.execute(
        "CREATE OR REPLACE FUNCTION fencepost.idem_record(p_caller text, p_key text, p_hash bytea, p_outcome json,"
        " p_rows text, p_owner text) RETURNS void LANGUAGE sql AS ''"
    )
    await watched.execute(
        "CREATE OR REPLACE FUNCTION fencepost.idem_record_each(p_callers text[], p_keys text[], p_hashes bytea[],"
        " p_outcomes json[], p_rows text[], p_owners text[]) RETURNS void LANGUAGE sql AS ''"
    )
    async with asyncio.timeout(WITHIN):
        writers, _ = await begin(CUTS // 2)
        writers.own_keys = True
        await writers.write(with_sdk=4, by_hand=0)
    wrong = await judge(watched, writers)
    answer = f"FENCEPOST_STORM_SEED={seed} {dict(writers.answers)}"
    assert any("done 2 times" in each for each in wrong), answer
    assert any("answered refused, and was done 1" in each for each in wrong), (
        f"the echo of a write of its own; {answer}"
    )
