-- Direct SQL (R14): how the protection is broken, and how that is recorded. Statements are separated by "-- next".

ALTER TABLE fencepost.protected ADD COLUMN scope text, ADD COLUMN requires_key boolean NOT NULL DEFAULT false,
  ADD COLUMN max_token bigint CONSTRAINT protected_max_token_check CHECK (max_token > 0),
  ADD COLUMN max_jump bigint CONSTRAINT protected_max_jump_check CHECK (max_jump > 0);
-- next
COMMENT ON COLUMN fencepost.protected.max_token IS 'The highest token that a table of the source external takes. Null for other sources: they know what they have issued.';
-- next
COMMENT ON COLUMN fencepost.protected.max_jump IS 'How far a token may be above the mark that it raises, in a table of the source external. Null: any distance.';
-- next
CREATE TABLE fencepost.break_glass_log (
  xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
  name        text COLLATE "C" NOT NULL,
  verb        text NOT NULL,
  resource    text COLLATE "C" NOT NULL,
  reason      text NOT NULL,
  at          timestamptz NOT NULL DEFAULT now(),
  login       text NOT NULL DEFAULT session_user,
  role        text NOT NULL DEFAULT coalesce(nullif(current_setting('role'), 'none'), session_user),
  application text NOT NULL DEFAULT current_setting('application_name'),
  client      inet DEFAULT inet_client_addr(),
  query       text,
  digest      bytea NOT NULL,
  old_mark    bigint,
  new_mark    bigint,
  CONSTRAINT break_glass_log_pkey PRIMARY KEY (xid, at, name, verb, digest)
);
-- next
COMMENT ON TABLE fencepost.break_glass_log IS 'Writes without a token by operators (R14): one record per transaction, table, verb, reason and statement (digest is of these two); resource is the first that was written, at is when the transaction began. In the transaction of the write: a write that is undone leaves none. The verb RESET: an operator lowered the mark of a resource, or a floor, from old_mark to new_mark.';
-- next
-- Nobody calls it: whoever has the privilege to, may break the glass. The owner of this schema grants it; a role's name
-- would not do, for whoever may create roles could make one of that name.
CREATE FUNCTION fencepost.may_break_glass() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
-- next
-- Is the protection broken in this session? By SET LOCAL fencepost.break_glass = 'why'.
CREATE FUNCTION fencepost.break_glass() RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  reason text := current_setting('fencepost.break_glass', true);
BEGIN
  IF reason IS NULL OR reason = '' THEN RETURN false; END IF;
  IF NOT has_function_privilege(session_user, 'fencepost.may_break_glass()', 'EXECUTE') THEN
    RAISE EXCEPTION USING ERRCODE = '42501',
      MESSAGE = format('%s may not break the glass: fencepost.break_glass is set', session_user),
      DETAIL = 'That is for roles which may execute fencepost.may_break_glass().',
      HINT = format('Write with a token: SET LOCAL fencepost.token = ''36''. Or ask %s for: GRANT EXECUTE ON FUNCTION'
        ' fencepost.may_break_glass() TO %I',
        (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'fencepost'), session_user);
  END IF;
  IF length(regexp_replace(reason, '[[:space:]]', '', 'g')) < 3 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%L is no reason to break the glass', reason),
      HINT = 'It is recorded for those who come after you: SET LOCAL fencepost.break_glass = ''INC-123: what happened''';
  END IF;
  RETURN true;
END $$;
-- next
-- Record a write that the broken glass let through. Whoever may not break it cannot record anything either.
CREATE FUNCTION fencepost.record_break_glass(tab text, p_resource text, p_verb text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fencepost.break_glass() THEN RETURN; END IF;
  IF pg_trigger_depth() = 0 THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'only triggers record what was written behind broken glass';
  END IF;
  INSERT INTO fencepost.break_glass_log (name, verb, resource, reason, query, digest)
  VALUES (tab, p_verb, p_resource, current_setting('fencepost.break_glass'), current_query(),
          sha256(convert_to(concat_ws(E'\n', current_setting('fencepost.break_glass'), current_query()), 'UTF8')))
  ON CONFLICT (xid, at, name, verb, digest) DO NOTHING;
END $$;
-- next
-- `fencepost fence reset` (app/fencepost/storage/upkeep/reset.py): an operator lowers a mark that somebody made up. Recorded as
-- break-glass is, with the old and the new mark, so that whatever is written afterwards can be judged. The record is the
-- permission: no mark of a row falls but to where a record of the same transaction says.
--
-- Lock order, as everybody's: the row (locked by the caller), then its mark. p_live is the row's mark, null where there is
-- no row. Gives the mark that falls.
CREATE FUNCTION fencepost.held_mark(p_resource text, p_live bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kept bigint;
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a mark is lowered behind broken glass only',
      HINT = 'fencepost fence reset RESOURCE --to N --reason …';
  END IF;
  SELECT k.last_fence_token INTO kept FROM fencepost.marks k WHERE k.resource = p_resource FOR UPDATE;
  RETURN coalesce(p_live, kept);
END $$;
-- next
-- The same for the floor of a table or of a scope's prefix.
CREATE FUNCTION fencepost.held_floor(p_name text) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  held bigint;
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a floor is lowered behind broken glass only',
      HINT = 'fencepost fence reset NAME --to N --reason …';
  END IF;
  SELECT f.floor INTO held FROM fencepost.floors f WHERE f.name = p_name FOR UPDATE;
  RETURN held;
END $$;
-- next
-- The highest mark below p_below in fencepost.marks and the floor, of all resources of p_name (a table, or a scope's prefix)
-- but p_resource.
CREATE FUNCTION fencepost.highest_below(p_name text, p_resource text, p_below bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a mark is lowered behind broken glass only';
  END IF;
  RETURN greatest((SELECT max(k.last_fence_token) FROM fencepost.marks k
                    WHERE starts_with(k.resource, fencepost.enc(p_name) || '/') AND k.resource <> p_resource
                      AND k.last_fence_token < p_below),
                  (SELECT f.floor FROM fencepost.floors f
                    WHERE f.name = p_name AND f.name <> p_resource AND f.floor < p_below), 0);
END $$;
-- next
-- Record a reset, and lower what fencepost.marks or fencepost.floors has; the row's own mark is lowered by the caller.
-- p_resource = tab: it is the floor, since no resource is called like its table.
CREATE FUNCTION fencepost.reset_mark(tab text, p_resource text, p_old bigint, p_new bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := coalesce(current_setting('fencepost.lowering', true), '');
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a mark is lowered behind broken glass only';
  END IF;
  IF NOT coalesce(p_new > 0 AND p_new < p_old, false) THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s: from %s to %s no mark falls', p_resource, p_old, p_new);
  END IF;
  INSERT INTO fencepost.break_glass_log (name, verb, resource, reason, query, digest, old_mark, new_mark)
  VALUES (tab, 'RESET', p_resource, current_setting('fencepost.break_glass'), current_query(),
          sha256(convert_to(concat_ws(E'\n', p_resource, p_old, p_new), 'UTF8')), p_old, p_new);
  PERFORM set_config('fencepost.lowering', p_resource, true);
  IF p_resource = tab THEN
    UPDATE fencepost.floors f SET floor = p_new WHERE f.name = tab AND f.floor > p_new;
  ELSE
    UPDATE fencepost.marks k SET last_fence_token = p_new, changed_at = clock_timestamp()
     WHERE k.resource = p_resource AND k.last_fence_token > p_new;
  END IF;
  PERFORM set_config('fencepost.lowering', before, true);
END $$;
-- next
-- Whether this transaction has recorded that the mark falls so. Our own record: the number may be another database's, where
-- the log was replicated or restored.
CREATE FUNCTION fencepost.is_reset(p_resource text, p_old bigint, p_new bigint) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM fencepost.break_glass_log l
                  WHERE l.xid = pg_current_xact_id() AND l.verb = 'RESET' AND l.resource = p_resource
                    AND l.old_mark = p_old AND l.new_mark = p_new AND fencepost.ours(l.xmin));
END $$;
-- next
-- The mark of a row that is inserted behind broken glass: that of its key, which does not fall, or the token that was
-- said, if that is higher; 0 for a key that nobody wrote through a fence. NULL when the glass is whole.
CREATE FUNCTION fencepost.mark_behind_glass(tab text, p_resource text, said bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fencepost.break_glass() THEN RETURN NULL; END IF;
  RETURN greatest(said, fencepost.mark_without_row(tab, p_resource), 0);
END $$;
-- next
-- raise_mark for a row without a mark. A mark is made and taken back: whoever claims the key meanwhile waits for us,
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
-- next
-- As in 0001. xid may have come from another database (logical replication, a restored dump), where the number was
-- somebody else's: what this transaction wrote has an xmin of its own, too.
CREATE OR REPLACE FUNCTION fencepost.raise_mark(p_resource text, p_token bigint, p_rule text, p_row_absent boolean)
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
   WHERE k.last_fence_token < excluded.last_fence_token
      OR k.last_fence_token = excluded.last_fence_token
         AND (p_rule = 'epoch' OR k.xid = excluded.xid AND fencepost.ours(k.xmin));
  IF FOUND THEN RETURN NULL; END IF;
  SELECT k.last_fence_token INTO STRICT refused_by FROM fencepost.marks k WHERE k.resource = p_resource;
  RETURN refused_by;
END $$;
-- next
-- A table of the source external has a ceiling instead of a source that knows what it has issued (R12): a token above
-- p_max_token raises no mark, nor does one that is more than p_max_jump (null: any distance) above the mark that it
-- would raise, or above the floor where that is higher. A made-up token would refuse everybody after it. A token that
-- raises nothing is left to the mark, which says more. FP018.
CREATE FUNCTION fencepost.beyond(p_resource text, p_token bigint, p_mark bigint, p_floor bigint, p_max_token bigint,
                                 p_max_jump bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  base bigint := greatest(p_mark, p_floor, 0);
BEGIN
  IF p_token <= p_mark THEN RETURN; END IF;
  IF p_token > p_max_token THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s is above %s, the highest that its table takes', p_token, p_resource, p_max_token),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', p_max_token::text,
                                 'source', 'external')::text,
      HINT = 'Give the token as the lock service gave it. If that counts so far: `fencepost protect TABLE --max-token N` sets the highest token that the table takes.';
  END IF;
  IF p_token - base > p_max_jump THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s is more than %s above %s, the mark or floor from which it would rise',
                       p_token, p_resource, p_max_jump, base),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', (base + p_max_jump)::text,
                                 'source', 'external', 'max_jump', p_max_jump::text)::text,
      HINT = 'Give the token as the lock service gave it. If that has counted so far: `fencepost protect TABLE --max-jump N` sets how far a token may be above the mark.';
  END IF;
END $$;
-- next
-- The same for a row whose mark is known and held; the floor of its table is read here.
CREATE FUNCTION fencepost.require_reach(tab text, p_resource text, p_token bigint, p_mark bigint, p_max_token bigint,
                                        p_max_jump bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.beyond(p_resource, p_token, p_mark, fencepost.floor_of(tab), p_max_token, p_max_jump);
END $$;
-- next
-- The same for a row that is updated, which may have been attached with a lower mark than its key has in fencepost.marks: it
-- takes that up, however far it is.
CREATE FUNCTION fencepost.require_reach_of_row(tab text, p_resource text, p_token bigint, p_mark bigint, p_max_token bigint,
                                               p_max_jump bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.beyond(p_resource, p_token, p_mark,
    greatest(fencepost.floor_of(tab), (SELECT k.last_fence_token FROM fencepost.marks k WHERE k.resource = p_resource)),
    p_max_token, p_max_jump);
END $$;
-- next
-- The same for what has its mark in fencepost.marks, or none. Asked before that is raised: its lock is taken first, and
-- also kept where there is no mark, so that nobody raises it between the comparison and the rise.
CREATE FUNCTION fencepost.meet_ceiling(tab text, p_resource text, p_token bigint, p_max_token bigint, p_max_jump bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF octet_length(p_resource) > 2600 THEN RETURN; END IF;  -- raise_mark refuses it
  PERFORM fencepost.require_reach(tab, p_resource, p_token, coalesce(fencepost.meet_mark(p_resource), 0), p_max_token,
                                  p_max_jump);
END $$;
-- next
CREATE FUNCTION fencepost.append_only() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('%I.%I is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME);
END $$;
-- next
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON fencepost.break_glass_log
  FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
-- next
-- As in 0001, but whom the broken glass lets through is told what helps.
CREATE OR REPLACE FUNCTION fencepost.refuse(resource text, token bigint, mark bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF token IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'FP428',
      MESSAGE = format('%s is protected: a write needs a fence token', resource),
      DETAIL = json_build_object('resource', resource)::text,
      HINT = CASE WHEN current_setting('fencepost.token', true) <> ''
        THEN format('fencepost.token is %L, which is for another table: ''36'' is for all of them, ''orders=36'' for the'
          ' table that Fencepost calls orders.', current_setting('fencepost.token', true))
        ELSE 'In the same transaction: SET LOCAL fencepost.token = ''36'' with the token that the lock service gave.' END;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'FP409',
    MESSAGE = format('%s token %s for %s: its mark is %s',
                     CASE WHEN token = mark THEN 'spent' ELSE 'stale' END, token, resource, mark),
    DETAIL = json_build_object('resource', resource, 'presented', token::text, 'mark', mark::text)::text,
    HINT = CASE WHEN current_setting('fencepost.break_glass', true) <> ''
      THEN 'Behind broken glass no mark falls: leave last_fence_token out, and the row takes the mark of its key.'
      WHEN token = mark
      THEN 'Under the rule strict each token writes a resource once: mint another one.'
      ELSE 'Somebody with a newer token has written since. Do not retry: acquire the lock anew and read again.' END;
END $$;
-- next
CREATE FUNCTION fencepost.malformed(token text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('malformed fence token %L', token),
    HINT = 'A token is a positive integer of at most 9223372036854775807: SET LOCAL fencepost.token = ''36''';
END $$;
-- next
-- Under epoch the token of a row that is inserted may equal the mark, if it was said out loud (-36). The BEFORE trigger
-- stores 36; that it was said stands in the setting fencepost.said, for this resource, until it is asked for. ';' is in no
-- resource's name.
CREATE FUNCTION fencepost.note_said(resource text, token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('fencepost.said',
                     concat(current_setting('fencepost.said', true), ';', resource, '=', token, ';'), true);
END $$;
-- next
CREATE FUNCTION fencepost.was_said(resource text, token bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  said text := current_setting('fencepost.said', true);
  entry text := concat(';', resource, '=', token, ';');
  at integer := strpos(said, entry);
BEGIN
  IF at IS NULL OR at = 0 THEN RETURN false; END IF;
  PERFORM set_config('fencepost.said', left(said, at - 1) || substr(said, at + length(entry)), true);
  RETURN true;
END $$;
-- next
-- As in 0001, but a setting counts before the column, and 0 in the column is no token (an ORM that writes defaults). A
-- row version that this transaction has written needs no token again: one transaction is one operation (R1), of which
-- a trigger that goes on writing the row knows nothing. What would be refused for its token passes behind broken glass,
-- and leaves the higher one as the mark.
CREATE OR REPLACE FUNCTION fencepost.judge_update(tab text, resource text, rule text, old_mark bigint, new_mark bigint,
                                                  key_changed boolean, writer xid) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  token bigint;
BEGIN
  IF key_changed THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('%s: the primary key of a protected row cannot change', resource),
      HINT = 'Delete the row and insert it under its new key, each with a token.';
  END IF;
  IF current_setting('fencepost.token', true) <> '' THEN token := fencepost.given(tab); END IF;
  IF token IS NULL THEN
    IF new_mark = '-9223372036854775808' THEN PERFORM fencepost.malformed(new_mark::text); END IF;
    token := CASE WHEN new_mark < 0 THEN - new_mark ELSE nullif(nullif(new_mark, old_mark), 0) END;
    -- An upsert's proposed row had said it.
    IF token IS NULL AND rule = 'epoch' AND fencepost.was_said(resource, new_mark) THEN token := new_mark; END IF;
  END IF;
  IF token IS NULL
     OR NOT (old_mark < token OR old_mark = token AND (rule = 'epoch' OR fencepost.ours(writer))) THEN
    IF NOT fencepost.break_glass() THEN
      IF token IS NULL AND old_mark > 0 AND fencepost.ours(writer) THEN RETURN old_mark; END IF;
      PERFORM fencepost.refuse(resource, token, old_mark);
    END IF;
    IF new_mark < old_mark AND fencepost.is_reset(resource, old_mark, new_mark) THEN RETURN new_mark; END IF;
    PERFORM fencepost.record_break_glass(tab, resource, 'UPDATE');
    RETURN greatest(old_mark, token);
  END IF;
  RETURN token;
END $$;
-- next
-- Each protected table and scope has a floor. Where it is not seen nothing can be judged, so nothing passes.
CREATE FUNCTION fencepost.no_floor(tab text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = '40001',
      MESSAGE = format('could not serialize access: %s was protected after this transaction began', tab),
      HINT = 'Run the transaction again.';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'FP000',
    MESSAGE = format('%s has lost its floor: there is no row for it in fencepost.floors', tab),
    HINT = 'A restored dump or a replica without fencepost.floors? Bring its rows back, or `fencepost protect` the table again.';
END $$;
-- next
-- As in 0001. Under epoch a token that equals the mark passes only if it was said, in fencepost.token or out loud: a row that an ORM brings back with its old column is an echo.
-- Behind broken glass the token may be the mark itself (mark_behind_glass made it so), but not below it. Recorded even
-- where the token would have done: it cannot be told from one that the glass gave.
CREATE OR REPLACE FUNCTION fencepost.judge_insert(tab text, p_resource text, p_token bigint, p_rule text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule text := p_rule;
  echo boolean := false;
  refused_by bigint;
BEGIN
  IF current_setting('fencepost.break_glass', true) <> '' AND fencepost.break_glass() THEN
    PERFORM fencepost.record_break_glass(tab, p_resource, 'INSERT');
    rule := 'epoch';
  ELSIF p_token = 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP428',
      MESSAGE = format('%s is protected: the row reached the table without a fence token', p_resource),
      DETAIL = json_build_object('resource', p_resource)::text,
      HINT = 'Its trigger zzz_fencepost_ins is gone, or one that fires later set last_fence_token: see fencepost doctor.';
  ELSIF rule = 'epoch' AND NOT fencepost.was_said(p_resource, p_token)
        AND fencepost.given(tab) IS DISTINCT FROM p_token THEN
    rule := 'strict';
    echo := true;
  END IF;
  refused_by := CASE WHEN p_token = 0 THEN fencepost.meet_mark(p_resource)
                     ELSE fencepost.raise_mark(p_resource, p_token, rule, false) END;
  IF refused_by IS NOT NULL THEN
    PERFORM fencepost.refuse(p_resource, CASE WHEN echo AND refused_by = p_token THEN NULL ELSE p_token END, refused_by);
  END IF;
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT f.floor INTO refused_by FROM fencepost.floors f WHERE f.name = tab;
  ELSE  -- an old snapshot must fail (40001), not read an old floor
    SELECT f.floor INTO refused_by FROM fencepost.floors f WHERE f.name = tab FOR SHARE;
  END IF;
  IF NOT FOUND THEN PERFORM fencepost.no_floor(tab); END IF;
  IF NOT (refused_by < p_token OR refused_by = p_token AND rule = 'epoch') THEN
    PERFORM fencepost.refuse(p_resource, CASE WHEN echo AND refused_by = p_token THEN NULL ELSE p_token END, refused_by);
  END IF;
END $$;
-- next
-- As in 0001, and returns the token that was given, null if none; for a row version of this transaction's see judge_update. Behind broken glass the row's own mark stays
-- behind (none, if it was never written through a fence).
CREATE OR REPLACE FUNCTION fencepost.judge_delete(tab text, p_resource text, old_mark bigint, p_rule text, writer xid)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  said bigint := fencepost.given(tab);
  token bigint := said;
BEGIN
  IF token IS NULL
     OR NOT (old_mark < token OR old_mark = token AND (p_rule = 'epoch' OR fencepost.ours(writer))) THEN
    IF fencepost.break_glass() THEN
      PERFORM fencepost.record_break_glass(tab, p_resource, 'DELETE');
    ELSIF token IS NOT NULL OR old_mark = 0 OR NOT fencepost.ours(writer) THEN
      PERFORM fencepost.refuse(p_resource, token, old_mark);
    END IF;
    token := greatest(old_mark, token);
    IF token = 0 THEN
      UPDATE fencepost.marks k SET row_absent = true WHERE k.resource = p_resource;
      RETURN said;
    END IF;
  END IF;
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  VALUES (p_resource, token, pg_current_xact_id(), true)
  ON CONFLICT (resource) DO UPDATE
     SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), xid = excluded.xid,
         row_absent = true, changed_at = clock_timestamp();
  RETURN said;
END $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.meet_mark(text), fencepost.meet_ceiling(text, text, bigint, bigint, bigint),
  fencepost.may_break_glass() FROM PUBLIC;
