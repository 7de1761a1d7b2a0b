"""Protected tables of each kind: by rows, with a scope, of the built-in source, partitioned."""

import pytest
from tests.support.interleave import Connect, Connection

from fencepost.storage.protecting.protect import protect

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE moods (at timestamptz, m mood, n numeric, PRIMARY KEY (at, m, n));
CREATE TABLE scoped (id int PRIMARY KEY, account_id int NOT NULL);
CREATE TABLE parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (1) TO (10) PARTITION BY RANGE (a);
CREATE TABLE part_1a PARTITION OF part_1 FOR VALUES FROM (1) TO (5);
CREATE TABLE scoped_parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE scoped_part_1 PARTITION OF scoped_parts FOR VALUES FROM (1) TO (10);
"""


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute(TABLES)
    await protect(connection, "t")
    await protect(connection, "moods", rule="epoch")
    await protect(connection, "parts", source="builtin")
    await protect(connection, "scoped", scope="account/{account_id}")
    await protect(connection, "scoped_parts", scope="a/{a}", rule="epoch")
    return connection
