-- What the gateway asks while a caller's role is on. A request of a caller runs as the caller's role (SET ROLE), so that
-- grants and policies judge it, and web roles may execute none of the functions that know marks, or write them. Each of
-- these functions lets the gateway do it all the same, in the middle of that statement or transaction: it runs as the
-- schema's owner, and looks at session_user, the role that logged in, which SET ROLE does not change. That one needs the
-- privilege for the function itself. So a web role that logs in, or any other, gets nothing by it.
--
-- Switching the role off and on again instead would be two statements more, and could not be done inside of a statement.
--
-- Code of a table's owner (a trigger, a policy) that runs in the gateway's session could always call what the gateway
-- may: it can call these too. See docs/roles.md.

-- Raised with SCHEMA fencepost: the operator's error, and not the caller's (postgres/errors.py).
CREATE FUNCTION fencepost.require_gateway(p_function text) RETURNS void LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT has_function_privilege(session_user, p_function, 'EXECUTE') THEN
    RAISE EXCEPTION USING ERRCODE = '42501', SCHEMA = 'fencepost',
      MESSAGE = format('permission denied for function %s: %s is not a gateway''s login', p_function, session_user),
      HINT = format('`fencepost migrate --gateway-role %s` grants a gateway what it needs.', session_user);
  END IF;
END $$;

-- Whether a role may write to a table at all: what PostgreSQL wants of a statement before it looks at any row.
CREATE FUNCTION fencepost.may_write(p_role text, p_table oid) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT has_schema_privilege(p_role, c.relnamespace, 'USAGE')
     AND (has_table_privilege(p_role, c.oid, 'DELETE') OR has_any_column_privilege(p_role, c.oid, 'INSERT, UPDATE'))
    FROM pg_class c WHERE c.oid = p_table $$;

-- A scope's mark is raised only for who may write to a table of the scope: no statement on a table has been judged yet.
-- A caller without a role is the gateway itself. Raised with TABLE: the caller's lack, of the statement as a whole.
CREATE FUNCTION fencepost.require_writer(p_prefix text) RETURNS void LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  who text := current_setting('role');
BEGIN
  IF who = 'none' OR EXISTS (SELECT FROM fencepost.protected p WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix
                                AND fencepost.may_write(who, p.relation)) THEN
    RETURN;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '42501', TABLE = p_prefix,
    MESSAGE = format('permission denied for scope %s: %s may write to none of its tables', p_prefix, who);
END $$;

CREATE FUNCTION fencepost.gateway_mark_without_row(tab text, p_resource text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.mark_without_row(text,text)');
  RETURN fencepost.mark_without_row(tab, p_resource);
END $$;

CREATE FUNCTION fencepost.gateway_mark_record(p_resource text)
RETURNS TABLE (last_fence_token bigint, row_absent boolean, changed_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.mark_record(text)');
  RETURN QUERY SELECT * FROM fencepost.mark_record(p_resource);
END $$;

CREATE FUNCTION fencepost.gateway_is_taken(p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.is_taken(text)');
  RETURN fencepost.is_taken(p_name);
END $$;

CREATE FUNCTION fencepost.gateway_floor_of(tab text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.floor_of(text)');
  RETURN fencepost.floor_of(tab);
END $$;

-- Of an absent key, whose table the claim's UPDATE has just been let write to.
CREATE FUNCTION fencepost.gateway_raise_mark(p_resource text, p_token bigint, p_rule text, p_row_absent boolean) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.raise_mark(text,bigint,text,boolean)');
  RETURN fencepost.raise_mark(p_resource, p_token, p_rule, p_row_absent);
END $$;

CREATE FUNCTION fencepost.gateway_meet_ceiling(tab text, p_resource text, p_token bigint, p_max_token bigint, p_max_jump bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.meet_ceiling(text,text,bigint,bigint,bigint)');
  PERFORM fencepost.meet_ceiling(tab, p_resource, p_token, p_max_token, p_max_jump);
END $$;

CREATE FUNCTION fencepost.gateway_enter(p_prefix text, p_scopes text[], p_token bigint, p_table oid, p_template text)
RETURNS TABLE (scope text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.enter(text,text[],bigint,oid,text)');
  PERFORM fencepost.require_writer(p_prefix);
  RETURN QUERY SELECT * FROM fencepost.enter(p_prefix, p_scopes, p_token, p_table, p_template);
END $$;

CREATE FUNCTION fencepost.gateway_enter_each(p_prefix text, p_scopes text[], p_tokens bigint[], p_table oid, p_template text)
RETURNS TABLE (number integer, scope text, verdict text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.enter_each(text,text[],bigint[],oid,text)');
  PERFORM fencepost.require_writer(p_prefix);
  RETURN QUERY SELECT * FROM fencepost.enter_each(p_prefix, p_scopes, p_tokens, p_table, p_template);
END $$;

CREATE FUNCTION fencepost.gateway_idem_begin(p_caller text, p_key text, p_hash bytea,
                                             OUT state text, OUT outcome json, OUT rows text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.idem_begin(text,text,bytea)');
  SELECT * INTO state, outcome, rows FROM fencepost.idem_begin(p_caller, p_key, p_hash);
END $$;

CREATE FUNCTION fencepost.gateway_idem_begin_each(p_caller text, p_keys text[], p_hashes bytea[])
RETURNS TABLE (number integer, state text, outcome json, rows text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.idem_begin_each(text,text[],bytea[])');
  RETURN QUERY SELECT * FROM fencepost.idem_begin_each(p_caller, p_keys, p_hashes);
END $$;

CREATE FUNCTION fencepost.gateway_idem_record(p_caller text, p_key text, p_hash bytea, p_outcome json, p_rows text,
                                              p_owner text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.idem_record(text,text,bytea,json,text,text)');
  PERFORM fencepost.idem_record(p_caller, p_key, p_hash, p_outcome, p_rows, p_owner);
END $$;

CREATE FUNCTION fencepost.gateway_idem_record_each(p_callers text[], p_keys text[], p_hashes bytea[], p_outcomes json[],
                                                   p_rows text[], p_owners text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.require_gateway('fencepost.idem_record_each(text[],text[],bytea[],json[],text[],text[])');
  PERFORM fencepost.idem_record_each(p_callers, p_keys, p_hashes, p_outcomes, p_rows, p_owners);
END $$;
