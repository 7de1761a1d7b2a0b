-- What `fencepost protect` and `unprotect` do to one table, beside the DDL that is text for each (protect.sql). The table is locked
-- already. All of it runs in the name of the role that protects, a member of both owners: nothing here is SECURITY DEFINER.
--
-- Names of tables are put into statements while the search_path is pinned, and so are full. SQLSTATEs: 55000, the table or its scope
-- is not what was looked at; 54000, a mark is too high.

-- Whether the table is still the one that was looked at: until it was locked its owner could have put something of his own in its place.
-- p_key: its primary key. p_builtin: of which columns the type has to come down to one of PostgreSQL's own.
CREATE FUNCTION fencepost.require_unchanged(p_table regclass, p_columns name[], p_types regtype[], p_builtin boolean[],
                                            p_key text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p_table AND c.relkind IN ('r', 'p'))
     OR fencepost.primary_key(p_table) IS DISTINCT FROM p_key
     OR EXISTS (SELECT FROM unnest(p_columns, p_types, p_builtin) AS w(name, type, builtin) LEFT JOIN pg_attribute a
                    ON a.attrelid = p_table AND a.attname = w.name AND a.attnum > 0 AND NOT a.attisdropped
                 WHERE a.atttypid IS DISTINCT FROM w.type OR w.builtin AND NOT fencepost.is_builtin(w.type))
     OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_table AND a.attname = 'last_fence_token'
                   AND a.atttypid <> 'bigint'::regtype)
     OR EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = p_table AND k.conname = 'fencepost_mark'
                   AND NOT starts_with(pg_get_constraintdef(k.oid), 'CHECK ((last_fence_token >= 0))')) THEN
    RAISE EXCEPTION USING ERRCODE = '55000',
      MESSAGE = 'the table was changed at the same moment, or is another one: look at it, and run this again.';
  END IF;
END $$;

-- The column of the marks, where there is none: what a constant default says is not written into the rows that are there. The default of one
-- that is there becomes 0 again: another one would pass for a token. The setting fencepost.made says whether the column is new:
-- pg_attribute does not show it, for the row of a column that was there is written anew with its default.
CREATE FUNCTION fencepost.add_mark_column(p_table regclass) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('fencepost.made', (NOT EXISTS (SELECT FROM pg_attribute a
    WHERE a.attrelid = p_table AND a.attname = 'last_fence_token' AND NOT a.attisdropped))::text, true);
  EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS last_fence_token bigint NOT NULL DEFAULT 0,'
                 ' ALTER COLUMN last_fence_token SET DEFAULT 0', p_table);
END $$;

-- NOT VALID: no scan under the table's strongest lock. It is validated afterwards.
CREATE FUNCTION fencepost.add_mark_check(p_table regclass) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('ALTER TABLE %s ADD CONSTRAINT fencepost_mark CHECK (last_fence_token >= 0) NOT VALID', p_table);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- Give functions to the owner of the schema: in his name they write marks, and no other role may change them.
CREATE FUNCTION fencepost.give_functions(p_functions text[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  called text;
BEGIN
  FOREACH called IN ARRAY p_functions LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', called,
                   (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'fencepost'));
  END LOOP;
END $$;

-- Drop the functions p_name that delete by a key of other types than p_kept does, or give the rows of another table.
CREATE FUNCTION fencepost.drop_other_deletes(p_table regclass, p_name text, p_kept text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  called text;
BEGIN
  FOR called IN SELECT f.oid::regprocedure::text FROM pg_proc f
                 WHERE f.pronamespace = 'fencepost'::regnamespace AND f.proname = p_name
                   AND (f.oid IS DISTINCT FROM to_regprocedure(p_kept)::oid
                        OR f.prorettype <> (SELECT c.reltype FROM pg_class c WHERE c.oid = p_table))
  LOOP
    EXECUTE 'DROP FUNCTION ' || called;
  END LOOP;
END $$;

-- Look again once no other session can protect a table of this scope: two may have been looking at once. Tables that were dropped without
-- unprotect would count for the rule.
CREATE FUNCTION fencepost.require_one_rule(p_protection jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p fencepost.protected := jsonb_populate_record(NULL::fencepost.protected, p_protection);
  prefix text := fencepost.scope_prefix(p.scope);
BEGIN
  DELETE FROM fencepost.protected x WHERE fencepost.scope_prefix(x.scope) = prefix AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = x.relation);
  IF EXISTS (SELECT FROM fencepost.protected x WHERE fencepost.scope_prefix(x.scope) = prefix AND x.relation <> p.relation
                AND (x.rule, x.source, x.sealed, x.max_token, x.max_jump)
                    IS DISTINCT FROM (p.rule, p.source, p.sealed, p.max_token, p.max_jump)) THEN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'a table was protected with this scope and another rule,'
      ' source, seal or ceiling at the same moment.';
  END IF;
  IF EXISTS (SELECT FROM fencepost.protected x WHERE x.name = prefix) THEN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'a table with the name of this scope was protected at the'
      ' same moment.';
  END IF;
END $$;

-- Enter a table in fencepost.protected. A table of its name that was dropped without unprotect makes room.
CREATE FUNCTION fencepost.register(p_protection jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p fencepost.protected := jsonb_populate_record(NULL::fencepost.protected, p_protection);
  changes text;
BEGIN
  p.partitions := fencepost.partitions_of(p.relation);
  p.protected_at := clock_timestamp();
  p.protected_by := session_user;
  UPDATE fencepost.floors f SET relation = NULL WHERE f.relation = p.relation::oid;
  DELETE FROM fencepost.protected x WHERE x.name = p.name AND x.relation <> p.relation AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = x.relation);
  SELECT string_agg(format('%1$I = excluded.%1$I', a.attname), ', ') INTO changes FROM pg_attribute a
   WHERE a.attrelid = 'fencepost.protected'::regclass AND a.attnum > 0 AND NOT a.attisdropped
     AND a.attname NOT IN ('relation', 'protected_at', 'protected_by');
  EXECUTE format('INSERT INTO fencepost.protected SELECT ($1).* ON CONFLICT (relation) DO UPDATE SET %s', changes) USING p;
END $$;

-- Keep all writers out of a prefix's scopes until the end of the transaction.
CREATE FUNCTION fencepost.lock_scopes(p_prefix text) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$ SELECT pg_advisory_xact_lock(hashtextextended('fencepost.scope/' || p_prefix, 0)) $$;

-- The function that names a row's scope was made anew. The setting fencepost.bound has what it was before; where that is something else than
-- p_bound, the template's names mean other columns now: every scope of the prefix is fenced up to its highest mark, for none of the marks
-- may be where it belongs.
CREATE FUNCTION fencepost.fence_prefix(p_prefix text, p_bound text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('fencepost.bound') <> '' AND current_setting('fencepost.bound') <> p_bound THEN
    UPDATE fencepost.floors f SET floor = greatest(f.floor, (SELECT max(m.last_fence_token) FROM fencepost.marks m
       WHERE starts_with(m.resource, fencepost.enc(p_prefix) || '/'))) WHERE f.name = p_prefix;
  END IF;
END $$;
