-- Break-glass (R14): how an operator writes without a token, and how that is recorded. In the transaction of the write:
-- SET LOCAL fencepost.break_glass = 'why'. Who may do it is who may execute fencepost.may_break_glass().
--
-- A record is made in the transaction of the write: one that is undone leaves none. No mark falls: the row keeps its mark.

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

COMMENT ON TABLE fencepost.break_glass_log IS 'Writes without a token by operators (R14): one record per transaction, table, verb, reason and statement (digest is of these two); resource is the first that was written; of reason and statement the first 2,000 characters are kept; at is when the transaction began. In the transaction of the write: a write that is undone leaves none. The verb RESET: an operator lowered the mark of a resource, or a floor, from old_mark to new_mark.';

CREATE FUNCTION fencepost.append_only() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('%I.%I is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME);
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON fencepost.break_glass_log
  FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

-- It is never called: a role with the privilege to call it may break the glass. The owner of this schema grants it; a role's name
-- would not do, for a role that may create roles could make one of that name.
CREATE FUNCTION fencepost.may_break_glass() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;

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
      HINT = format('Write with a token: SET LOCAL fencepost.token = ''<token>''. Or ask %s for: GRANT EXECUTE ON FUNCTION'
        ' fencepost.may_break_glass() TO %I',
        (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'fencepost'), session_user);
  END IF;
  IF length(regexp_replace(reason, '[[:space:]]', '', 'g')) < 3 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('%L is no reason to break the glass: one has three characters or more that are not blanks', reason),
      HINT = 'It is recorded for those who come after you: SET LOCAL fencepost.break_glass = ''INC-123: what happened''';
  END IF;
  RETURN true;
END $$;

-- Record a write that the broken glass let through. A role that may not break it cannot record anything either.
CREATE FUNCTION fencepost.record_break_glass(tab text, p_resource text, p_verb text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fencepost.break_glass() THEN RETURN; END IF;
  IF pg_trigger_depth() = 0 THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'only triggers record what was written behind broken glass';
  END IF;
  INSERT INTO fencepost.break_glass_log (name, verb, resource, reason, query, digest)
  VALUES (tab, p_verb, p_resource, left(current_setting('fencepost.break_glass'), 2000), left(current_query(), 2000),
          sha256(convert_to(concat_ws(E'\n', current_setting('fencepost.break_glass'), current_query()), 'UTF8')))
  ON CONFLICT (xid, at, name, verb, digest) DO NOTHING;
END $$;

-- The mark of a row that is inserted behind broken glass: that of its key, which does not fall, or the token that was
-- given, if that is higher; 0 for a key that was not written through a fence. NULL when the glass is whole.
CREATE FUNCTION fencepost.mark_behind_glass(tab text, p_resource text, given bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fencepost.break_glass() THEN RETURN NULL; END IF;
  RETURN greatest(given, fencepost.mark_without_row(tab, p_resource), 0);
END $$;
