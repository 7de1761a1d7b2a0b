"""As which roles the gateway acts: never one that is more than a caller."""

from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest
from tests.integration.roles.conftest import GRANTED
from tests.integration.test_lease_claims import ask, asking
from tests.support.asking import LOGIN, NOTHING, WEB, Acting, acting
from tests.support.interleave import Connect
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Unmade
from tests.support.racing import open_race
from tests.support.use_cases import keyed, open_gateway, patch

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.postgres import database as allowed_roles
from fencepost.server.postgres.database import NO_LIST, AllowedRoles
from fencepost.server.times import TIMES, Times

MADE = f"""
{GRANTED};
CREATE ROLE t_super SUPERUSER; CREATE ROLE t_bypass BYPASSRLS; CREATE ROLE t_plain; CREATE ROLE t_keeper;
CREATE ROLE t_login_member; CREATE ROLE t_keeper_member; CREATE ROLE "t ""odd"" näme";
GRANT t_super, t_bypass, t_keeper, t_keeper_member, "t ""odd"" näme", pg_read_all_data TO {LOGIN};
GRANT SELECT, UPDATE ON orders TO "t ""odd"" näme";
GRANT USAGE ON SCHEMA public TO "t ""odd"" näme"
"""
MADE_ROLES = ("t_super", "t_bypass", "t_plain", "t_keeper", "t_login_member", "t_keeper_member", 't "odd" näme')


@pytest.fixture
async def stage(connect: Connect, unmade: Unmade) -> AsyncIterator[Acting]:
    """Give a gateway, and roles of all kinds."""
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    try:
        async with acting(race.observer, race.dsn, MADE) as stage:
            keeper = await race.observer.fetchval(
                "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'fencepost'"
            )
            await race.observer.execute("ALTER SCHEMA fencepost OWNER TO t_keeper; GRANT t_keeper TO t_keeper_member")
            yield stage
            await race.observer.execute(f"ALTER SCHEMA fencepost OWNER TO {keeper}")
    finally:
        for role in MADE_ROLES:
            quoted = role.replace('"', '""')
            await race.observer.execute(f'DROP OWNED BY "{quoted}"; DROP ROLE "{quoted}"')


async def refused(gateway: Gateway, token: int = 40) -> str:
    answer = await patch(gateway, keyed("k", token, n=1))
    if not isinstance(answer, Problem):
        return ""
    assert answer.name == "FP043", answer
    return answer.detail


REFUSED = (
    ("t_super", "superuser"),
    ("t_bypass", "BYPASSRLS"),
    ("pg_read_all_data", "PostgreSQL's own"),
    (LOGIN, "may act as the login"),
    ("t_login_member", "may act as the login"),
    ("t_keeper", "owner of the schema"),
    ("t_keeper_member", "owner of the schema"),
    ("t_plain", "GRANT t_plain TO fp_login"),
    ("nobody", "no such role"),
    ("none", "no such role"),
    ("", "no such role"),
    (WEB.upper(), "no such role"),
    (f"{WEB}; RESET ROLE", "no such role"),
    (f'"{WEB}"', "no such role"),
)


@pytest.mark.versions
async def test_a_role_that_is_more_than_a_caller_or_is_none_is_refused_by_name(stage: Acting) -> None:
    await stage.owner.execute(f"GRANT {LOGIN} TO t_login_member")
    for role, reason in REFUSED:
        assert reason in await refused(stage.of(role)), role
        for listed in ([role], [WEB]):
            gateway = replace(stage.of(role), roles=AllowedRoles(listed))
            assert (reason if listed == [role] else "lists") in await refused(gateway), role
        await stage.assert_own_name()
    assert await refused(stage.of('t "odd" näme')) == "", "any name will do"


@pytest.mark.versions
async def test_without_set_a_membership_is_not_enough(stage: Acting) -> None:
    grant = f"GRANT t_plain TO {LOGIN} WITH SET FALSE"
    if stage.owner.get_server_version() < (16,):
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await stage.owner.execute(grant)
        return
    await stage.owner.execute(grant)
    assert "may not act as it" in await refused(stage.of("t_plain"))


async def test_a_role_that_is_revoked_is_refused_by_postgresql_before_the_answer_is_old(stage: Acting) -> None:
    assert await refused(stage.of(WEB)) == ""
    await stage.assert_own_name()  # a busy lane has its role for as long as the answer is believed
    await stage.owner.execute(f"REVOKE {WEB} FROM {LOGIN}")
    assert f'permission denied to set role "{WEB}"' in await refused(stage.of(WEB), 41), "asked a moment ago"
    assert "may not act as it" in await refused(stage.of(WEB), 41)
    await stage.owner.execute(f"GRANT {WEB} TO {LOGIN}")
    stage.gateway.roles.forget()  # as a reload of the catalog does
    assert await refused(stage.of(WEB), 42) == ""
    await stage.assert_own_name()


async def test_an_answer_is_asked_for_anew_after_a_while(stage: Acting) -> None:
    assert await refused(stage.of("t_plain"))
    await stage.owner.execute(f"GRANT t_plain TO {LOGIN}")
    assert await refused(stage.of("t_plain")), "known"
    clock = ManualClock()
    roles = AllowedRoles(times=Times(clock=clock))
    assert await roles.why_not(stage.gateway.database, "t_plain") is None
    await stage.owner.execute(f"REVOKE t_plain FROM {LOGIN}")
    await clock.advance(TIMES.connections.roles_known_for - 1)
    assert await roles.why_not(stage.gateway.database, "t_plain") is None, "known"
    await clock.advance(2)
    assert await roles.why_not(stage.gateway.database, "t_plain") is not None


async def test_a_leases_claims_are_refused_too_and_a_lock_by_itself_is_none_of_the_databases(stage: Acting) -> None:
    gateway = stage.of("t_plain")
    with_claim = await ask(gateway, asking("a", secret="s" * 32, claims=("orders/k",)))
    assert isinstance(with_claim, Problem)
    assert with_claim.name == "FP043"
    assert not isinstance(await ask(gateway, asking("a", secret="t" * 32)), Problem)


async def test_a_superuser_acts_as_roles_only_with_a_list(stage: Acting, database: str) -> None:
    """Nor does it start where all callers have roles. API keys have roles, too; a gateway starts with keys of none."""
    async with open_gateway(database) as gateway:
        superuser = gateway.database
        assert await AllowedRoles([]).why_not_start(superuser) == NO_LIST
        assert await AllowedRoles([NOTHING]).why_not_start(superuser) is None
        assert "the operator lists none" in (await AllowedRoles([]).why_not(superuser, WEB) or "")
        assert await AllowedRoles([WEB]).why_not(superuser, WEB) is None
    assert await AllowedRoles(()).why_not_start(stage.gateway.database) is None
    assert await stage.gateway.roles.why_not(stage.gateway.database, WEB) is None, "a login of its own needs none"


async def test_without_its_line_such_a_role_would_act(stage: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = allowed_roles._WHY_NOT.splitlines()  # noqa: SLF001
    for role, dropped in (("t_super", "r.rolsuper"), ("t_bypass", "rolbypassrls"), ("t_keeper", "nspowner")):
        # A superuser is a member of every role.
        also = "pg_has_role(r.oid" if role == "t_super" else dropped
        kept = [line for line in lines if dropped not in line and also not in line]
        monkeypatch.setattr(allowed_roles, "_WHY_NOT", "\n".join(kept))
        assert await AllowedRoles().why_not(stage.gateway.database, role) is None, role
