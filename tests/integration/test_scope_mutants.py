"""Each safety line of schema/scopes.sql and of a scoped table's triggers, taken out once: a scenario must see it."""

from dataclasses import dataclass
from functools import partial

import pytest
from tests.scenarios import scopes as scenarios
from tests.scenarios import scopes_direct as direct
from tests.support.racing import Mutant, Race, Scenario, SqlMutant, seen

from fencepost.server.fence.token import Rule

ENTER = "fencepost.enter(text, text[], bigint, oid, text)"
JUDGE = "fencepost.judge_scope(text, text, text, text)"
NO_SCOPE = "fencepost.no_scope(text, text, boolean)"
TRIGGER = "{stem}_scope"


@dataclass(frozen=True)
class Instead:
    """`sql` is run. In it `{function}` is that of the table's trigger, and `{of}` the one that makes the scope."""

    name: str
    sql: str
    scenario: Scenario
    rule: Rule = "strict"
    source: str = "external"

    async def apply(self, race: Race, _: pytest.MonkeyPatch, /) -> None:
        stem = await race.observer.fetchval("SELECT functions FROM fencepost.protected WHERE name = 'items'")
        await race.observer.execute(self.sql.format(function=f'"{stem}_scope"', of=f'"{stem}_of"'))


of_items = partial(SqlMutant, table="items")

MUTANTS: list[Mutant] = [
    of_items("the mark is not raised",
        ENTER, "refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);", "refused_by := NULL;",
        scenarios.first_touch_is_ordered),
    of_items("the mark looks like that of a row",
        ENTER, "found_rule, true)", "found_rule, false)", scenarios.pruned_scope_leaves_a_floor),
    of_items("the rule is always epoch",
        ENTER, "p_token, found_rule, true", "p_token, 'epoch', true", scenarios.first_touch_is_ordered),
    of_items("the rule is always strict",
        ENTER, "p_token, found_rule, true", "p_token, 'strict', true", scenarios.first_touch_is_ordered, "epoch"),
    of_items("the floor is not asked", ENTER, "IF NOT fencepost.accepts(found_rule, lowest, p_token)", "IF false",
        scenarios.pruned_scope_leaves_a_floor),
    of_items("the floor's own token passes",
        ENTER, "accepts(found_rule, lowest,", "accepts('epoch', lowest,", scenarios.pruned_scope_leaves_a_floor),
    of_items("the floor's own token is refused under epoch",
        ENTER, "accepts(found_rule, lowest,", "accepts('strict', lowest,",
        scenarios.pruned_scope_leaves_a_floor, "epoch"),
    of_items("the floor is read before the mark is waited for",
        ENTER, "refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);\n    IF refused_by IS NULL THEN",
        "SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;"
        " refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);"
        " IF refused_by IS NULL AND lowest >= p_token THEN refused_by := lowest; END IF; IF false THEN",
        direct.a_stale_first_touch_waits_for_the_pruning_and_meets_the_floor),
    of_items("an old snapshot reads an old floor",
        ENTER, "f.name = p_prefix FOR SHARE", "f.name = p_prefix", scenarios.old_snapshot_fails),
    of_items("an old snapshot reads an old rule",
        ENTER, "LIMIT 1 FOR SHARE", "LIMIT 1", scenarios.an_old_snapshot_reads_no_old_rule),
    of_items("a scope of no table is entered",
        ENTER, "IF NOT FOUND THEN", "IF false THEN", scenarios.a_scope_of_no_table_is_not_entered),
    of_items("the table's scope is not looked up again",
        ENTER, "IF p_table IS NOT NULL AND", "IF false AND", direct.a_table_that_left_the_scope_is_not_entered_for),
    of_items("a table leaves the scope while it is entered",
        ENTER, "PERFORM pg_advisory_xact_lock_shared(", "PERFORM hashtextextended('', 0), (",
        direct.a_table_that_left_the_scope_is_not_entered_for),
    of_items("scopes are taken in another order",
        ENTER, "ORDER BY 1 LOOP", "ORDER BY 1 DESC LOOP", scenarios.crossing_writers_do_not_deadlock),
    of_items("unissued tokens pass", ENTER, "IF passed AND found_source", "IF false AND found_source",
        scenarios.tokens_that_were_never_issued_are_refused, source="builtin"),
    of_items("every transaction has entered",
        JUDGE, "AND k.xid = pg_current_xact_id() AND fencepost.is_own_write(k.xmin)", "",
        scenarios.direct_sql_is_judged),
    of_items("no transaction has entered",
        JUDGE, "IF FOUND THEN RETURN; END IF;", "", direct.cascades_are_judged_by_the_scopes_of_what_they_reach),
    of_items("the refusal is not raised", JUDGE, "IF refused IS NOT NULL", "IF false", scenarios.direct_sql_is_judged),
    of_items("no token passes",
        JUDGE, "IF token IS NULL THEN", "IF token IS NULL THEN RETURN;", scenarios.direct_sql_is_judged),
    of_items("the glass is always broken",
        JUDGE, "IF token IS NULL THEN\n    PERFORM fencepost.enforce(", "IF true THEN\n    PERFORM concat(",
        scenarios.direct_sql_is_judged),
    of_items("broken glass is not recorded", JUDGE, "PERFORM fencepost.enforce('no token',", "PERFORM concat(",
        direct.broken_glass_is_recorded_and_a_claim_waits_for_it),
    of_items("broken glass is recorded once per scope only", JUDGE, "PERFORM fencepost.meet_mark(p_scope);",
        "UPDATE fencepost.marks k SET xid = pg_current_xact_id() WHERE k.resource = p_scope;",
        direct.broken_glass_is_recorded_and_a_claim_waits_for_it),
    of_items("broken glass takes no lock on the mark", JUDGE, "PERFORM fencepost.meet_mark(p_scope);", "",
        direct.broken_glass_is_recorded_and_a_claim_waits_for_it),
    of_items("rows without a scope pass", NO_SCOPE, "RAISE EXCEPTION", "RETURN; RAISE EXCEPTION",
        scenarios.direct_sql_is_judged),
    of_items("rows change their scope", TRIGGER, "IF scope IS DISTINCT FROM ", "IF false AND scope IS DISTINCT FROM ",
                                      scenarios.direct_sql_is_judged),
    of_items("a null in the template is let through", TRIGGER, "IF scope IS NULL THEN", "IF false THEN",
        scenarios.direct_sql_is_judged),
    of_items("the trigger judges no write",
        TRIGGER, "PERFORM fencepost.judge_scope(", "--", scenarios.direct_sql_is_judged),
    Instead("rows are not looked at again after an INSERT", "DROP TRIGGER zzz_fencepost_scope_ins ON items",
        direct.a_later_trigger_moves_no_row_into_a_scope_unjudged),
    Instead("rows are not looked at again after an UPDATE", "DROP TRIGGER zzz_fencepost_scope_upd ON items",
        direct.a_later_trigger_moves_no_row_into_a_scope_unjudged),
    Instead("nothing depends on the columns of the scope", "DROP TRIGGER zzz_fencepost_scope_upd ON items;"
        "CREATE OR REPLACE FUNCTION fencepost.{of}(r items) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN 'account/' || r.account_id; END $$", direct.a_column_of_the_scope_keeps_its_type),
    Instead("the scope is read by the columns' names",
        "CREATE OR REPLACE FUNCTION fencepost.{of}(r items) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN 'account/' || r.account_id; END $$", direct.a_renamed_column_stays_the_scopes),
    Instead("TRUNCATE passes", "DROP TRIGGER zzz_fencepost_trunc ON items", scenarios.direct_sql_is_judged),
    Instead("DELETE is not judged",
        "CREATE OR REPLACE TRIGGER zzz_fencepost_scope BEFORE INSERT OR UPDATE ON items FOR EACH ROW"
        " EXECUTE FUNCTION fencepost.{function}()", scenarios.direct_sql_is_judged),
    Instead("UPDATE is not judged",
        "CREATE OR REPLACE TRIGGER zzz_fencepost_scope BEFORE INSERT OR DELETE ON items FOR EACH ROW"
        " EXECUTE FUNCTION fencepost.{function}()", scenarios.direct_sql_is_judged),
]  # fmt: skip
test_a_mutant_is_seen = seen(MUTANTS, scenarios.scoped_race)
