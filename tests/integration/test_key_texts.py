"""Resources are named after their rows' keys: PostgreSQL keeps the key as it is, `protect` sees when it was changed."""

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome
from tests.support.use_cases import keyed, open_gateway, put, result_of

from fencepost.server.ops.protect import protect, unprotect

OTHER_TYPES = {
    "fewer digits": ("numeric", "1.25", "ALTER k TYPE numeric(10,1)", "1.25"),
    "a time of day": ("date", "'2024-01-01'", "ALTER k TYPE timestamp", "'2024-01-01'"),
    "no time of day": ("timestamp", "'2024-01-01 10:00'", "ALTER k TYPE date", "'2024-01-01 10:00'"),
    "a number": ("text", "'007'", "ALTER k TYPE int USING k::int", "'007'"),
    "a uuid": (
        "text", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "ALTER k TYPE uuid USING k::uuid",
        "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    "a bool": ("text", "'yes'", "ALTER k TYPE bool USING k::bool", "'yes'"),
    "padded": ("varchar(9)", "'a '", "ALTER k TYPE char(9)", "'a '"),
    "shorter": ("varchar(9)", "'ab  '", "ALTER k TYPE varchar(3)", "'ab  '"),
}  # fmt: skip


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute("SET search_path = public")
    return race


async def deleted(race: Race, kind: str, key: str, table: str = "t") -> None:
    await race.observer.execute(f"CREATE TABLE {table} (k {kind} PRIMARY KEY, n int)")
    await protect(race.observer, table)
    assert await race.direct(race.a, f"INSERT INTO {table} (k) VALUES ({key})", 49) == "ok"
    assert await race.direct(race.a, f"DELETE FROM {table}", 50) == "ok"


async def test_a_protected_key_keeps_its_type(race: Race) -> None:
    for number, (kind, key, retype, _) in enumerate(OTHER_TYPES.values()):
        table = f"t{number}"
        await deleted(race, kind, key, table)
        for change in (retype, 'ALTER k TYPE text COLLATE "C"'):
            assert await outcome(race.observer.execute(f"ALTER TABLE {table} {change}")) == "0A000", change
        assert await outcome(race.observer.execute(f"ALTER TABLE {table} DROP COLUMN k")) == "2BP01", kind
        assert await race.direct(race.a, f"INSERT INTO {table} (k) VALUES ({key})", 40) == "FP409", kind
        assert await race.direct(race.a, f"INSERT INTO {table} (k) VALUES ({key})", 51) == "ok", kind


async def fenced_up_to_the_highest_mark(race: Race, name: str, table: str) -> None:
    kind, key, retype, then = OTHER_TYPES[name]
    await deleted(race, kind, key, table)
    await unprotect(race.observer, table)
    await race.observer.execute(f"ALTER TABLE {table} {retype}")
    await protect(race.observer, table)
    for token, answer in ((40, "FP409"), (50, "FP409"), (51, "ok")):
        assert await race.direct(race.a, f"INSERT INTO {table} (k) VALUES ({then})", token) == answer, (name, token)


async def test_a_key_of_another_type_is_fenced_up_to_the_highest_mark(race: Race) -> None:
    for number, name in enumerate(OTHER_TYPES):
        await fenced_up_to_the_highest_mark(race, name, f"t{number}")


WIDER = {
    "integers": ("int", "7", "bigint"),
    "a longer text": ("varchar(9)", "'ab'", "varchar(20)"),
    "any text": ("varchar(9)", "'ab'", "text"),
}


async def keeps_its_marks(race: Race, name: str, table: str) -> None:
    kind, key, wider = WIDER[name]
    await deleted(race, kind, key, table)
    await unprotect(race.observer, table)
    await race.observer.execute(f"ALTER TABLE {table} ALTER k TYPE {wider}, ALTER k SET NOT NULL")
    await protect(race.observer, table)
    assert await race.direct(race.a, f"INSERT INTO {table} (k) VALUES ({key})", 50) == "FP409", name
    other = "8" if kind == "int" else "'cd'"
    assert await race.direct(race.a, f"INSERT INTO {table} (k) VALUES ({other})", 10) == "ok", "no floor has risen"


async def test_a_key_whose_values_have_the_same_texts_in_a_wider_type_keeps_its_marks(race: Race) -> None:
    for number, name in enumerate(WIDER):
        await keeps_its_marks(race, name, f"t{number}")


async def pair(race: Race) -> None:
    await race.observer.execute("CREATE TABLE t (a int, b int, n int, PRIMARY KEY (a, b))")
    await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 2)", 49) == "ok"
    assert await race.direct(race.a, "DELETE FROM t", 50) == "ok"


TURNED = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b, a)"


async def test_a_key_in_another_order_is_fenced_up_to_the_highest_mark(race: Race) -> None:
    await pair(race)
    await race.observer.execute(TURNED)
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 2)", 40) == "FP409", "as it was named"
    async with open_gateway(race.dsn) as gateway:
        for key in (("1", "2"), ("2", "1")):
            assert result_of(await put(gateway, keyed(key, 40, "t"))) == "FP005"
    await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 2)", 40) == "FP409"
    assert await race.direct(race.a, "INSERT INTO t VALUES (2, 1)", 50) == "FP409"
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 2)", 51) == "ok"


async def test_also_if_it_was_turned_while_nothing_protected_it(race: Race) -> None:
    await pair(race)
    await unprotect(race.observer, "t")
    await race.observer.execute(TURNED)
    await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 2)", 40) == "FP409"
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 2)", 51) == "ok"


async def test_another_column_of_the_key_s_name_is_another_key(race: Race) -> None:
    await deleted(race, "int", "7")
    await unprotect(race.observer, "t")
    await race.observer.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t RENAME k TO was; ALTER TABLE t RENAME n TO k;"
        "ALTER TABLE t ALTER was DROP NOT NULL, ADD PRIMARY KEY (k)"
    )
    await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t (k) VALUES (8)", 40) == "FP409"


async def test_a_renamed_key_keeps_its_marks(race: Race) -> None:
    await deleted(race, "int", "7")
    await race.observer.execute("ALTER TABLE t RENAME k TO id")
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await put(gateway, keyed("7", 40, "t"))) == "FP005"
    await protect(race.observer, "t")
    await unprotect(race.observer, "t")
    await race.observer.execute("ALTER TABLE t RENAME id TO no")
    await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t (no) VALUES (7)", 50) == "FP409"
    assert await race.direct(race.a, "INSERT INTO t (no) VALUES (8)", 10) == "ok", "no floor has risen"


async def test_rows_that_were_deleted_and_made_again_meanwhile_have_the_highest_mark(race: Race) -> None:
    """Their marks were under names of the old type, so it is not known which was whose."""
    await deleted(race, "date", "'2024-01-01'")
    assert await race.direct(race.a, "INSERT INTO t VALUES ('2024-01-02', 1), ('2024-01-03', 1)", 60) == "ok"
    await unprotect(race.observer, "t")
    await race.observer.execute("DELETE FROM t WHERE k = '2024-01-02'; INSERT INTO t VALUES ('2024-01-02')")
    await race.observer.execute("ALTER TABLE t ALTER k TYPE timestamp")
    await protect(race.observer, "t")
    assert await race.direct(race.a, "UPDATE t SET n = 2 WHERE k = '2024-01-02'", 55) == "FP409"
    assert await race.direct(race.a, "UPDATE t SET n = 2 WHERE k = '2024-01-02'", 61) == "ok"


async def test_rows_that_have_kept_their_marks_keep_them(race: Race) -> None:
    await deleted(race, "date", "'2024-01-01'")
    assert await race.direct(race.a, "INSERT INTO t VALUES ('2024-01-02', 1)", 10) == "ok"
    assert await race.direct(race.a, "INSERT INTO t VALUES ('2024-01-03', 1)", 90) == "ok"
    await unprotect(race.observer, "t")
    await race.observer.execute("ALTER TABLE t ALTER k TYPE timestamp")
    await protect(race.observer, "t")
    assert await race.direct(race.a, "UPDATE t SET n = 2 WHERE k = '2024-01-02'", 11) == "ok"
    assert await race.direct(race.a, "INSERT INTO t VALUES ('2024-01-01')", 89) == "FP409"


async def test_in_one_transaction_a_key_gets_another_type(race: Race) -> None:
    await deleted(race, "date", "'2024-01-01'")
    async with race.observer.transaction():
        await unprotect(race.observer, "t")
        await race.observer.execute("ALTER TABLE public.t ALTER k TYPE timestamp")
        await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t VALUES ('2024-01-01')", 40) == "FP409"


async def test_a_row_made_again_while_unprotected_rises_where_its_keys_text_changed(race: Race) -> None:
    """Seen by the storm of DDL: the mark of the deleted key is not found under the new text, and the row has none."""
    for number, (kind, key, retype, _) in enumerate(OTHER_TYPES.values()):
        table = f"t{number}"
        await deleted(race, kind, key, table)
        await unprotect(race.observer, table)
        await race.observer.execute(f"INSERT INTO {table} (k) VALUES ({key}); ALTER TABLE {table} {retype}")
        await protect(race.observer, table)
        assert await race.direct(race.a, f"UPDATE {table} SET n = 1", 40) == "FP409", kind
        assert await race.direct(race.a, f"UPDATE {table} SET n = 1", 51) == "ok", kind
