-- The rule's one home. Statements are separated by a line of "-- next".
--
-- Lock order, one for everybody:  rows (by table and key), each followed by its mark.
-- Invariant: while a row lives, its own last_fence_token is its mark, and is >= what fencepost.marks holds for it.
--            fencepost.marks decides only for keys without a live row.

CREATE TABLE fencepost.protected (
  relation        regclass PRIMARY KEY,
  name            text COLLATE "C" NOT NULL CONSTRAINT protected_name_key UNIQUE,
  rule            text NOT NULL CONSTRAINT protected_rule_check CHECK (rule IN ('strict', 'epoch')),
  source          text NOT NULL DEFAULT 'external',
  key_columns     text[] NOT NULL,
  functions       text NOT NULL,
  protected_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  protected_by    text NOT NULL DEFAULT session_user
);
-- next
COMMENT ON TABLE fencepost.protected IS 'The tables under `fencepost protect`. name is the prefix of their resources and never changes with the table''s; functions is the common start of their trigger functions'' names.';
-- next
CREATE TABLE fencepost.marks (
  resource         text COLLATE "C" PRIMARY KEY,
  last_fence_token bigint NOT NULL CONSTRAINT marks_token_check CHECK (last_fence_token > 0),
  xid              xid8 NOT NULL,
  row_absent       boolean NOT NULL,
  changed_at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 80);
-- next
COMMENT ON TABLE fencepost.marks IS 'Marks that outlive their rows (R6). xid is the transaction that raised the mark: one operation is one transaction''s work. row_absent tells a deleted or never created row from one that lives.';
-- next
CREATE TABLE fencepost.floors (
  name  text COLLATE "C" PRIMARY KEY,
  floor bigint NOT NULL DEFAULT 0 CONSTRAINT floors_floor_check CHECK (floor >= 0),
  key   jsonb
);
-- next
COMMENT ON TABLE fencepost.floors IS 'Per protected table: marks of deleted rows up to here may have been pruned, so nothing may be inserted under such a token (R6). Outlives unprotect.';
-- next
COMMENT ON COLUMN fencepost.floors.key IS 'From which primary key the names of the marks were rendered: see fencepost.key_of.';
-- next
-- The primary key of a table, as far as the texts of its values hang on it. Columns are known by their numbers, which stay
-- when they are renamed; in another table of the same name, by their names. Collations are no part of it: they are
-- deterministic, so equal values have equal texts whichever it is.
CREATE FUNCTION fencepost.key_of(p_relation oid) RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT jsonb_build_object('relation', p_relation::int8, 'columns', jsonb_agg(jsonb_build_object(
           'number', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod)) ORDER BY k.n))
    FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
   WHERE i.indrelid = p_relation AND i.indisprimary AND k.n <= i.indnkeyatts $$;
-- next
-- Whether what could be stored as p_was has the same text as p_now: the same type, another integer, or a longer text.
CREATE FUNCTION fencepost.same_texts(p_was text, p_now text) RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT p_was = p_now
      OR p_was IN ('smallint', 'integer', 'bigint') AND p_now IN ('smallint', 'integer', 'bigint')
      OR p_was ~ '^character varying' AND p_now IN ('text', 'character varying')
      OR p_was = 'text' AND p_now = 'character varying'
      OR coalesce(substring(p_was from '^character varying[(]([0-9]+)[)]$')::integer
                  <= substring(p_now from '^character varying[(]([0-9]+)[)]$')::integer, false) $$;
-- next
-- Whether a row has the same name under two keys. NULL is a key that is not known.
CREATE FUNCTION fencepost.same_key(p_was jsonb, p_now jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((
    SELECT bool_and(coalesce(fencepost.same_texts(was ->> 'type', is_now ->> 'type')
                             AND CASE WHEN p_was -> 'relation' = p_now -> 'relation'
                                 THEN was -> 'number' = is_now -> 'number' ELSE was -> 'name' = is_now -> 'name' END, false))
      FROM ROWS FROM (jsonb_array_elements(p_was -> 'columns'), jsonb_array_elements(p_now -> 'columns')) AS k(was, is_now)),
    false) $$;
-- next
-- Marks and floors never fall, whatever statement writes them. One statement may lower one: an operator's, in a transaction
-- that names it (a resource, or the name of a floor) in the setting fencepost.lowering. The setting by itself allows
-- nothing: only the owner of these tables may update them at all.
CREATE FUNCTION fencepost.lowering(p_name text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT coalesce(current_setting('fencepost.lowering', true) = p_name, false) $$;
-- next
CREATE FUNCTION fencepost.never_lower() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name text := coalesce(to_jsonb(OLD) ->> 'resource', to_jsonb(OLD) ->> 'name');
BEGIN
  IF fencepost.lowering(name) THEN RETURN NULL; END IF;
  RAISE EXCEPTION USING ERRCODE = '55000',
    MESSAGE = format('%s: marks never fall, and this statement lowers its %s in fencepost.%s', name,
                     CASE TG_TABLE_NAME WHEN 'marks' THEN 'mark' ELSE 'floor' END, TG_TABLE_NAME),
    DETAIL = json_build_object('before', to_jsonb(OLD), 'after', to_jsonb(NEW))::text,
    HINT = format('Tokens up to the old value could write again. A mark that somebody made up is lowered by: fencepost'
                  ' fence reset %L --to N --reason …', name);
END $$;
-- next
-- After the row and not before: a BEFORE trigger would lock each mark once more. The condition is all that the plain case
-- costs.
CREATE TRIGGER never_lower AFTER UPDATE ON fencepost.marks FOR EACH ROW
  WHEN (NEW.last_fence_token < OLD.last_fence_token) EXECUTE FUNCTION fencepost.never_lower();
-- next
CREATE TRIGGER never_lower AFTER UPDATE ON fencepost.floors FOR EACH ROW
  WHEN (NEW.floor < OLD.floor) EXECUTE FUNCTION fencepost.never_lower();
-- next
-- One part of a resource name. Injective: 'a/b','c' and 'a','b/c' must not render alike.
CREATE FUNCTION fencepost.enc(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
         part, '%', '%25'), '/', '%2F'), ',', '%2C'), ';', '%3B');
-- next
-- One text per value, whatever the session's settings: for the key types whose own text depends on them, or of which
-- equal values have several texts. (E'' because a session may have standard_conforming_strings off.)
CREATE FUNCTION fencepost.canon(value date) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, MDY' AS 'SELECT value::text';
-- next
CREATE FUNCTION fencepost.canon(value timestamp) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, MDY' AS 'SELECT value::text';
-- next
CREATE FUNCTION fencepost.canon(value timestamptz) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, MDY' SET TimeZone = 'UTC' AS 'SELECT value::text';
-- next
CREATE FUNCTION fencepost.canon(value numeric) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS 'SELECT trim_scale(value)::text';
-- next
CREATE FUNCTION fencepost.canon(value bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS $$ SELECT E'\\x' || encode(value, 'hex') $$;
-- next
-- The token that direct SQL gave: '36' is for any table, 'orders=36' for that table only (what the gateway's deletes
-- use, so that a foreign key's cascade cannot borrow the parent's token). After SET LOCAL ended the setting is '',
-- not NULL.
CREATE FUNCTION fencepost.given(tab text) RETURNS bigint LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given text := nullif(current_setting('fencepost.token', true), '');
BEGIN
  IF given IS NULL THEN RETURN NULL; END IF;
  IF strpos(given, '=') > 0 THEN
    IF left(given, length(tab) + 1) <> tab || '=' THEN RETURN NULL; END IF;
    given := substr(given, length(tab) + 2);
  END IF;
  IF given !~ '^[1-9][0-9]{0,18}$' OR given::numeric > 9223372036854775807 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('malformed fence token %L', given),
      HINT = 'A token is a positive integer of at most 9223372036854775807: SET LOCAL fencepost.token = ''36''';
  END IF;
  RETURN given::bigint;
END $$;
-- next
CREATE FUNCTION fencepost.refuse(resource text, token bigint, mark bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF token IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'FP428',
      MESSAGE = format('%s is protected: a write needs a fence token', resource),
      DETAIL = json_build_object('resource', resource)::text,
      HINT = 'In the same transaction: SET LOCAL fencepost.token = ''36'' with the token that the lock service gave.';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'FP409',
    MESSAGE = format('%s token %s for %s: its mark is %s',
                     CASE WHEN token = mark THEN 'spent' ELSE 'stale' END, token, resource, mark),
    DETAIL = json_build_object('resource', resource, 'presented', token::text, 'mark', mark::text)::text,
    HINT = CASE WHEN token = mark
      THEN 'Under the rule strict each token writes a resource once: mint another one.'
      ELSE 'Somebody with a newer token has written since. Do not retry: acquire the lock anew and read again.' END;
END $$;
-- next
-- Did this transaction write the row version? One transaction is one operation (R1), so that an ORM that flushes a row
-- twice under one SET LOCAL is not refused its own token. A version that we can see and whose writer is in progress is
-- ours; a savepoint's number differs from the transaction's, so equality would not do. Asked only where token = mark.
CREATE FUNCTION fencepost.ours(writer xid) RETURNS boolean LANGUAGE plpgsql
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
-- next
-- UPDATE, everything but the plain case: the mark to store, or an exception. A negative value is a token said out loud:
-- -36 never stands in a row, so an ORM that echoes the column does not pass for a holder.
CREATE FUNCTION fencepost.judge_update(tab text, resource text, rule text, old_mark bigint, new_mark bigint,
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
  token := CASE WHEN new_mark < 0 THEN - new_mark
                ELSE coalesce(fencepost.given(tab), nullif(new_mark, old_mark)) END;
  IF token IS NULL
     OR NOT (old_mark < token OR old_mark = token AND (rule = 'epoch' OR fencepost.ours(writer))) THEN
    PERFORM fencepost.refuse(resource, token, old_mark);
  END IF;
  RETURN token;
END $$;
-- next
-- The upsert that R6 stands on: NULL when accepted, else the mark that refused. DO UPDATE waits for and locks the
-- mark's latest version even where its WHERE is false, so the second read is exact.
CREATE FUNCTION fencepost.raise_mark(p_resource text, p_token bigint, p_rule text, p_row_absent boolean) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  refused_by bigint;
BEGIN
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  VALUES (p_resource, p_token, pg_current_xact_id(), p_row_absent)
  ON CONFLICT (resource) DO UPDATE
     SET last_fence_token = excluded.last_fence_token, xid = excluded.xid,
         row_absent = excluded.row_absent, changed_at = clock_timestamp()
   WHERE k.last_fence_token < excluded.last_fence_token
      OR k.last_fence_token = excluded.last_fence_token AND (p_rule = 'epoch' OR k.xid = excluded.xid);
  IF FOUND THEN RETURN NULL; END IF;
  SELECT k.last_fence_token INTO STRICT refused_by FROM fencepost.marks k WHERE k.resource = p_resource;
  RETURN refused_by;
END $$;
-- next
-- AFTER INSERT: the unique index entry is ours, so every DELETE of this key is over. Judge by the mark in its latest
-- version, and then by the floor, in a statement of its own: a floor read before the wait could be too old.
CREATE FUNCTION fencepost.judge_insert(tab text, p_resource text, p_token bigint, p_rule text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  refused_by bigint := fencepost.raise_mark(p_resource, p_token, p_rule, false);
BEGIN
  IF refused_by IS NOT NULL THEN PERFORM fencepost.refuse(p_resource, p_token, refused_by); END IF;
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT f.floor INTO refused_by FROM fencepost.floors f WHERE f.name = tab;
  ELSE  -- an old snapshot must fail (40001), not read an old floor
    SELECT f.floor INTO refused_by FROM fencepost.floors f WHERE f.name = tab FOR SHARE;
  END IF;
  IF NOT (refused_by < p_token OR refused_by = p_token AND p_rule = 'epoch') THEN
    PERFORM fencepost.refuse(p_resource, p_token, refused_by);
  END IF;
END $$;
-- next
-- AFTER DELETE: the row's lock is ours, so its last version judges. Leaves the mark behind, and returns the token.
CREATE FUNCTION fencepost.judge_delete(tab text, p_resource text, old_mark bigint, p_rule text, writer xid) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  token bigint := fencepost.given(tab);
BEGIN
  IF token IS NULL
     OR NOT (old_mark < token OR old_mark = token AND (p_rule = 'epoch' OR fencepost.ours(writer))) THEN
    PERFORM fencepost.refuse(p_resource, token, old_mark);
  END IF;
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  VALUES (p_resource, token, pg_current_xact_id(), true)
  ON CONFLICT (resource) DO UPDATE
     SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), xid = excluded.xid,
         row_absent = true, changed_at = clock_timestamp();
  RETURN token;
END $$;
-- next
CREATE FUNCTION fencepost.no_truncate() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP428',
    MESSAGE = format('%I.%I is protected: TRUNCATE would forget its marks', TG_TABLE_SCHEMA, TG_TABLE_NAME),
    HINT = 'DELETE the rows with a token, or `fencepost unprotect` the table first.';
END $$;
-- next
-- Somebody's BEFORE trigger kept a write from happening that the fence had let pass. Undo what else it did: an answer
-- that is no success must have no effect.
CREATE FUNCTION fencepost.suppressed(tab text) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP403', MESSAGE = format('a trigger or rule of %s suppressed the write', tab),
    HINT = 'A BEFORE trigger that returns NULL, or a rule, keeps rows from being written through Fencepost.';
END $$;
-- next
-- Raised by statements that were written for another table than the one which has the name now.
CREATE FUNCTION fencepost.outdated(tab text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP000', MESSAGE = format('%s is not the table that was protected', tab);
END $$;
-- next
-- The floor of a table, NULL where nothing was ever pruned.
CREATE FUNCTION fencepost.floor_of(tab text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT nullif(f.floor, 0) FROM fencepost.floors f WHERE f.name = tab $$;
-- next
-- R5: the mark of a key that has no row (deleted, or claimed before it existed), or the floor below which such marks
-- were forgotten. NULL: neither.
CREATE FUNCTION fencepost.mark_without_row(tab text, p_resource text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT greatest((SELECT k.last_fence_token FROM fencepost.marks k WHERE k.resource = p_resource AND k.row_absent),
                   fencepost.floor_of(tab)) $$;
-- next
-- What is recorded of a resource apart from its row: for GET /v1/fences.
CREATE FUNCTION fencepost.mark_record(p_resource text)
RETURNS TABLE (last_fence_token bigint, row_absent boolean, changed_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT k.last_fence_token, k.row_absent, k.changed_at FROM fencepost.marks k WHERE k.resource = p_resource $$;
-- next
-- Forget marks of deleted rows, safely: the floor rises with it and refuses whatever they would have refused. Whoever
-- calls this vouches that no live holder has a token at or below the floor, and that tokens are ordered across all
-- resources of the table (R6).
CREATE FUNCTION fencepost.prune(tab text, p_floor bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  pruned bigint;
BEGIN
  UPDATE fencepost.floors f SET floor = greatest(f.floor, p_floor) WHERE f.name = tab;
  IF NOT FOUND THEN RAISE EXCEPTION 'no table % was ever protected', tab; END IF;
  DELETE FROM fencepost.marks k
   WHERE starts_with(k.resource, fencepost.enc(tab) || '/') AND k.row_absent AND k.last_fence_token <= p_floor;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END $$;
-- next
-- A type that comes down to one of PostgreSQL's own, whose casts nobody but a superuser can make. Functions that run in
-- our name ask it of a table's columns before they read them: its owner may have changed their types since, and defined
-- what a cast to text does.
CREATE FUNCTION fencepost.is_builtin(p_type oid) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  below oid;
BEGIN
  LOOP
    SELECT t.typbasetype INTO below FROM pg_type t WHERE t.oid = p_type AND t.typtype = 'd';
    EXIT WHEN NOT FOUND;
    p_type := below;
  END LOOP;
  RETURN p_type < 16384;  -- FirstNormalObjectId
END $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.raise_mark(text, bigint, text, boolean),
  fencepost.judge_insert(text, text, bigint, text), fencepost.judge_delete(text, text, bigint, text, xid),
  fencepost.mark_without_row(text, text), fencepost.mark_record(text), fencepost.floor_of(text), fencepost.prune(text, bigint) FROM PUBLIC;
-- next
GRANT USAGE ON SCHEMA fencepost TO PUBLIC;
