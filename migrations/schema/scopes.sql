-- Scopes (R8): one mark for all rows that render to the same name. A table with a scope has no column of its own: its rows' mark
-- is the scope's, in fencepost.marks, and a write enters its scope before it writes.
--
-- Lock order (R20):  the prefix (shared; `protect` takes it alone, after its table)  ->  scope marks (sorted, COLLATE "C")
--              ->  rows. Direct SQL has locked its row when the trigger enters: it may meet a 40P01, never a wrong answer.
-- A scope's mark has row_absent = true: it is pruned, and replaced by its prefix's floor, like that of an absent key.

-- Raise the marks of scopes, in a statement of its own: whatever follows sees what older holders have committed.
-- refused_by is null where the token was accepted, else the mark or floor that refused it. If one refuses, the caller
-- rolls all of it back. p_table and p_template are what the gateway believes of a table: raises FP000 if it is not so.
CREATE FUNCTION fencepost.enter(p_prefix text, p_scopes text[], p_token bigint, p_table oid DEFAULT NULL,
                                p_template text DEFAULT NULL)
RETURNS TABLE (scope text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fresh boolean := current_setting('transaction_isolation') = 'read committed';
  found_rule text;
  found_source text;
  found_max bigint;
  found_jump bigint;
  lowest bigint;
  passed boolean := true;
BEGIN
  -- Rule and source as they are now: who changes them waits for us, or we for him. A claim locks no table.
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('fencepost.scope/' || p_prefix, 0));
  IF fresh THEN
    SELECT p.rule, p.source, p.max_token, p.max_jump INTO found_rule, found_source, found_max, found_jump
      FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1;
  ELSE  -- an old snapshot must fail (40001), not read an old rule
    SELECT p.rule, p.source, p.max_token, p.max_jump INTO found_rule, found_source, found_max, found_jump
      FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1 FOR SHARE;
  END IF;
  IF NOT FOUND THEN PERFORM fencepost.outdated(p_prefix); END IF;
  -- After the lock: until this transaction ends the table cannot leave the scope any more.
  IF p_table IS NOT NULL AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = p_table AND p.scope = p_template)
  THEN
    PERFORM fencepost.outdated(p_table::regclass::text);
  END IF;
  FOR scope IN SELECT DISTINCT u.name COLLATE "C" FROM unnest(p_scopes) AS u(name) ORDER BY 1 LOOP
    IF p_token > found_max OR found_jump IS NOT NULL THEN
      PERFORM fencepost.meet_ceiling(p_prefix, scope, p_token, found_max, found_jump);
    END IF;
    refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);
    IF refused_by IS NULL THEN
      -- In a statement of its own, after the mark: a floor read before the wait could be too old.
      IF fresh THEN
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
      ELSE
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix FOR SHARE;
      END IF;
      IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
      IF NOT fencepost.accepts(found_rule, lowest, p_token) THEN refused_by := lowest; END IF;
    END IF;
    passed := passed AND refused_by IS NULL;
    RETURN NEXT;
  END LOOP;
  IF passed AND found_source = 'builtin' THEN
    PERFORM fencepost.require_issued(p_scopes[1], p_token);
  ELSIF passed AND found_source <> 'external' THEN
    PERFORM fencepost.require_issued(p_scopes[1], p_token, found_source);
  END IF;
END $$;

-- fencepost.enter for operations with a scope and a token each (group commit, gateway/group_commit.py). A scope that
-- cannot be entered is not touched, so nothing has to be rolled back. A scope that is named twice is entered by one operation
-- only, for it would let every other pass as its own. A transaction that has locked a mark is not waited for. Who is just making one, or
-- changes the prefix's rule, is, for as long as lock_timeout lets: batches have one of 10 ms (LOCK_WAIT_MS), less than
-- PostgreSQL waits before it looks for a deadlock, and therefore take marks in no order.
--   entered   its mark is the token now
--   refused   by its mark, which is refused_by
--   busy      another transaction holds the mark, or another operation of this transaction has entered
--   unclear   no scope, a floor, the token's source, or a token that is too high: ask fencepost.enter, which raises what is wrong
-- Its query plan is made once and kept. One that reads a whole table, made while that was small, would stay when it has
-- grown: so each row is looked up by itself (LATERAL), and other joins are switched off.
CREATE FUNCTION fencepost.enter_each(p_prefix text, p_scopes text[], p_tokens bigint[], p_table oid, p_template text)
RETURNS TABLE (number integer, scope text, verdict text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  found_rule text;
  found_source text;
  found_jump bigint;
  lowest bigint;
  highest bigint := 9223372036854775807;
  oldest bigint := 1;
  first_entered bigint := 9223372036854775807;
  entered boolean[] := array_fill(false, ARRAY[cardinality(p_scopes)]);
  p_token bigint;
BEGIN
  IF cardinality(array_remove(p_scopes, NULL)) = 0 THEN  -- nothing to enter: all of them are answered already
    RETURN QUERY SELECT u.o::integer - 1, NULL::text, 'unclear', NULL::bigint
                   FROM unnest(p_scopes) WITH ORDINALITY AS u(name, o);
    RETURN;
  END IF;
  -- Rule and source as they are now: who changes them waits for us, or we for him.
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('fencepost.scope/' || p_prefix, 0));
  SELECT p.rule, p.source, coalesce(p.max_token, highest), p.max_jump INTO found_rule, found_source, highest, found_jump
    FROM fencepost.protected p
   WHERE p.relation = p_table AND p.scope = p_template;
  IF NOT FOUND THEN PERFORM fencepost.outdated(p_table::regclass::text); END IF;
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
  IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
  IF found_source = 'builtin' THEN
    highest := fencepost.issued();
    oldest := fencepost.oldest();
  ELSIF found_source <> 'external' THEN
    highest := fencepost.issued(found_source);
    oldest := fencepost.oldest(found_source);
  END IF;
  -- Most have a mark that is lower, and that is not locked. Only one of two that have the same mark gets to it.
  FOR number, p_token IN
    UPDATE fencepost.marks k
       SET last_fence_token = x.token, xid = pg_current_xact_id(), row_absent = true, changed_at = clock_timestamp()
      FROM (SELECT u.o, u.token, h.place
              FROM ROWS FROM (unnest(p_scopes), unnest(p_tokens)) WITH ORDINALITY AS u(name, token, o)
             CROSS JOIN LATERAL (SELECT h.ctid AS place FROM fencepost.marks h
                                  WHERE h.resource = u.name AND h.last_fence_token < u.token
                                    AND (found_jump IS NULL OR u.token - h.last_fence_token <= found_jump)
                                    FOR UPDATE SKIP LOCKED) h
             WHERE lowest < u.token AND u.token BETWEEN oldest AND highest) x
     WHERE k.ctid = x.place
    RETURNING x.o, x.token
  LOOP
    entered[number] := true;
    first_entered := least(first_entered, p_token);
  END LOOP;
  FOR number, scope, p_token, verdict IN
    SELECT u.o - 1, u.name, u.token, CASE WHEN u.entered THEN 'entered' ELSE 'unclear' END
      FROM ROWS FROM (unnest(p_scopes), unnest(p_tokens), unnest(entered)) WITH ORDINALITY AS u(name, token, entered, o)
     ORDER BY u.name COLLATE "C", u.entered DESC
  LOOP
    refused_by := NULL;
    IF verdict = 'unclear' AND p_token BETWEEN oldest AND highest
       AND fencepost.accepts(found_rule, lowest, p_token) AND scope IS NOT NULL
       AND found_jump IS NULL  -- fencepost.enter decides whether it is too far
    THEN
      PERFORM FROM fencepost.marks k WHERE k.resource = scope FOR UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (SELECT FROM fencepost.marks k WHERE k.resource = scope) THEN
        verdict := 'busy';
      ELSIF FOUND AND EXISTS (SELECT FROM fencepost.marks k
                               WHERE k.resource = scope AND k.xid = pg_current_xact_id() AND fencepost.is_own_write(k.xmin)) THEN
        verdict := 'busy';
      ELSE
        refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);
        verdict := CASE WHEN refused_by IS NULL THEN 'entered' ELSE 'refused' END;
        IF refused_by IS NULL THEN first_entered := least(first_entered, p_token); END IF;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
  -- In a statement of its own, after the marks: the floor may have risen before they were ours.
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
  IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
  IF NOT fencepost.accepts(found_rule, lowest, first_entered) THEN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('the floor of %s rose meanwhile', p_prefix);
  END IF;
END $$;

-- What the triggers of a scoped table ask for each row: before it is written, and once more after an INSERT, for
-- another trigger may have moved the row to another scope in between. The gateway has entered the scope before, and so
-- has a statement that wrote another row of it in this transaction: one transaction is one operation (R1).
CREATE FUNCTION fencepost.judge_scope(tab text, p_prefix text, p_scope text, p_verb text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  token bigint;
  refused bigint;
BEGIN
  PERFORM FROM fencepost.marks k  -- ours: xid may have come from another database, see raise_mark
    WHERE k.resource = p_scope AND k.xid = pg_current_xact_id() AND fencepost.is_own_write(k.xmin);
  IF FOUND THEN RETURN; END IF;
  IF NOT fencepost.break_glass() THEN token := fencepost.token_from_setting(tab); END IF;
  IF token IS NULL THEN
    PERFORM fencepost.enforce('no token', tab, p_scope, p_verb, NULL, NULL);
    -- The mark stays what it is, or none, and is locked: a claim of the scope waits, and then sees this write.
    PERFORM fencepost.meet_mark(p_scope);
    RETURN;
  END IF;
  SELECT e.refused_by INTO refused FROM fencepost.enter(p_prefix, ARRAY[p_scope], token) e;
  IF refused IS NOT NULL THEN  -- under whichever rule: stale or spent
    PERFORM fencepost.enforce(fencepost.verdict('strict', refused, token, false), tab, p_scope, p_verb, token, refused);
  END IF;
END $$;

-- A row without a scope, or one that would leave it.
CREATE FUNCTION fencepost.no_scope(tab text, p_template text, p_changed boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP400',
    MESSAGE = format(CASE WHEN p_changed THEN '%s: the columns of the scope %s cannot change'
                          ELSE '%s: a column of the scope %s is null' END, tab, p_template),
    HINT = CASE WHEN p_changed THEN 'Delete the row and insert it under its new scope, each with a token.'
           ELSE 'Every row has a scope: give each of its columns a value.' END;
END $$;
