"""Claims as Supabase's and PostgREST's JWTs have them, and the policy that docs/roles.md gives for them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from tests.support.asking import SECRET, bearer, code, token
from tests.support.gateways import in_process

from fencepost.server.ops.protect import protect

PAGE = Path(__file__).parents[2] / "docs" / "roles.md"
SQL = re.compile(r"<!-- run by tests/http/test_supabase_claims.py -->\n```sql\n(.*?)```", re.DOTALL)
ROLES = """
SELECT pg_advisory_xact_lock(3308);
DO $$ BEGIN
  IF to_regrole('authenticated') IS NULL THEN
    CREATE ROLE anon; CREATE ROLE authenticated; CREATE ROLE service_role BYPASSRLS;
  END IF;
END $$"""
ANN, BOB = str(uuid4()), str(uuid4())


def of(user: str, **claims: object) -> dict[str, str]:
    """Give the headers of a user's request."""
    supabase = {"iss": "https://project.example/auth/v1", "sub": user, "role": "authenticated", "aud": "authenticated"}
    more = {"email": "ann@example.com", "is_anonymous": False, "app_metadata": {"provider": "email"}}
    return bearer(token(**{**supabase, **more, **claims})) | {"X-Fence-Token": "40"}


@pytest.fixture
async def notes(database: str) -> AsyncIterator[str]:
    found = SQL.search(PAGE.read_text("utf-8"))
    assert found is not None
    connection = await asyncpg.connect(database)
    await connection.execute(ROLES)
    await connection.execute(found[1])
    await protect(connection, "notes")
    yield database
    await connection.close()


async def shown(http: httpx.AsyncClient, headers: dict[str, str]) -> list[object]:
    answer = await http.get("/v1/data/notes?select=id,user_id", headers=headers)
    assert answer.status_code == 200, answer.text
    return list(answer.json())


async def test_a_policy_with_auth_uid_gives_each_user_its_own_rows(notes: str) -> None:
    settings: dict[str, Any] = {"jwt_secret": SECRET, "roles": "anon,authenticated", "anon_role": "anon"}
    async with in_process(notes, jwt_aud="authenticated", **settings) as http:
        made = await http.post("/v1/data/notes", json={"id": 1, "body": "hers"}, headers=of(ANN))
        assert made.status_code == 201, made.text
        assert [row["user_id"] for row in made.json()] == [ANN]
        assert await shown(http, of(ANN)) == [{"id": 1, "user_id": ANN}]
        assert (await shown(http, of(BOB)), await shown(http, {})) == ([], [])
        for method in ("PATCH", "DELETE"):
            body = {"body": "his"} if method == "PATCH" else None
            later = of(BOB) | {"X-Fence-Token": "41"}
            theirs = await http.request(method, "/v1/data/notes/1", headers=later, json=body)
            assert code(theirs) == (404, "FP006"), theirs.text
        forged = await http.post("/v1/data/notes", json={"id": 2, "user_id": ANN}, headers=of(BOB))
        assert code(forged) == (403, "42501")
        nobodys = await http.post("/v1/data/notes", json={"id": 3}, headers={"X-Fence-Token": "41"})
        assert (code(nobodys), nobodys.headers["WWW-Authenticate"]) == ((401, "42501"), "Bearer"), "as PostgREST says"
        mine = await http.patch("/v1/data/notes/1", json={"body": "mine"}, headers=of(ANN) | {"X-Fence-Token": "41"})
        assert mine.json()["body"] == "mine"
        assert code(await http.get("/v1/data/notes", headers=of(ANN, role="service_role"))) == (403, "FP043")
        assert code(await http.get("/v1/data/notes", headers=of(ANN, aud=None))) == (401, "FP037")
    async with in_process(notes, **settings) as http:
        assert code(await http.get("/v1/data/notes", headers=of(ANN))) == (401, "FP037")
