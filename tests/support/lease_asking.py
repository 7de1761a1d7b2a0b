"""Asking for leases over HTTP: each test takes locks and secrets of its own, and no secret may come up in a log."""

import hashlib
import itertools
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from tests.scenarios.shop import Shop, running_shop
from tests.support.asking import Api
from tests.support.ready_made import ReadyMade

TIME = re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
TOKEN = re.compile(r"[1-9][0-9]*")
SECRETS: list[str] = []
"""All that were chosen or given."""

_numbers = itertools.count(1)


class Said(logging.Handler):
    """Everything that was logged, as text and with its arguments."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"{record.msg!r} {record.args!r} {record.exc_info!r}\n"


@contextmanager
def leasing_shop(databases: ReadyMade) -> Iterator[Shop]:
    """Serve a shop that logs all it can, with small caps; afterwards no secret, nor its hash, is in what it logged."""
    limits = {"max_ttl": 100.0, "max_wait": 50.0, "max_tokens": 7, "max_waiters": 3}
    output = Said()
    with running_shop(databases, log_level="debug", access_log=True, **limits) as shop:
        logging.getLogger().addHandler(output)
        try:
            yield shop
        finally:
            logging.getLogger().removeHandler(output)
    for secret in SECRETS:
        assert secret not in output.text, "a secret in the logs"
        assert digest(secret) not in output.text, "a secret's hash in the logs"


def new_secret() -> str:
    SECRETS.append(secrets.token_urlsafe(16))
    return SECRETS[-1]


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def new_name() -> str:
    return f"orders/order-{next(_numbers)}"


async def acquire(api: Api, *locks: str, secret: str | None = None, **body: object) -> httpx.Response:
    names: dict[str, object] = {"lock": locks[0]} if len(locks) == 1 else {"locks": list(locks)}
    headers = {} if secret is None else {"X-Lease-Secret": secret}
    return await api.ask("POST", "leases", {**names, **body}, headers=headers)


async def lease(api: Api, *locks: str, **asked: Any) -> Any:
    answer = await acquire(api, *(locks or (new_name(),)), **asked)
    assert answer.status_code == 201, answer.text
    given = answer.json()
    SECRETS.append(given["secret"])
    return given


def of(given: Any) -> dict[str, str]:
    return {"X-Lease-Secret": given["secret"]}


async def expire(shop: Shop, given: Any) -> None:
    await shop.sql(
        "UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s' WHERE lease_id = $1",
        int(given["lease_id"]),
    )
