-- Judging: whether a token may write, and what becomes of the mark (R1, R2, R5, R6).
--
--   UPDATE         judge_update   by the row's own mark; the row is locked by the statement
--   INSERT, claim  judge_insert   by the mark in fencepost.marks, and then by the floor
--                  raise_mark
--   DELETE         judge_delete   by the row's own mark, which stays in fencepost.marks
--   scope          enter          by the scope's mark, and then by the floor (scopes.sql)
--
-- Each of them finds the mark, the token and whether the write goes on with one of its own transaction. `verdict` says what that
-- means, and `enforce` makes it happen: a refusal, or a record behind broken glass. Bounds of tokens are in bounds.sql.

-- The rule: whether a mark, or a floor, lets a token pass (R1, R2). A scope and a row are judged alike. The same comparison stands in
--   accepts      fence/token.py          Python's: verdicts, and floors that a claim reads
--   comparison   postgres/row_sql.py     the WHERE of the gateway's statements
--   update_body  table_functions.sql     the plain case of a table's trigger: a token above the mark, under both rules
--   insmark_body table_functions.sql     the plain case of an INSERT: a key without a mark, by its floor, under the rule strict
--   delete_body  table_functions.sql     the WHERE of the gateway's DELETE
--   enter_each   scopes.sql              the plain case of scopes
-- tests/races/test_one_rule.py holds all of them against each other. A mark that equals the token is accepted in the transaction that
-- set it, too: see verdict. PostgreSQL puts the expression in place of the call, so that it costs nothing: no SET clause, not STRICT.
CREATE FUNCTION fencepost.accepts(rule text, mark bigint, token bigint) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN mark < token OR mark = token AND rule = 'epoch';

-- Did this transaction write the row version? One transaction is one operation (R1), so that an ORM that flushes a row
-- twice under one SET LOCAL is not refused its own token. A version that we can see and whose writer is in progress is
-- ours; a savepoint's number differs from the transaction's, so equality would not do. Asked only where token = mark.
CREATE FUNCTION fencepost.is_own_write(writer xid) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  me bigint := pg_current_xact_id()::text::bigint;
  full_xid bigint := (me >> 32 << 32) | writer::text::bigint;
BEGIN
  IF full_xid < me - 2147483648 THEN full_xid := full_xid + 4294967296; END IF;
  IF full_xid < me OR full_xid > me + 2147483648 THEN RETURN false; END IF;
  RETURN coalesce(pg_xact_status(full_xid::text::xid8) = 'in progress', false);
EXCEPTION WHEN invalid_parameter_value THEN   -- "in the future": a frozen row's recycled number
  RETURN false;
END $$;

-- The verdict on a token, null where none was given, against a mark. `own`: the write goes on with one of the same transaction.
--   accepted   the mark lets it pass, or this transaction has set it
--   own        without a token, to what this transaction has written under one: one transaction is one operation (R1), of which a
--              trigger that goes on writing the row knows nothing
--   no token, spent, stale
-- Whatever the verdict, a mark never falls: where the write happens the new one is greatest(mark, token). PostgreSQL puts the
-- expression in place of the call, and `own` stands in it once: it is found out only where it matters.
CREATE FUNCTION fencepost.verdict(rule text, mark bigint, token bigint, own boolean) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN fencepost.accepts(rule, mark, token) THEN 'accepted'
            WHEN (token = mark OR token IS NULL AND mark > 0) AND own THEN CASE WHEN token IS NULL THEN 'own' ELSE 'accepted' END
            WHEN token IS NULL THEN 'no token'
            WHEN token = mark THEN 'spent'
            ELSE 'stale' END;

-- What comes of a verdict, and the one place that raises for a mark (FP409) and for no token (FP428): it returns where the write may happen, recorded behind broken glass, and raises where it may not. The row of an
-- INSERT has its mark already when a higher one refuses it: no glass helps there. Token 0: its row came without one.
CREATE FUNCTION fencepost.enforce(verdict text, tab text, resource text, verb text, token bigint, mark bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF verdict = 'accepted' THEN RETURN; END IF;
  IF (verb <> 'INSERT' OR verdict = 'no token') AND fencepost.break_glass() THEN
    PERFORM fencepost.record_break_glass(tab, resource, verb);
    RETURN;
  END IF;
  IF verdict = 'own' THEN RETURN; END IF;
  IF verdict = 'no token' THEN
    RAISE EXCEPTION USING ERRCODE = 'FP428',
      MESSAGE = format(CASE WHEN token = 0 THEN '%s is protected: the row reached the table without a fence token'
             ELSE '%s is protected: a write needs a fence token' END, resource),
      DETAIL = json_build_object('resource', resource)::text,
      HINT = CASE WHEN token = 0
        THEN 'Its trigger zzz_fencepost_ins is gone, or one that fires later set last_fence_token: see fencepost doctor.'
        WHEN current_setting('fencepost.token', true) <> ''
        THEN format('fencepost.token is %L, which is for another table: ''<token>'' is for all of them, ''orders=<token>'' for the'
          ' table that Fencepost calls orders.', current_setting('fencepost.token', true))
        ELSE 'In the same transaction: SET LOCAL fencepost.token = ''<token>'', with the one that the lock service gave.' END;
  ELSE
    RAISE EXCEPTION USING ERRCODE = 'FP409',
      MESSAGE = format('%s token %s for %s: its mark is %s', verdict, token, resource, mark),
      DETAIL = json_build_object('resource', resource, 'presented', token::text, 'mark', mark::text)::text,
      HINT = CASE WHEN current_setting('fencepost.break_glass', true) <> ''
        THEN 'Behind broken glass no mark falls: leave last_fence_token out, and the row takes the mark of its key.'
        WHEN verdict = 'spent'
        THEN 'Under the rule strict each token writes a resource once: mint another one.'
        ELSE 'A newer token has been accepted since. Do not retry: acquire the lock anew and read again.' END;
  END IF;
END $$;

-- UPDATE, everything but the plain case: the mark to store, or an exception. The setting counts before the column (see
-- direct_sql.sql), and 0 in the column is no token (an ORM that writes defaults). An operator's reset (reset.sql) is recorded already.
CREATE FUNCTION fencepost.judge_update(tab text, resource text, rule text, old_mark bigint, new_mark bigint,
                                                  key_changed boolean, writer xid) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  token bigint;
  verdict text;
BEGIN
  IF key_changed THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('%s: the primary key of a protected row cannot change', resource),
      HINT = 'Delete the row and insert it under its new key, each with a token.';
  END IF;
  IF current_setting('fencepost.token', true) <> '' THEN token := fencepost.token_from_setting(tab); END IF;
  IF token IS NULL THEN
    IF new_mark = '-9223372036854775808' THEN PERFORM fencepost.malformed(new_mark::text); END IF;
    token := CASE WHEN new_mark < 0 THEN - new_mark ELSE nullif(nullif(new_mark, old_mark), 0) END;
    -- An upsert's proposed row had named it.
    IF token IS NULL AND rule = 'epoch' AND fencepost.take_explicit(resource, new_mark) THEN token := new_mark; END IF;
  END IF;
  verdict := fencepost.verdict(rule, old_mark, token, fencepost.is_own_write(writer));
  IF verdict <> 'accepted' THEN
    IF new_mark < old_mark AND fencepost.break_glass() AND fencepost.is_reset(resource, old_mark, new_mark) THEN
      RETURN new_mark;
    END IF;
    PERFORM fencepost.enforce(verdict, tab, resource, 'UPDATE', token, old_mark);
  END IF;
  RETURN greatest(old_mark, token);
END $$;

-- The upsert that R6 stands on: NULL when accepted, else the mark that refused. DO UPDATE waits for and locks the mark's
-- latest version even where its WHERE is false, so the second read is exact. xid may have come from another database (logical
-- replication, a restored dump), where the number was another transaction's: what this transaction wrote has an xmin of
-- its own, too.
CREATE FUNCTION fencepost.raise_mark(p_resource text, p_token bigint, p_rule text, p_row_absent boolean)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  refused_by bigint;
BEGIN
  IF octet_length(p_resource) > 2600 THEN  -- an index entry holds no more than 2704
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('the name of the resource %s… has %s bytes; a mark can be kept for names of at most 2600',
                       left(p_resource, 40), octet_length(p_resource));
  END IF;
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  VALUES (p_resource, p_token, pg_current_xact_id(), p_row_absent)
  ON CONFLICT (resource) DO UPDATE
     SET last_fence_token = excluded.last_fence_token, xid = excluded.xid,
         row_absent = excluded.row_absent, changed_at = clock_timestamp()
   WHERE fencepost.verdict(p_rule, k.last_fence_token, excluded.last_fence_token,
                           k.xid = excluded.xid AND fencepost.is_own_write(k.xmin)) = 'accepted';
  IF FOUND THEN RETURN NULL; END IF;
  SELECT k.last_fence_token INTO STRICT refused_by FROM fencepost.marks k WHERE k.resource = p_resource;
  RETURN refused_by;
END $$;

-- raise_mark for a row without a mark. A mark is made and taken back: a claim of the key meanwhile waits for us,
-- and then sees the row. Had we waited for him, or for a DELETE, his mark refuses us.
CREATE FUNCTION fencepost.meet_mark(p_resource text) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  refused_by bigint;
BEGIN
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  VALUES (p_resource, 1, pg_current_xact_id(), false)
  ON CONFLICT (resource) DO UPDATE SET row_absent = k.row_absent WHERE false;
  IF FOUND THEN
    DELETE FROM fencepost.marks k WHERE k.resource = p_resource;
    RETURN NULL;
  END IF;
  SELECT k.last_fence_token INTO STRICT refused_by FROM fencepost.marks k WHERE k.resource = p_resource;
  RETURN refused_by;
END $$;

-- AFTER INSERT: the unique index entry is ours, so every DELETE of this key is over. Judge by the mark in its latest
-- version, and then by the floor, in a statement of its own: a floor read before the wait could be too old.
-- A token that equals the mark passes only if it was given as a token, in fencepost.token or as a negative value: a row that
-- an ORM brings back with its old column is an echo.
-- Behind broken glass the token may be the mark itself (mark_behind_glass made it so), but not below it. Recorded even
-- where the token would have done: it looks like one that the glass gave.
CREATE FUNCTION fencepost.judge_insert(tab text, p_resource text, p_token bigint, p_rule text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule text := p_rule;
  token bigint := p_token;
  echo boolean := false;
  mark bigint;
  verdict text;
BEGIN
  IF p_token = 0 OR current_setting('fencepost.break_glass', true) <> '' AND fencepost.break_glass() THEN
    PERFORM fencepost.enforce('no token', tab, p_resource, 'INSERT', p_token, NULL);
    rule := 'epoch';
  ELSIF rule = 'epoch' AND NOT fencepost.take_explicit(p_resource, p_token)
        AND fencepost.token_from_setting(tab) IS DISTINCT FROM p_token THEN
    rule := 'strict';
    echo := true;
  END IF;
  mark := CASE WHEN p_token = 0 THEN fencepost.meet_mark(p_resource)
               ELSE fencepost.raise_mark(p_resource, p_token, rule, false) END;
  IF mark IS NULL THEN
    IF current_setting('transaction_isolation') = 'read committed' THEN
      SELECT f.floor INTO mark FROM fencepost.floors f WHERE f.name = tab;
    ELSE  -- an old snapshot must fail (40001), not read an old floor
      SELECT f.floor INTO mark FROM fencepost.floors f WHERE f.name = tab FOR SHARE;
    END IF;
    IF NOT FOUND THEN PERFORM fencepost.no_floor(tab); END IF;
  END IF;
  IF echo AND mark = p_token THEN token := NULL; END IF;
  verdict := fencepost.verdict(rule, mark, token, false);
  IF verdict <> 'accepted' THEN PERFORM fencepost.enforce(verdict, tab, p_resource, 'INSERT', token, mark); END IF;
END $$;

-- AFTER DELETE: the row's lock is ours, so its last version judges. Leaves the mark behind, and returns the token that was
-- given, null if none; for a row version of this transaction's see verdict. Behind broken glass the row's own mark
-- stays behind (none, if it was never written through a fence).
CREATE FUNCTION fencepost.judge_delete(tab text, p_resource text, old_mark bigint, p_rule text, writer xid)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given bigint := fencepost.token_from_setting(tab);
  token bigint := greatest(old_mark, given);
  verdict text := fencepost.verdict(p_rule, old_mark, given, fencepost.is_own_write(writer));
BEGIN
  IF verdict <> 'accepted' THEN
    PERFORM fencepost.enforce(verdict, tab, p_resource, 'DELETE', given, old_mark);
    IF token = 0 THEN
      UPDATE fencepost.marks k SET row_absent = true WHERE k.resource = p_resource;
      RETURN given;
    END IF;
  END IF;
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  VALUES (p_resource, token, pg_current_xact_id(), true)
  ON CONFLICT (resource) DO UPDATE
     SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), xid = excluded.xid,
         row_absent = true, changed_at = clock_timestamp();
  RETURN given;
END $$;
