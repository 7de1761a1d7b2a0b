"""Each safety line of schema/scopes.sql and of a scoped table's triggers, taken out once: a scenario must see it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from tests.integration.test_mutants import mutate
from tests.scenarios import scopes as scenarios
from tests.scenarios import scopes_direct as direct
from tests.support.interleave import Connect
from tests.support.racing import Race
from tests.support.ready_made import Unmade

from fencepost.fencing.token import Rule

ENTER = "fencepost.enter(text, text[], bigint, oid, text)"
JUDGE = "fencepost.judge_scope(text, text, text, text)"
NO_SCOPE = "fencepost.no_scope(text, text, boolean)"
TRIGGER = "{stem}_scope"


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in a function; or, where there is none, `new` is run as SQL."""

    function: str
    old: str
    new: str
    scenario: Callable[[Race], Awaitable[None]]
    rule: Rule = "strict"
    source: str = "external"


MUTANTS = {
    "the mark is not raised": Mutant(
        ENTER, "refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);", "refused_by := NULL;",
        scenarios.first_touch_is_ordered),
    "the mark looks like that of a row": Mutant(
        ENTER, "found_rule, true)", "found_rule, false)", scenarios.pruned_scope_leaves_a_floor),
    "the rule is always epoch": Mutant(
        ENTER, "p_token, found_rule, true", "p_token, 'epoch', true", scenarios.first_touch_is_ordered),
    "the rule is always strict": Mutant(
        ENTER, "p_token, found_rule, true", "p_token, 'strict', true", scenarios.first_touch_is_ordered, "epoch"),
    "the floor is not asked": Mutant(
        ENTER, "IF NOT fencepost.accepts(found_rule, lowest, p_token)", "IF false",
        scenarios.pruned_scope_leaves_a_floor),
    "the floor's own token passes": Mutant(
        ENTER, "accepts(found_rule, lowest,", "accepts('epoch', lowest,", scenarios.pruned_scope_leaves_a_floor),
    "the floor's own token is refused under epoch": Mutant(
        ENTER, "accepts(found_rule, lowest,", "accepts('strict', lowest,",
        scenarios.pruned_scope_leaves_a_floor, "epoch"),
    "the floor is read before the mark is waited for": Mutant(
        ENTER, "refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);\n    IF refused_by IS NULL THEN",
        "SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;"
        " refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);"
        " IF refused_by IS NULL AND lowest >= p_token THEN refused_by := lowest; END IF; IF false THEN",
        direct.a_stale_first_touch_waits_for_the_pruning_and_meets_the_floor),
    "an old snapshot reads an old floor": Mutant(
        ENTER, "f.name = p_prefix FOR SHARE", "f.name = p_prefix", scenarios.old_snapshot_fails),
    "an old snapshot reads an old rule": Mutant(
        ENTER, "LIMIT 1 FOR SHARE", "LIMIT 1", scenarios.an_old_snapshot_reads_no_old_rule),
    "a scope of no table is entered": Mutant(
        ENTER, "IF NOT FOUND THEN", "IF false THEN", scenarios.a_scope_of_no_table_is_not_entered),
    "the table's scope is not looked up again": Mutant(
        ENTER, "IF p_table IS NOT NULL AND", "IF false AND", direct.a_table_that_left_the_scope_is_not_entered_for),
    "a table leaves the scope while it is entered": Mutant(
        ENTER, "PERFORM pg_advisory_xact_lock_shared(", "PERFORM hashtextextended('', 0), (",
        direct.a_table_that_left_the_scope_is_not_entered_for),
    "scopes are taken in another order": Mutant(
        ENTER, "ORDER BY 1 LOOP", "ORDER BY 1 DESC LOOP", scenarios.crossing_writers_do_not_deadlock),
    "unissued tokens pass": Mutant(
        ENTER, "IF passed AND found_source", "IF false AND found_source",
        scenarios.tokens_that_were_never_issued_are_refused, source="builtin"),
    "every transaction has entered": Mutant(
        JUDGE, "AND k.xid = pg_current_xact_id() AND fencepost.is_own_write(k.xmin)", "",
        scenarios.direct_sql_is_judged),
    "no transaction has entered": Mutant(
        JUDGE, "IF FOUND THEN RETURN; END IF;", "", direct.cascades_are_judged_by_the_scopes_of_what_they_reach),
    "the refusal is not raised": Mutant(
        JUDGE, "IF refused IS NOT NULL", "IF false", scenarios.direct_sql_is_judged),
    "no token passes": Mutant(
        JUDGE, "IF token IS NULL THEN", "IF token IS NULL THEN RETURN;", scenarios.direct_sql_is_judged),
    "the glass is always broken": Mutant(
        JUDGE, "IF token IS NULL THEN\n    PERFORM fencepost.enforce(", "IF true THEN\n    PERFORM concat(",
        scenarios.direct_sql_is_judged),
    "broken glass is not recorded": Mutant(
        JUDGE, "PERFORM fencepost.enforce('no token',", "PERFORM concat(",
        direct.broken_glass_is_recorded_and_a_claim_waits_for_it),
    "broken glass is recorded once per scope only": Mutant(
        JUDGE, "PERFORM fencepost.meet_mark(p_scope);",
        "UPDATE fencepost.marks k SET xid = pg_current_xact_id() WHERE k.resource = p_scope;",
        direct.broken_glass_is_recorded_and_a_claim_waits_for_it),
    "broken glass takes no lock on the mark": Mutant(
        JUDGE, "PERFORM fencepost.meet_mark(p_scope);", "",
        direct.broken_glass_is_recorded_and_a_claim_waits_for_it),
    "rows without a scope pass": Mutant(NO_SCOPE, "RAISE EXCEPTION", "RETURN; RAISE EXCEPTION",
                                        scenarios.direct_sql_is_judged),
    "rows change their scope": Mutant(TRIGGER, "IF scope IS DISTINCT FROM ", "IF false AND scope IS DISTINCT FROM ",
                                      scenarios.direct_sql_is_judged),
    "a null in the template is let through": Mutant(TRIGGER, "IF scope IS NULL THEN", "IF false THEN",
                                                    scenarios.direct_sql_is_judged),
    "the trigger judges no write": Mutant(
        TRIGGER, "PERFORM fencepost.judge_scope(", "--", scenarios.direct_sql_is_judged),
    "rows are not looked at again after an INSERT": Mutant(
        "", "", "DROP TRIGGER zzz_fencepost_scope_ins ON items",
        direct.a_later_trigger_moves_no_row_into_a_scope_unjudged),
    "rows are not looked at again after an UPDATE": Mutant(
        "", "", "DROP TRIGGER zzz_fencepost_scope_upd ON items",
        direct.a_later_trigger_moves_no_row_into_a_scope_unjudged),
    "nothing depends on the columns of the scope": Mutant(
        "", "", "DROP TRIGGER zzz_fencepost_scope_upd ON items;"
        "CREATE OR REPLACE FUNCTION fencepost.{of}(r items) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN 'account/' || r.account_id; END $$", direct.a_column_of_the_scope_keeps_its_type),
    "the scope is read by the columns' names": Mutant(
        "", "", "CREATE OR REPLACE FUNCTION fencepost.{of}(r items) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN 'account/' || r.account_id; END $$", direct.a_renamed_column_stays_the_scopes),
    "TRUNCATE passes": Mutant("", "", "DROP TRIGGER zzz_fencepost_trunc ON items", scenarios.direct_sql_is_judged),
    "DELETE is not judged": Mutant(
        "", "", "CREATE OR REPLACE TRIGGER zzz_fencepost_scope BEFORE INSERT OR UPDATE ON items FOR EACH ROW"
        " EXECUTE FUNCTION fencepost.{function}()", scenarios.direct_sql_is_judged),
    "UPDATE is not judged": Mutant(
        "", "", "CREATE OR REPLACE TRIGGER zzz_fencepost_scope BEFORE INSERT OR DELETE ON items FOR EACH ROW"
        " EXECUTE FUNCTION fencepost.{function}()", scenarios.direct_sql_is_judged),
}  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mutant_is_seen(connect: Connect, unmade: Unmade, name: str) -> None:
    mutant = MUTANTS[name]
    race = await scenarios.scoped_race(connect, unmade, mutant.rule, mutant.source)
    await broken(race, mutant)
    with pytest.raises(AssertionError):
        await mutant.scenario(race)


async def broken(race: Race, mutant: Mutant) -> None:
    if mutant.function:
        await mutate(race, mutant.function, mutant.old, mutant.new, "items")
        return
    stem = await race.observer.fetchval("SELECT functions FROM fencepost.protected WHERE name = 'items'")
    await race.observer.execute(mutant.new.format(function=f'"{stem}_scope"', of=f'"{stem}_of"'))
