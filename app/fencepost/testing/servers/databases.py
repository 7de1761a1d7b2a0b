"""Databases on one PostgreSQL: copied from a migrated template, which costs much less than migrating a new one.

CREATE DATABASE copies 300 files, so copies are cheapest where the server keeps its data in memory.
"""

import base64
import hashlib
import hmac
import itertools
from urllib.parse import urlsplit

import asyncpg
import psycopg

ADOPT = "UPDATE fencepost.generations g SET database_oid = h.database_oid FROM fencepost.location() AS h"
"""Take a copy for an original. Gateways refuse copies (R19) until their generation is raised."""


def quick_logins(url: str) -> None:
    """Let the superuser's password be hashed once at each login, not 4096 times: half of what a connection costs."""
    password, salt = urlsplit(url).password or "", b"sixteen bytes of"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    of_server = hmac.digest(salted, b"Server Key", "sha256")
    salt_64, stored_64, of_server_64 = (base64.b64encode(each).decode() for each in (salt, stored, of_server))
    with psycopg.connect(url, autocommit=True) as connection:
        hashed = f"SCRAM-SHA-256$1:{salt_64}${stored_64}:{of_server_64}"
        connection.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{hashed}'".encode())


def in_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    return f"{url.rpartition('/')[0]}/{name}"


async def run_on(url: str, statement: str) -> None:
    """Run one statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


class Databases:
    """Makes databases on one server, and drops them, over one connection that stays open.

    It blocks the event loop for the few milliseconds: no test runs meanwhile.
    """

    def __init__(self, url: str, template: str) -> None:
        self._url, self._template = url, template
        self._numbers = itertools.count(1)
        self._connection = psycopg.connect(url, autocommit=True)

    def make(self) -> str:
        """Make a copy of the template; returns its URL."""
        name = f"test_{next(self._numbers)}"
        self._connection.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY".encode())
        url = in_database(self._url, name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(ADOPT.encode())
        return url

    def drop(self, url: str) -> None:
        """Drop it, and end all connections to it."""
        self._connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)".encode())

    def close(self) -> None:
        """Close the connection. What was made and not dropped stays."""
        self._connection.close()


async def clone(server: str, name: str, template: str) -> None:
    """Make the database `name` on a server, with all that the migrated database `template` has."""
    await run_on(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    await run_on(in_database(server, name), ADOPT)
