"""docs/recipes/payments-without-locks.md runs as it stands; the provider is a stand-in that loses answers."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx
import psycopg
import pytest
from tests.support.recipes import DOCS, recipe, recipes, run, run_recipe, steps

from fencepost.server.ops.embedded import PostgresServer

PAGE = DOCS / "recipes" / "payments-without-locks.md"
PAYMENT = ("pay-7", "order-123", Decimal("42.50"))


@dataclass
class Provider:
    """Charges once for each key. `loses`: how many answers get lost, before or after the charge."""

    loses: dict[str, int] = field(default_factory=dict)
    charges: dict[str, str] = field(default_factory=dict)
    asked: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        self._may_lose("before")
        # Without a key each request is a payment of its own.
        key = request.headers.get("Idempotency-Key", f"unnamed {self.asked}")
        charge = self.charges.setdefault(key, f"ch_{len(self.charges) + 1}")
        self._may_lose("after")
        return httpx.Response(200, json={"id": charge})

    def _may_lose(self, when: str) -> None:
        if self.loses.get(when, 0) > 0:
            self.loses[when] -= 1
            raise httpx.ReadError("the connection broke")

    def client(self) -> httpx.Client:
        return httpx.Client(base_url="http://provider.test", transport=httpx.MockTransport(self))


@pytest.fixture
def shop(database: str) -> Iterator["psycopg.Connection[Any]"]:
    """Give a connection to a database with the page's table."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(recipe("table", PAGE).encode())
        yield connection


@pytest.fixture
def pay() -> Any:
    return run_recipe("pay", PAGE)["pay"]


def test_every_block_of_the_page_is_run() -> None:
    assert set(recipes(PAGE)) == {"table", "insert", "pay", "take"}
    assert len(re.findall(r"^```\w+$", PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(PAGE))


@pytest.mark.usefixtures("shop")
async def test_the_console_of_the_page_is_true(postgres: PostgresServer, database: str) -> None:
    for command, expected in steps(recipe("insert", PAGE)):
        done = await asyncio.to_thread(run, command, postgres, database)
        assert done.stdout.rstrip("\n") == expected, command


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_payment_whose_answer_was_lost_is_charged_once_when_repeated(
    shop: "psycopg.Connection[Any]", pay: Any, lost: str
) -> None:
    provider = Provider(loses={lost: 2})
    with provider.client() as client:
        for _ in range(2):
            with pytest.raises(httpx.ReadError):
                pay(shop, client, *PAYMENT)
        assert pay(shop, client, *PAYMENT) == "ch_1"
        assert provider.asked == 3
        assert pay(shop, client, *PAYMENT) == "ch_1"
    assert (provider.asked, len(provider.charges)) == (3, 1), "what is known is not asked again"


async def test_of_twenty_at_once_with_as_many_keys_one_pays_the_order(
    shop: "psycopg.Connection[Any]", database: str, pay: Any
) -> None:
    provider = Provider()

    def press(number: int) -> str | None:
        with psycopg.connect(database, autocommit=True) as connection, provider.client() as client:
            try:
                charge: str = pay(connection, client, f"pay-{number}", *PAYMENT[1:])
            except ValueError:
                return None
            return charge

    answer = await asyncio.gather(*(asyncio.to_thread(press, number) for number in range(20)))
    assert [charge for charge in answer if charge] == ["ch_1"]
    found = shop.execute("SELECT count(*), max(charge) FROM payments").fetchone()
    assert found == (1, "ch_1")


def test_workers_take_one_each_and_a_dead_workers_is_free_again(shop: "psycopg.Connection[Any]", database: str) -> None:
    shop.execute("INSERT INTO payments VALUES ('a', 'order-1', 1), ('b', 'order-2', 2)")
    take = recipe("take", PAGE).encode()
    with ExitStack() as stack:
        one, two, three = (stack.enter_context(closing(psycopg.connect(database))) for _ in range(3))
        assert [[row[0] for row in worker.execute(take)] for worker in (one, two, three)] == [["a"], ["b"], []]
        three.rollback()
        for dead, key in ((one, "a"), (two, "b")):
            shop.execute("SELECT pg_terminate_backend(%s, 5000)", (dead.info.backend_pid,))  # returns when it has ended
            assert [row[0] for row in three.execute(take)] == [key], key
            three.execute("UPDATE payments SET charge = 'ch' WHERE key = %s", (key,))
