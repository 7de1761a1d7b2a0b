"""API keys: `fp_<id>_<secret>`, of which the database has the id and the hash of the secret.

A key that was verified is kept by the Authenticator (authenticator.py). What changes in a key is announced by the
database, and everything kept is forgotten then. An announcement can be lost with the connection that listens:

- while the gateway knows that it does not hear the announcements, it forgets every two seconds (`unheard_for`);
- when it does not know (a connection that has ended without a sign), a key is kept for a minute at most.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from hmac import compare_digest
from typing import Final

import orjson

from fencepost.server.fence.caller import EVERY_ACCESS, Access, Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL, VERIFICATION_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres import api_keys
from fencepost.server.postgres.api_keys import PREFIX, StoredKey, hash_secret
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.errors import StorageError
from fencepost.server.times import TIMES, Times

_FORM: Final = re.compile(rf"{PREFIX}([0-9a-z]{{1,32}})_([0-9a-zA-Z]{{1,128}})", re.ASCII)
_NO_HASH: Final = bytes(32)
"""The hash of no secret: an unknown id costs as much as a wrong secret."""
_RETRY_AFTER: Final = 1


class ApiKeys:
    """The Verifier of API keys. `database` may be called whenever a request is there."""

    def __init__(self, database: Callable[[], Database], times: Times = TIMES) -> None:
        self._database = database
        self._streams_end_after = times.identity.streams_end_after
        self._lookups = _Lookups(database)
        self._used: set[str] = set()

    def takes(self, credential: str) -> bool:
        return credential.startswith(PREFIX)

    async def verify(self, credential: str) -> Caller | Problem:
        form = _FORM.fullmatch(credential)
        if form is None:
            return Problem(INVALID_CREDENTIAL, "Authorization: an API key is fp_ID_SECRET, as it was printed.")
        key_id, secret = form[1], form[2]
        asked = asyncio.get_running_loop().time()
        try:
            key = await self._lookups.find(key_id)
        except StorageError as error:
            return Problem(VERIFICATION_UNAVAILABLE, f"API keys cannot be looked up: {error}", retry_after=_RETRY_AFTER)
        found = _judge(key_id, secret, key, asked, self._streams_end_after)
        if isinstance(found, Caller):
            self._used.add(key_id)
        return found

    async def note_uses(self) -> None:
        """Note in the database which keys were used since the last time. Raises StorageError."""
        used, self._used = sorted(self._used), set()
        if used:
            await run_write(
                self._database().for_writing, lambda connection: api_keys.note_uses(connection, used), repeatable=True
            )


def _judge(key_id: str, secret: str, key: StoredKey | None, asked: float, streams_end_after: float) -> Caller | Problem:
    """Compare the secret, in a time that does not depend on where it differs. `asked`: when the key was looked up, by
    the loop's clock. How a key has ended is for its holder only.
    """
    presented = hash_secret(secret)
    is_current = compare_digest(presented, key.secret_hash if key else _NO_HASH)
    is_old = compare_digest(presented, (key.old_hash if key else None) or _NO_HASH)
    if key is None or not (is_current or is_old):
        return Problem(INVALID_CREDENTIAL, "Authorization: the gateway has no such API key.")
    if key.revoked:
        return Problem(INVALID_CREDENTIAL, f"Authorization: the API key {key_id} was revoked.", for_good=True)
    ends_in = [left for left in (key.ends_in, None if is_current else key.old_ends_in) if left is not None]
    if ends_in and min(ends_in) <= 0:
        how = (
            "has expired"
            if key.ends_in is not None and key.ends_in <= 0
            else "has a new secret, and this one has ended"
        )
        return Problem(INVALID_CREDENTIAL, f"Authorization: the API key {key_id} {how}.")
    # A key without an end has one all the same, again and again: streams end then, and are opened anew with a key that
    # may have been revoked meanwhile.
    return Caller(
        f"key:{key_id}",
        key.role,
        "" if key.role is None else orjson.dumps({"role": key.role, "sub": f"key:{key_id}"}).decode(),
        access=_access(key.access),
        locks=key.locks,
        ends=asked + min([*ends_in, streams_end_after]),
    )


def _access(stored: frozenset[str]) -> frozenset[Access]:
    return EVERY_ACCESS if stored >= EVERY_ACCESS else frozenset(each for each in EVERY_ACCESS if each in stored)


class _Lookups:
    """Asks for keys: one question at a time, for all that are wanted then. Requests with made-up keys, however many
    come, have one connection; and renewals of leases get in while other requests have all of them.
    """

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database
        self._wanted: dict[str, asyncio.Future[StoredKey | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> StoredKey | None:
        """Find a key, as it was after this call. Raises StorageError."""
        answer = self._wanted.get(key_id)
        if answer is None:
            answer = self._wanted[key_id] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(answer)  # a client that hangs up must not take it from others

    async def _ask(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            try:
                found = await self._look_up(list(wanted))
            except Exception as error:  # noqa: BLE001 - whoever asked raises it
                for answer in wanted.values():
                    answer.set_exception(error)
                    answer.exception()  # all who asked may have gone
                continue
            except BaseException:
                for answer in wanted.values():
                    answer.cancel()
                raise
            for key_id, answer in wanted.items():
                answer.set_result(found.get(key_id))

    async def _look_up(self, ids: Sequence[str]) -> Mapping[str, StoredKey]:
        async with self._database().spare() as connection:
            return await api_keys.look_up(connection, ids)


class Announcements:
    """Whether the gateway hears that keys have changed, and what follows: `forget` what was verified."""

    def __init__(self, forget: Callable[[], None], times: Times = TIMES) -> None:
        self._forget = forget
        self._times, self._clock = times.identity, times.clock
        self._heard = False

    def on_change(self) -> None:
        self._forget()

    def on_listening(self) -> None:
        """From now on changes are announced; some may have been missed."""
        self._heard = True
        self._forget()

    def on_silence(self) -> None:
        """The connection that listens has ended."""
        self._heard = False
        self._forget()

    async def forget_while_unheard(self) -> None:
        """Forget now and then while changes are not announced, for ever."""
        while True:
            await self._clock.sleep(self._times.unheard_for)
            if not self._heard:
                self._forget()
