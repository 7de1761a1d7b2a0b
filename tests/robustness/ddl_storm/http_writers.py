"""Writers that go through the gateways: all verbs, claims, leases with claims, and paused holders that come back."""

import asyncio
import json
from typing import Any, Final
from urllib.parse import quote

import httpx
from tests.robustness.ddl_storm.emitter import Emitter
from tests.robustness.ddl_storm.world import KEYS, PREFIX, Operation, Outcome, Shape, World, group_of

from fencepost.testing.servers.processes import PATIENCE

VERBS: Final = ("PATCH", "PATCH", "PUT", "PUT", "POST", "POST", "DELETE", "DELETE", "DELETE", "claim", "claim", "lease")
RARE: Final = ("PATCH many", "DELETE many", "PATCH rows")
NOTHING_WAS_DONE: Final = ("FP010", "FP015", "55P03", "57014", "FP024")
"""Codes of 503s that mean that nothing was done for sure."""


class HttpWriter:
    """One of them, with a lease of its own to draw tokens from."""

    def __init__(self, world: World, emitter: Emitter, urls: list[str], number: int) -> None:
        self._world, self._emitter, self._urls, self._number = world, emitter, urls, number
        self._dice = world.dice("http", number)
        self._minted: list[int] = []
        self._leases = 0

    async def write(self) -> None:
        """Write until the storm is over."""
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
            while self._world.running:
                await self._world.turn()
                shape = self._dice.choice(self._world.shapes)
                verb = self._dice.choice(RARE if self._dice.random() < 0.06 else VERBS)
                number = self._dice.randrange(KEYS)
                if verb == "lease" or (shape.source == "builtin" and not self._minted):
                    await self._acquire(client, shape, number if verb == "lease" else None)
                else:
                    await self._shoot(client, verb, shape, number)

    def _token(self, shape: Shape) -> int | None:
        """Mostly the newest; often that of a holder who slept; sometimes none."""
        chance = self._dice.random()
        if chance < 0.02:
            return None
        slept = self._world.slept[shape.source]
        if chance < 0.40 and slept:
            return self._dice.choice(slept)
        if shape.source == "external" and self._dice.random() < 0.8:
            return self._world.fresh()
        return self._minted.pop() if self._minted else self._world.fresh()

    async def _shoot(self, client: httpx.AsyncClient, verb: str, shape: Shape, number: int) -> None:
        world, token, version, epoch = self._world, self._token(shape), shape.version, self._world.epoch
        numbers = frozenset(range(KEYS)) if verb in RARE else shape.meant_by(number)
        if verb.endswith("many"):
            numbers = frozenset(n for n in numbers if group_of(n) == group_of(number))
        operation = world.begin(verb, token, shape, numbers)
        full = len(numbers) > 1 or self._dice.random() < 0.7
        request = self._request(client, operation, shape, number, full=full)
        try:
            answer = await client.send(request)
        except httpx.TransportError as error:
            world.finish(operation, "maybe", type(error).__name__, None)
            return
        self._note(operation, answer, answered=full and verb != "claim")
        if verb == "claim" and answer.is_success and token is not None:
            known = None if shape.version != version or version % 2 else shape.lk(number)
            await self._claimed(answer.json(), token, known, epoch)

    def _request(
        self, client: httpx.AsyncClient, operation: Operation, shape: Shape, number: int, *, full: bool
    ) -> httpx.Request:
        url = self._dice.choice(self._urls)
        headers = {}
        if operation.what != "claim":
            headers["Prefer"] = "return=representation" if full else "return=minimal"
        if operation.token is not None:
            headers["X-Fence-Token"] = str(operation.token)
        seldom = {"DELETE": 0.7, "DELETE many": 1.0, "claim": 0.0}
        if keyed := self._dice.random() < seldom.get(operation.what, 0.1):
            headers["Idempotency-Key"] = operation.id
        operation.named = keyed or operation.what != "DELETE"
        data = f"{url}/v1/data/{shape.name}"
        texts = shape.texts(number)
        path = f"{data}/{','.join(quote(texts[column], safe='') for column in shape.key())}"
        payload: dict[str, object] = {"op": operation.id, "tok": operation.token}
        row = payload | {"lk": shape.lk(number), shape.group: group_of(number)}
        some = {shape.group: f"eq.{group_of(number)}"}
        rows = [shape.texts(n) | payload for n in self._dice.sample(range(KEYS), 2)]
        claimed = {"resource": _resource(shape, number)}
        method, url, params, body = {
            "PATCH": ("PATCH", path, {}, payload),
            "PUT": ("PUT", path, {}, row),
            "POST": ("POST", data, {}, row | texts),
            "DELETE": ("DELETE", path, {}, None),
            "PATCH many": ("PATCH", data, some, payload),
            "DELETE many": ("DELETE", data, some, None),
            "PATCH rows": ("PATCH", data, {}, rows),
            "claim": ("POST", f"{url}/v1/claims", {}, claimed),
        }[operation.what]
        return client.build_request(method, url, params=params, headers=headers, json=body)

    def _note(self, operation: Operation, answer: httpx.Response, *, answered: bool) -> None:
        outcome, output = read(answer)
        if answer.status_code == 500:
            self._world.complaints.append(f"{operation}: 500 {answer.text[:500]}")
        rows = None
        if outcome == "done" and answered:
            found = answer.json()
            rows = frozenset(row["lk"] for row in (found if isinstance(found, list) else [found]))
        self._world.finish(operation, outcome, output, rows)

    async def _claimed(self, answered: dict[str, Any], token: int, known: str | None, epoch: int) -> None:
        """Write into the log that a claim was acknowledged: from there on no older holder may write."""
        resource, row = answered["resource"], answered.get("row")
        if resource.startswith(f"{PREFIX}/"):
            await self._emitter.emit("claimed", {"scope": resource, "token": token}, epoch)
        elif (lk := row["lk"] if row else known) is not None:
            await self._emitter.emit("claimed", {"lk": lk, "token": token}, epoch)

    async def _acquire(self, client: httpx.AsyncClient, shape: Shape, number: int | None) -> None:
        world, version, epoch = self._world, shape.version, self._world.epoch
        self._leases += 1
        body: dict[str, object] = {
            "lock": f"w{self._number}-{self._leases}", "owner": f"w{self._number}", "ttl_ms": 60000, "tokens": 12,
        }  # fmt: skip
        if number is not None:
            body["claim"] = [_resource(shape, number)]
        operation = world.begin("lease", None, shape, frozenset())
        try:
            answer = await client.post(f"{self._dice.choice(self._urls)}/v1/leases", json=body)
        except httpx.TransportError as error:
            world.finish(operation, "maybe", type(error).__name__)
            return
        outcome, output = read(answer)
        world.finish(operation, "maybe" if outcome == "done" else outcome, output)
        if answer.status_code == 500:
            world.complaints.append(f"{operation}: 500 {answer.text[:500]}")
        if not answer.is_success or epoch != world.epoch:
            return
        lease = answer.json()
        # The old lease is left to itself, with what remains of its tokens: these are the paused holders'.
        self._minted = sorted((int(token) for token in lease["tokens"]), reverse=True)
        for token in self._minted:
            world.met(token)
        for claim in lease.get("claims", []):
            known = None if shape.version != version or version % 2 or number is None else shape.lk(number)
            await self._claimed(claim, int(claim["mark"]), known, epoch)


def _resource(shape: Shape, number: int) -> str:
    if shape.scoped:
        return f"{PREFIX}/{group_of(number)}"
    texts = shape.texts(number)
    return f"{shape.name}/{','.join(quote(texts[column], safe='') for column in shape.key())}"


def read(answer: httpx.Response) -> tuple[Outcome, str]:
    """Read an answer: whether it reports that something was done, and its status and code."""
    if answer.is_success:
        return "done", str(answer.status_code)
    try:
        code = json.loads(answer.content).get("code")
    except ValueError:
        code = "?"
    output = f"{answer.status_code} {code}"
    if answer.status_code < 500 or code in NOTHING_WAS_DONE:
        return "refused", output
    return "maybe", output


async def http_writers(world: World, emitter: Emitter, urls: list[str], count: int) -> None:
    """Run so many of them until the storm is over."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(HttpWriter(world, emitter, urls, number).write())
