-- Direct SQL (R14): how the protection is broken, and how that is recorded. Statements are separated by "-- next".

ALTER TABLE fencepost.protected ADD COLUMN scope text, ADD COLUMN requires_key boolean NOT NULL DEFAULT false;
-- next
CREATE TABLE fencepost.break_glass_log (
  xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
  name        text COLLATE "C" NOT NULL,
  verb        text NOT NULL,
  resource    text COLLATE "C" NOT NULL,
  reason      text NOT NULL,
  at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  login       text NOT NULL DEFAULT session_user,
  role        text NOT NULL DEFAULT current_setting('role'),
  application text NOT NULL DEFAULT current_setting('application_name'),
  client      inet DEFAULT inet_client_addr(),
  query       text,
  CONSTRAINT break_glass_log_pkey PRIMARY KEY (xid, name, verb)
);
-- next
COMMENT ON TABLE fencepost.break_glass_log IS 'Writes without a token by operators (R14): one record per transaction, table and verb; resource is the first that was written. In the transaction of the write: a write that is undone leaves none.';
-- next
-- Is the protection broken in this session? By SET LOCAL fencepost.break_glass = 'why', for members of one role:
-- fencepost_breakglass where it exists, else the role that owns this schema.
CREATE FUNCTION fencepost.break_glass() RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  reason text := current_setting('fencepost.break_glass', true);
  keeper name;
BEGIN
  IF reason IS NULL OR reason = '' THEN RETURN false; END IF;
  keeper := coalesce((SELECT r.rolname FROM pg_roles r WHERE r.rolname = 'fencepost_breakglass'),
                     (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'fencepost'));
  IF NOT pg_has_role(session_user, keeper, 'MEMBER') THEN
    RAISE EXCEPTION USING ERRCODE = '42501',
      MESSAGE = format('%s may not break the glass: fencepost.break_glass is set', session_user),
      DETAIL = format('That is for members of the role %s.', keeper),
      HINT = format('GRANT %I TO %I, or write with a token: SET LOCAL fencepost.token = ''36''', keeper, session_user);
  END IF;
  IF length(btrim(reason)) < 3 THEN
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
  INSERT INTO fencepost.break_glass_log (name, verb, resource, reason, query)
  VALUES (tab, p_verb, p_resource, current_setting('fencepost.break_glass'), current_query())
  ON CONFLICT (xid, name, verb) DO NOTHING;
END $$;
-- next
-- The mark of a row that is inserted without a token: that of its key, which does not fall; NULL when the glass is
-- whole. At least 1, so that a claim of the same key meets a mark, and then sees the row.
CREATE FUNCTION fencepost.mark_behind_glass(tab text, p_resource text) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fencepost.break_glass() THEN RETURN NULL; END IF;
  PERFORM fencepost.record_break_glass(tab, p_resource, 'INSERT');
  RETURN greatest(fencepost.mark_without_row(tab, p_resource), 1);
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
-- As in 0001, and behind broken glass the highest of what is there and what was said.
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
  IF fencepost.break_glass() THEN
    PERFORM fencepost.record_break_glass(tab, resource, 'UPDATE');
    RETURN greatest(old_mark, abs(new_mark), fencepost.given(tab));
  END IF;
  token := CASE WHEN new_mark < 0 THEN - new_mark
                ELSE coalesce(fencepost.given(tab), nullif(new_mark, old_mark)) END;
  IF token IS NULL
     OR NOT (old_mark < token OR old_mark = token AND (rule = 'lease' OR fencepost.ours(writer))) THEN
    PERFORM fencepost.refuse(resource, token, old_mark);
  END IF;
  RETURN token;
END $$;
-- next
-- As in 0001. Behind broken glass the token may be the mark itself, but not below it.
CREATE OR REPLACE FUNCTION fencepost.judge_insert(tab text, p_resource text, p_token bigint, p_rule text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule text := CASE WHEN fencepost.break_glass() THEN 'lease' ELSE p_rule END;
  refused_by bigint := fencepost.raise_mark(p_resource, p_token, rule, false);
BEGIN
  IF refused_by IS NOT NULL THEN PERFORM fencepost.refuse(p_resource, p_token, refused_by); END IF;
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT f.floor INTO refused_by FROM fencepost.floors f WHERE f.name = tab;
  ELSE  -- an old snapshot must fail (40001), not read an old floor
    SELECT f.floor INTO refused_by FROM fencepost.floors f WHERE f.name = tab FOR SHARE;
  END IF;
  IF NOT (refused_by < p_token OR refused_by = p_token AND rule = 'lease') THEN
    PERFORM fencepost.refuse(p_resource, p_token, refused_by);
  END IF;
END $$;
-- next
-- As in 0001. Behind broken glass the row's own mark stays behind (none, if it was never written through a fence).
CREATE OR REPLACE FUNCTION fencepost.judge_delete(tab text, p_resource text, old_mark bigint, p_rule text, writer xid)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  token bigint := fencepost.given(tab);
BEGIN
  IF fencepost.break_glass() THEN
    PERFORM fencepost.record_break_glass(tab, p_resource, 'DELETE');
    token := greatest(old_mark, token);
    IF token = 0 THEN
      UPDATE fencepost.marks k SET row_absent = true WHERE k.resource = p_resource;
      RETURN;
    END IF;
  ELSIF token IS NULL
     OR NOT (old_mark < token OR old_mark = token AND (p_rule = 'lease' OR fencepost.ours(writer))) THEN
    PERFORM fencepost.refuse(p_resource, token, old_mark);
  END IF;
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  VALUES (p_resource, token, pg_current_xact_id(), true)
  ON CONFLICT (resource) DO UPDATE
     SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), xid = excluded.xid,
         row_absent = true, changed_at = clock_timestamp();
END $$;
