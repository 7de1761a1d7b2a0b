-- Protect and unprotect a table: plan everything, then change everything in one short transaction.
--
-- `fencepost.protect_plan` gives the statements, which `fencepost protect --sql` prints, and `fencepost.protect` runs them. Adding the column
-- changes the catalog only (a constant default is not written into old rows), so the table's strongest lock is held for milliseconds.
-- It is asked for with a short lock_timeout: a lock request that waits would make every later reader of the table wait behind it. Who
-- gets lock_not_available or deadlock_detected tries again, as the command does.
--
-- All of it runs as the role that calls: a member of the roles that own the table and the schema fencepost.

-- The triggers of a table's rows, by its functions: after all others, so that they judge what is really written.
CREATE FUNCTION fencepost.trigger_statements(p fencepost.protected) RETURNS text[] LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  tab text := fencepost.sql_name(p.relation);
  made text[];
BEGIN
  IF p.scope IS NULL THEN
    made := ARRAY['upd BEFORE UPDATE', 'ins BEFORE INSERT', 'insmark AFTER INSERT', 'del AFTER DELETE'];
  ELSE
    -- Once before and, where the row has a new scope, once after: a trigger that fires after our first may have changed it.
    made := ARRAY['scope BEFORE INSERT OR UPDATE OR DELETE', 'scope_ins AFTER INSERT', 'scope_upd AFTER UPDATE'];
  END IF;
  RETURN ARRAY(
    SELECT format('CREATE OR REPLACE TRIGGER zzz_fencepost_%s %s ON %s FOR EACH ROW%s EXECUTE FUNCTION %s()', part, event, tab, CASE part
             WHEN 'ins' THEN ' WHEN ((pg_catalog.current_setting(''fencepost.token'', true) OPERATOR(pg_catalog.<>) '''') OR NEW.last_fence_token'
               ' IS NULL OR NEW.last_fence_token OPERATOR(pg_catalog.<=) 0)'
             -- The condition also keeps the columns from getting another type, with other texts for equal values.
             WHEN 'scope_upd' THEN format(' WHEN (%s)', (SELECT string_agg(format('NEW.%1$s IS DISTINCT FROM OLD.%1$s', fencepost.quoted(c)),
               ' OR ' ORDER BY k.n) FROM unnest(fencepost.scope_columns(p.scope)) WITH ORDINALITY k(c, n))) ELSE '' END,
             fencepost.part_name(p.functions, CASE WHEN p.scope IS NULL THEN part ELSE 'scope' END))
      FROM unnest(made) WITH ORDINALITY AS m(text, n)
     CROSS JOIN LATERAL (SELECT split_part(m.text, ' ', 1), substr(m.text, strpos(m.text, ' ') + 1)) AS t(part, event) ORDER BY m.n)
    -- No partition has these by inheritance. Anew each time: one that is older than the partition's other triggers says that the partition
    -- has been away (fencepost.partitions_unknown).
    || fencepost.drop_triggers(p.relation, NULL)
    || ARRAY(SELECT format('CREATE TRIGGER zzz_fencepost_trunc BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencepost.no_truncate()',
                           fencepost.sql_name(t.relid)) FROM fencepost.with_partitions(p.relation) t)
    || ARRAY(SELECT fencepost.work_trigger(t.relid) FROM fencepost.with_partitions(p.relation) t WHERE p.work);
END $$;

-- A table and its partitions, the table first.
CREATE FUNCTION fencepost.with_partitions(p_table oid) RETURNS TABLE (relid oid) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT p_table UNION ALL SELECT u.part::oid FROM unnest(fencepost.partitions_of(p_table)) AS u(part) $$;

-- The triggers of a table and its partitions for which no owner can vouch that they see their own row only: of a statement, and deferrable
-- ones. The fence's are none of them.
CREATE FUNCTION fencepost.triggers_of_others(p_table oid, OUT of_statements text[], OUT deferred text[]) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT array_agg(DISTINCT t.tgname::text ORDER BY t.tgname::text) FILTER (WHERE t.tgtype & 1 = 0),
         array_agg(DISTINCT t.tgname::text ORDER BY t.tgname::text) FILTER (WHERE t.tgdeferrable)
    FROM pg_trigger t JOIN fencepost.with_partitions(p_table) u ON u.relid = t.tgrelid
   WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 28 <> 0 AND NOT starts_with(t.tgname, 'zzz_fencepost_') $$;

-- Drop some of a table's triggers; null: those of statements, on its partitions as well, which refuse TRUNCATE and tell workers of rows.
CREATE FUNCTION fencepost.drop_triggers(p_table oid, p_parts text[]) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(format('DROP TRIGGER IF EXISTS zzz_fencepost_%s ON %s', d.part, fencepost.sql_name(d.tab))), '{}')
    FROM (SELECT p_table, unnest(p_parts)
          UNION ALL SELECT t.relid, u.part FROM fencepost.with_partitions(p_table) t CROSS JOIN unnest(ARRAY['trunc', 'work']) u(part)
                     WHERE p_parts IS NULL AND (u.part = 'trunc' OR fencepost.tells_of_work(t.relid))) AS d(tab, part) $$;

-- Drop a table's functions, but for those that p_but has. Their triggers must be gone, or point at others.
CREATE FUNCTION fencepost.drop_functions(p_stem text, p_but fencepost.protected DEFAULT NULL) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT array_agg('DROP FUNCTION IF EXISTS ' || fencepost.part_name(p_stem, f.part))
    FROM (VALUES ('upd', false), ('ins', false), ('insmark', false), ('del', false), ('delete', false), ('name', false), ('key', false),
                 ('scope', true), ('of', true)) AS f(part, scoped)
   WHERE p_but.functions IS DISTINCT FROM p_stem OR f.scoped <> (p_but.scope IS NOT NULL) $$;

-- Make a table's functions: first those that are bound to its columns.
CREATE FUNCTION fencepost.function_statements(p fencepost.protected) RETURNS text[] LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  tab text := fencepost.sql_name(p.relation);
  bound text[] := CASE WHEN p.scope IS NULL THEN ARRAY['name', 'key'] ELSE ARRAY['of'] END;
  now_bound text;
  statements text[];
  judging text;
  for_all text;
  given text;
BEGIN
  SELECT array_agg(f.making), string_agg(fencepost.part_name(p.functions, f.part) || '()', ', ') FILTER (WHERE f.part <> 'delete'),
         string_agg(quote_literal(fencepost.part_name(p.functions, f.part)), ', ')
    INTO statements, judging, given FROM fencepost.function_texts(p) f;
  given := (SELECT string_agg(quote_literal(fencepost.part_name(p.functions, b)), ', ') FROM unnest(bound) b) || ', ' || given;
  SELECT string_agg(fencepost.part_name(p.functions, b), ', ') INTO for_all
    FROM unnest(CASE WHEN p.scope IS NULL THEN bound || 'delete'::text ELSE bound END) b;
  IF p.scope IS NULL THEN
    -- A function that deletes by a key of other types, or gives the rows of another table. One with the present signature stays the same
    -- object: a DELETE that has found it, and waits for the table, will call it.
    statements := format('SELECT fencepost.drop_other_deletes(%L::regclass, %L, %L)', tab, p.functions || '_delete',
      format('%s(%s)', fencepost.part_name(p.functions, 'delete'), (SELECT string_agg(c.type, ', ' ORDER BY k.n) || ', bigint, text[]'
        FROM unnest(p.key_columns) WITH ORDINALITY k(name, n) JOIN fencepost.columns_of(p.relation) c ON c.name = k.name))) || statements;
    statements := ARRAY[fencepost.bound_text(p, 'name'), fencepost.bound_text(p, 'key')] || statements;
  ELSE
    now_bound := format('(SELECT pg_get_function_sqlbody(to_regprocedure(%L)))', format('%s(%s)', fencepost.part_name(p.functions, 'of'), tab));
    statements := ARRAY[format('SELECT set_config(''fencepost.bound'', coalesce(%s, ''''), true)', now_bound), fencepost.bound_text(p, 'of'),
      format('SELECT fencepost.fence_prefix(%L, %s)', fencepost.scope_prefix(p.scope), now_bound)] || statements;
  END IF;
  RETURN statements
    -- Triggers fire without this privilege; with it any role could attach a marking function to its own table.
    || format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', judging)
    || format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', for_all)
    || format('SELECT fencepost.give_functions(ARRAY[%s])', given);
END $$;

-- Lock the table, and look again: until now its owner could have put something of his own in its place, and what follows runs in the name of
-- the role that protects it.
CREATE FUNCTION fencepost.lock_statements(p fencepost.protected) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY[format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', fencepost.sql_name(p.relation)),
    format('SELECT fencepost.require_unchanged(%L::regclass, ARRAY[%s]::name[], ARRAY[%s]::regtype[], ARRAY[%s], %L)', fencepost.sql_name(p.relation),
           string_agg(quote_literal(c.name), ', ' ORDER BY k.n), string_agg(quote_literal(c.type), ', ' ORDER BY k.n),
           string_agg(c.known::text, ', ' ORDER BY k.n), p.key_columns)]
    FROM (SELECT u.name, min(u.n) FROM unnest(p.key_columns || fencepost.scope_columns(p.scope)) WITH ORDINALITY u(name, n) GROUP BY 1) k(name, n)
    JOIN fencepost.columns_of(p.relation) c ON c.name = k.name $$;

-- The last statements of a protection: the table is registered, and its tokens go on from above its marks.
CREATE FUNCTION fencepost.register_statements(p fencepost.protected, now fencepost.protected) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN now.name IS NOT NULL AND (now.functions <> p.functions OR (now.scope IS NULL) <> (p.scope IS NULL)) THEN fencepost.drop_functions(now.functions, p) ELSE '{}' END
    || format('SELECT fencepost.register(%L)', jsonb_strip_nulls(to_jsonb(p) - ARRAY['partitions', 'protected_at', 'protected_by'])
         || CASE WHEN p.on_exhausted IS NULL THEN '{}' ELSE jsonb_build_object('on_exhausted', p.on_exhausted) END)  -- its nulls are values
    || CASE WHEN p.scope IS NULL AND (now.source, now.name) = (p.source, p.name)
             AND (p.max_token IS NULL OR p.max_token >= now.max_token) THEN '{}'
       ELSE ARRAY[format('SELECT fencepost.meet_marks(%L::regclass, %L, %L)', fencepost.sql_name(p.relation), now.source,
                         now.name IS NOT NULL AND (p.scope IS NULL OR p.scope = now.scope))] END
    || 'NOTIFY fencepost, ''reload'''::text $$;

-- What takes a table out of the scope that it is in.
CREATE FUNCTION fencepost.leave_statements(now fencepost.protected, p_max_token bigint) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', fencepost.sql_name(now.relation))
    || ARRAY[format('SELECT fencepost.lock_scopes(%L)', fencepost.scope_prefix(now.scope)),
             format('SELECT fencepost.leave_scope(%L::regclass, %L)', fencepost.sql_name(now.relation), p_max_token)]
    || fencepost.drop_triggers(now.relation, ARRAY['scope', 'scope_ins', 'scope_upd'])
    || ARRAY['DROP FUNCTION IF EXISTS ' || fencepost.part_name(now.functions, 'scope'),
             'DROP FUNCTION IF EXISTS ' || fencepost.part_name(now.functions, 'of')] $$;

-- What checks the old rows of a table; null for one with a scope.
CREATE FUNCTION fencepost.validation(p fencepost.protected) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'ALTER TABLE ' || fencepost.sql_name(p.relation) || ' VALIDATE CONSTRAINT fencepost_mark' WHERE p.scope IS NULL $$;

-- The statements of `protect`, in order; each can be repeated. afterwards: it runs by itself, once the others are committed, and checks old rows
-- under a lock that lets writers pass.
CREATE FUNCTION fencepost.protect_plan(p_table regclass, p_options jsonb DEFAULT '{}') RETURNS TABLE (statement text, afterwards boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p fencepost.protected := fencepost.protection_asked(p_table, p_options);
  now fencepost.protected;
  tab text := fencepost.sql_name(p_table);
  prefix text := fencepost.scope_prefix(p.scope);
  formerly text[];
  restore text := format('SELECT fencepost.restore_marks(%L::regclass, %L)', tab, p_options ->> 'above');
  leave text[] := '{}';
  statements text[];
BEGIN
  SELECT x.* INTO now FROM fencepost.protected x WHERE x.relation = p_table;
  -- Names under which it was protected before: it was renamed while it was not, and its marks bear them.
  formerly := ARRAY(SELECT o.name FROM fencepost.floors o WHERE o.relation = p_table::oid AND o.name <> p.name
                       AND NOT EXISTS (SELECT FROM fencepost.protected x WHERE x.name = o.name OR x.relation = o.relation) ORDER BY 1);
  -- Another order of the columns is another scope.
  IF now.scope <> coalesce(p.scope, '') THEN leave := fencepost.leave_statements(now, p.max_token); END IF;
  IF p.scope IS NULL THEN
    IF strpos(p.source, ':') > 0 THEN  -- it becomes known before the table's marks are compared with its positions
      statements := ARRAY[format('SELECT fencepost.queue_register(%L, %L)', p.source, split_part(p.source, ':', 1))];
    END IF;
    statements := statements || fencepost.lock_statements(p) || restore || leave
      || format('SELECT fencepost.raise_rows(%L::regclass, %L, %L)', tab, p.name, p.max_token)
      || format('SELECT fencepost.add_mark_column(%L::regclass)', tab)
      || format('SELECT fencepost.add_mark_check(%L::regclass)', tab)
      || format('COMMENT ON COLUMN %s.last_fence_token IS %L', tab,
                'The highest fencing token that this row has accepted (Fencepost); 0: never written through a fence.')
      || format('INSERT INTO fencepost.floors (name) VALUES (%L) ON CONFLICT DO NOTHING', p.name)
      || fencepost.function_statements(p)
      -- Renamed since it was protected: marks and floor move to the new name. What another table has left under this name goes on to the
      -- name that it has now.
      || ARRAY(SELECT format('SELECT fencepost.move_marks(%L::regclass, %L, %L)', tab, old.name, p.name)
                 FROM unnest(formerly || nullif(now.name, p.name)) WITH ORDINALITY old(name, n) WHERE old.name IS NOT NULL ORDER BY old.n)
      || format('SELECT fencepost.lift_rows(%L::regclass, %L, %L)', tab, p.name, p.functions || '_name')
      || format('SELECT fencepost.take_name(%L::regclass, %L)', tab, p.name)
      || format('SELECT fencepost.require_key(%L::regclass, %L)', tab, p.name)
      || format('SELECT fencepost.take_up_marks(%L::regclass, %L, %L)', tab, p.name, p.functions || '_name');
  ELSE
    -- Nothing stale gets in by changing sides: a table that enters a scope brings the marks of its rows with it, and those of its deleted keys
    -- as the floor of the prefix.
    statements := fencepost.lock_statements(p) || restore || leave
      || format('SELECT fencepost.lock_scopes(%L)', prefix)
      || format('SELECT fencepost.require_one_rule(%L)', jsonb_strip_nulls(to_jsonb(p) - ARRAY['partitions', 'protected_at', 'protected_by']))
      || format('INSERT INTO fencepost.floors (name) VALUES (%L), (%L) ON CONFLICT DO NOTHING', p.name, prefix)
      || format('SELECT fencepost.take_name(%L::regclass, %L)', tab, p.name);
    IF (now.scope, now.name) IS DISTINCT FROM (p.scope, p.name) THEN
      statements := statements || format('SELECT fencepost.bring_marks(%L::regclass, %L, %L, %L, %L)', tab, p.key_columns, p.scope,
        ARRAY(SELECT DISTINCT n FROM unnest(formerly || p.name || now.name) n WHERE n IS NOT NULL ORDER BY n), p.max_token);
    END IF;
    statements := statements || fencepost.drop_triggers(p_table, ARRAY['upd', 'ins', 'insmark', 'del']) || fencepost.function_statements(p);
  END IF;
  RETURN QUERY SELECT s.text, false
    FROM unnest(statements || fencepost.trigger_statements(p) || fencepost.register_statements(p, now)) WITH ORDINALITY s(text, n) ORDER BY s.n;
  RETURN QUERY SELECT v, true FROM fencepost.validation(p) v WHERE v IS NOT NULL;
END $$;

-- The statements that undo `protect`. The column, its check, the marks and the floor stay: a later protect goes on from them, since a mark never
-- falls. If the table was renamed since, that will be under the name it has now.
CREATE FUNCTION fencepost.unprotect_plan(p_table regclass) RETURNS SETOF text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now fencepost.protected;
  tab text := fencepost.sql_name(p_table);
  called text := fencepost.api_name(p_table);
  readable boolean;
  reason text;
  statements text[];
BEGIN
  SELECT x.* INTO now FROM fencepost.protected x WHERE x.relation = p_table;
  reason := CASE WHEN NOT FOUND THEN 'it is not protected.' WHEN tab IS NULL THEN 'the table was dropped meanwhile.' END;
  PERFORM fencepost.refuse_protection(coalesce(now.name, called, p_table::text, 'null'), ARRAY[reason]);
  SELECT CASE
      WHEN NOT pg_has_role(c.relowner, 'USAGE') OR NOT has_table_privilege('fencepost.protected', 'DELETE')
           OR EXISTS (SELECT FROM pg_proc o WHERE o.pronamespace = f.oid AND starts_with(o.proname, now.functions || '_')
                         AND NOT pg_has_role(o.proowner, 'USAGE'))
      THEN format('it belongs to %s and the schema fencepost to %s; %s may not act as both: run this as a member of both roles.',
                  pg_get_userbyid(c.relowner), pg_get_userbyid(f.nspowner), current_user)
      WHEN row_security_active(c.oid) AND now.scope IS NULL THEN fencepost.ruled_reason(p_table) END INTO reason
    FROM pg_class c JOIN pg_namespace f ON f.nspname = 'fencepost' WHERE c.oid = p_table;
  PERFORM fencepost.refuse_protection(now.name, ARRAY[reason]);
  IF now.scope IS NOT NULL THEN
    statements := fencepost.leave_statements(now, NULL) || fencepost.drop_triggers(p_table, NULL);
  ELSE
    -- Marks of live rows are written down too, for these may be deleted while the table is unprotected: not where the key or the column has
    -- changed since. What is not written down here is the mark of a key without a row.
    readable := NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_table AND NOT a.attisdropped
                               AND a.attname = 'last_fence_token' AND a.atttypid <> 'bigint'::regtype)
      AND EXISTS (SELECT FROM pg_proc o WHERE o.pronamespace = 'fencepost'::regnamespace AND o.proname = now.functions || '_name');
    statements := ARRAY[format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', tab), format('SELECT fencepost.restore_marks(%L::regclass, NULL)', tab)]
      || fencepost.drop_triggers(p_table, ARRAY['upd', 'ins', 'insmark', 'del']) || fencepost.drop_triggers(p_table, NULL)
      || format('SELECT fencepost.write_marks_down(%L::regclass, %L, %L, %L)', tab, now.name, now.functions || '_name', readable);
    IF now.name <> called THEN
      statements := statements || format('SELECT fencepost.move_marks(%L::regclass, %L, %L)', tab, now.name, called)
        || format('SELECT fencepost.take_name(%L::regclass, %L)', tab, called);
    END IF;
    -- Whose floor and marks these are: the table may be renamed before it is protected again. Its rows have marks of their own.
    statements := statements || format('UPDATE fencepost.floors SET relation = %L::regclass::oid, covers_rows = false WHERE name = %L', tab, called);
  END IF;
  RETURN QUERY SELECT s.text FROM unnest(statements || fencepost.drop_functions(now.functions)
      || format('DELETE FROM fencepost.protected WHERE name = %L', now.name) || 'NOTIFY fencepost, ''reload'''::text)
    WITH ORDINALITY s(text, n) ORDER BY s.n;
END $$;

-- Run a plan. READ COMMITTED: what is read once the table is locked must not be older than the lock.
CREATE FUNCTION fencepost.run_plan(p_statements text[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  statement text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = '25000', MESSAGE = format('the transaction is %s. Marks are read once the table is locked, and must not be'
      ' older than the lock: use READ COMMITTED.', current_setting('transaction_isolation'));
  END IF;
  FOREACH statement IN ARRAY p_statements LOOP EXECUTE statement; END LOOP;
END $$;

-- Protect a table, or change how it is protected, in the caller's transaction, and return its protection. Can be repeated. Its old rows are
-- checked by ALTER TABLE … VALIDATE CONSTRAINT fencepost_mark, afterwards.
--
-- The timeout is half of PostgreSQL's deadlock_timeout (1 s by default). A grant that has drawn a token and waits for the table, while `protect`
-- has the table and waits for the sequence of tokens, is a deadlock: `protect` gives way before PostgreSQL looks for it and perhaps ends the
-- grant.
CREATE FUNCTION fencepost.protect(p_table regclass, p_options jsonb DEFAULT '{}') RETURNS fencepost.protected LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
  made fencepost.protected;
BEGIN
  PERFORM fencepost.run_plan(ARRAY(SELECT s.statement FROM fencepost.protect_plan(p_table, p_options) s WHERE NOT s.afterwards));
  SELECT x.* INTO made FROM fencepost.protected x WHERE x.relation = p_table;
  RETURN made;
END $$;

-- Take a table's protection away, in the caller's transaction, and return the name of its resources. Its column and marks stay for a later
-- `protect`.
CREATE FUNCTION fencepost.unprotect(p_table regclass) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
  called text := (SELECT x.name FROM fencepost.protected x WHERE x.relation = p_table);
BEGIN
  PERFORM fencepost.run_plan(ARRAY(SELECT s FROM fencepost.unprotect_plan(p_table) s));
  RETURN called;
END $$;
