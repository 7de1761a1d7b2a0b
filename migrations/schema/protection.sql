-- A table's protection is one value: a row of fencepost.protected. Here it is made of what is there and what is asked, before the table
-- is locked; all that is in the way is told at once. `fencepost protect` and fencepost.alembic ask by `fencepost.protect`, as any
-- program with a PostgreSQL driver may (docs/protect.md).
--
-- SQLSTATE 55000: the table cannot be protected, or unprotected, as it is. The message has the table's name (also by itself, as the error's
-- table) and the first reason, the detail the others.

-- Nulls among the reasons are none.
CREATE FUNCTION fencepost.refuse_protection(p_name text, p_reasons text[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  reasons text[] := array_remove(p_reasons, NULL);
BEGIN
  IF cardinality(reasons) = 1 THEN
    RAISE EXCEPTION USING ERRCODE = '55000', TABLE = p_name, MESSAGE = p_name || ': ' || reasons[1];
  ELSIF cardinality(reasons) > 1 THEN
    RAISE EXCEPTION USING ERRCODE = '55000', TABLE = p_name, MESSAGE = p_name || ': ' || reasons[1],
      DETAIL = array_to_string(reasons[2:], E'\n');
  END IF;
END $$;

-- A table by its name as the catalog spells it, with or without schema.
CREATE FUNCTION fencepost.table_called(p_name text) RETURNS regclass LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found oid[] := ARRAY(
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'pg_toast'
       AND (p_name = n.nspname || '.' || c.relname OR n.nspname = 'public' AND p_name = c.relname));
BEGIN
  IF cardinality(found) <> 1 THEN
    PERFORM fencepost.refuse_protection(p_name, ARRAY[CASE cardinality(found)
      WHEN 0 THEN 'there is no such table: names are spelled as in the catalog, schema.table or table.'
      ELSE 'two tables have this name (one has a dot in its name): rename one of them.' END]);
  END IF;
  RETURN found[1];
END $$;

-- A word as a shell takes it.
CREATE FUNCTION fencepost.shell_word(p_word text) RETURNS text LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN p_word ~ '^[A-Za-z0-9_@%+=:,./-]+$' THEN p_word ELSE '''' || replace(p_word, '''', '''"''"''') || '''' END $$;

-- What to do about a column of marks that was renamed: its check stands on it still.
CREATE FUNCTION fencepost.renamed_column_reason(p_table oid, p_called text) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('its column last_fence_token, which holds the marks of its rows, is called %s now: ALTER TABLE %s RENAME COLUMN %s TO'
                ' last_fence_token.', p_called, fencepost.sql_name(p_table), fencepost.quoted(p_called)) $$;

-- What to do where policies rule the owner too.
CREATE FUNCTION fencepost.ruled_reason(p_table oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('row security rules %s there (FORCE ROW LEVEL SECURITY), and rows that a policy hides have marks, too: run this as a role'
                ' with BYPASSRLS that is a member of %s; or ALTER TABLE %s NO FORCE ROW LEVEL SECURITY, run this, and FORCE it again.',
                current_user, pg_get_userbyid(c.relowner), fencepost.sql_name(p_table)) FROM pg_class c WHERE c.oid = p_table $$;

-- A table whose rows have lost their marks: the column was dropped, or renamed, while the table was protected. Nothing is written to such a
-- table, for its functions fail. What the marks were is not known, but what is above them: a source that is known has issued every
-- token that was accepted. Of an external one only an operator can say how far its tokens have got. All rows take that as their mark, and
-- so does the floor, for the marks of keys that nothing has asked for since may be gone as well.
CREATE FUNCTION fencepost.lost_marks_reason(p_name text) RETURNS text LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('its marks are lost: the column last_fence_token is gone. Its tokens are of an external source, so it is not known how far'
                ' they have got. When no token up to N may write to it any more, run `fencepost protect %s --above N` (in Alembic:'
                ' protect(…, above=N)). All rows, and keys without a row, then take tokens above N only.', fencepost.shell_word(p_name)) $$;

-- How a mark or a floor that is too high is mended. p_resource: as a shell takes it. p_registered: the table is protected.
CREATE FUNCTION fencepost.mend_reset(p_resource text, p_registered boolean) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('No lock service counts that far: it is made up. Lower it, and run this again:%s fencepost fence reset %s --to N --reason …,'
                ' N being the newest token that the lock service has given out.', CASE WHEN p_registered THEN '' ELSE
                ' first protect the table as it is (--source external --max-token 9223372036854775807), then' END, p_resource) $$;

-- What `fencepost protect` can be asked, with the type of its JSON. Each has the name of an option of the command.
CREATE FUNCTION fencepost.require_options(p_options jsonb) RETURNS void LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  known CONSTANT jsonb := '{"rule": "string", "source": "string", "queue": "string", "scope": "string", "verify": "boolean",
    "requires_key": "boolean", "sealed": "boolean", "triggers_see_own_row": "boolean", "max_token": "number", "max_jump": "number",
    "above": "number", "work": "boolean", "max_attempts": "number", "on_exhausted": "object"}';
  wrong text;
BEGIN
  IF jsonb_typeof(p_options) <> 'object' THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the options are a JSON object, such as {"rule": "strict", "source": "builtin"}';
  END IF;
  SELECT CASE WHEN known ->> o.key IS NULL THEN format('there is no option %s; there are %s', o.key,
                   (SELECT string_agg(k, ', ' ORDER BY k) FROM jsonb_object_keys(known) k))
              WHEN jsonb_typeof(o.value) <> known ->> o.key
              THEN format('%s is %s %s, and not %s', o.key, CASE known ->> o.key WHEN 'object' THEN 'an' ELSE 'a' END, known ->> o.key, o.value)
              WHEN known ->> o.key = 'number' AND o.value::text !~ '^-?[0-9]+$' THEN format('%s is a whole number, and not %s', o.key, o.value)
              WHEN o.key = 'on_exhausted' AND jsonb_path_exists(o.value, 'strict $.* ? (@.type() == "object" || @.type() == "array")')
              THEN format('on_exhausted has a text, a number, true, false or null for each of its columns, and not %s', o.value)
              WHEN o.key = 'rule' AND o.value #>> '{}' NOT IN ('strict', 'epoch')
              THEN format('rule is strict or epoch, and not %s', o.value) END INTO wrong
    FROM jsonb_each(p_options) o WHERE jsonb_typeof(o.value) <> 'null' ORDER BY 1 NULLS LAST LIMIT 1;
  IF wrong IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = wrong; END IF;
END $$;

-- What is in the way of any protection of a table: one sentence where it can have no fence at all, or all that must be changed first.
-- p_of_rows: its rows are to have marks of their own.
CREATE FUNCTION fencepost.table_reasons(p_table regclass, now fencepost.protected, p_of_rows boolean) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  seen record;
  tab text := fencepost.sql_name(p_table);
  reasons text[];
  another boolean;
BEGIN
  SELECT n.nspname IN ('pg_catalog', 'information_schema', 'fencepost') AS of_system, c.relkind, c.relispartition, c.relpersistence,
         NOT pg_has_role(c.relowner, 'USAGE') AS not_owned, pg_get_userbyid(c.relowner) AS owner, row_security_active(c.oid) AS ruled,
         EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
                  WHERE i.inhparent = c.oid AND NOT child.relispartition
                     OR i.inhrelid = c.oid AND NOT c.relispartition) AS inherits,
         i.indexrelid IS NULL AS no_key, NOT i.indimmediate AS deferrable,
         (SELECT format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'last_fence_token' AND NOT a.attisdropped) AS column,
         EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = 'fencepost_mark') AS has_check,
         (SELECT a.attname::text FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid
             AND k.conkey = ARRAY[a.attnum] AND a.attname <> 'last_fence_token'
           WHERE k.conrelid = c.oid AND k.conname = 'fencepost_mark' AND k.contype = 'c') AS called,
         NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'zzz_fencepost_ins') AS no_ins,
         NOT (has_schema_privilege('fencepost', 'CREATE') AND has_table_privilege('fencepost.marks', 'INSERT')
           AND pg_has_role(f.nspowner, 'USAGE') AND pg_has_role(f.nspowner, CASE
                 WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)) AS not_keeper,
         pg_get_userbyid(f.nspowner) AS keeper,
         (SELECT string_agg(DISTINCT pg_get_userbyid(o.proowner)::text, ', ') FROM pg_proc o
           WHERE o.pronamespace = f.oid AND starts_with(o.proname, now.functions || '_')
             AND NOT pg_has_role(o.proowner, 'USAGE')) AS functions_of
    INTO seen FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_namespace f ON f.nspname = 'fencepost'
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary WHERE c.oid = p_table;
  IF NOT FOUND THEN RETURN ARRAY['the table was dropped meanwhile.']; END IF;
  reasons := array_remove(ARRAY[CASE
    WHEN seen.of_system THEN 'system tables cannot be protected.'
    WHEN seen.relkind IN ('v', 'm') THEN 'it is a view: protect the table below it; views are read only in Fencepost.'
    WHEN seen.relkind = 'f' THEN 'it is a foreign table: its rows live in another database, and that is where the fence belongs.'
    WHEN seen.relispartition THEN 'it is a partition: protect its parent, the fence covers all partitions.'
    WHEN seen.relkind NOT IN ('r', 'p') THEN 'it is no table.' END], NULL);
  IF cardinality(reasons) > 0 THEN RETURN reasons; END IF;
  -- Where a guarded table has another column than that of the last `protect`, the check stands on the old one, or went with it, and so did
  -- the trigger whose condition names it.
  another := seen.column IS NOT NULL AND now.name IS NOT NULL AND now.scope IS NULL;
  reasons := array_remove(ARRAY[
    CASE WHEN seen.relpersistence <> 'p' THEN 'it is unlogged or temporary: a crash would empty it and leave its marks behind.' END,
    CASE WHEN seen.inherits THEN 'it takes part in table inheritance, where a primary key covers one table only.' END,
    CASE WHEN seen.not_owned THEN format('it belongs to %s; %s is not a member of that role, and only an owner may.', seen.owner, current_user) END,
    CASE WHEN seen.not_keeper THEN format('the schema fencepost belongs to %s, and %s may not act as that role: run this as a member of it.',
                                       seen.keeper, current_user) END,
    CASE WHEN seen.functions_of IS NOT NULL AND NOT seen.not_keeper THEN format('its functions belong to %s: `fencepost migrate --owner %s`, run'
      ' as a superuser or a member of both roles, gives them to the schema''s owner.', seen.functions_of, seen.keeper) END,
    CASE WHEN seen.no_key THEN 'it has no primary key, and the key is what a fence is named after.' END,
    CASE WHEN seen.deferrable THEN 'its primary key is DEFERRABLE: two rows may share a key inside a transaction.' END,
    CASE WHEN seen.column IS NULL AND seen.called IS NOT NULL THEN fencepost.renamed_column_reason(p_table, seen.called) END,
    CASE WHEN another AND seen.called IS NOT NULL THEN format('its column last_fence_token is a new one: ALTER TABLE %s DROP COLUMN'
      ' last_fence_token CASCADE. %s', tab, fencepost.renamed_column_reason(p_table, seen.called)) END,
    CASE WHEN another AND seen.called IS NULL AND NOT seen.has_check AND seen.no_ins THEN format('its column last_fence_token was dropped and made'
      ' anew, and the marks of its rows are lost: ALTER TABLE %s DROP COLUMN last_fence_token CASCADE, and run this again; for an external'
      ' source with --above N.', tab) END,
    CASE WHEN seen.column <> 'bigint NOT NULL' OR seen.column IS NOT NULL AND NOT seen.has_check AND now.name IS NULL THEN format('it has a column'
      ' last_fence_token (%s) that Fencepost did not make: rename it.', seen.column) END], NULL);
  SELECT reasons || coalesce(array_agg(CASE
      WHEN c.is_other THEN format('its key column %s is of type %s, whose equal values have several texts; a key can be of %s, a domain over'
        ' one of these, or an enum.', c.name, c.type, array_to_string(fencepost.key_types(), ', '))
      WHEN c.enum_in_domain THEN format('its key column %s is of type %s, a domain over an enum, for which PostgreSQL has no operator =; use'
        ' the enum itself.', c.name, c.type)
      WHEN c.enum_called_so THEN format('its key column %s is of an enum that is called %s, like one of PostgreSQL''s own types: rename it.',
        c.name, c.base_name)
      WHEN c.nondeterministic THEN format('its key column %s has a nondeterministic collation: equal keys would have two marks.', c.name)
    END ORDER BY k.n), '{}') INTO reasons
    FROM unnest(fencepost.primary_key(p_table)) WITH ORDINALITY k(name, n) JOIN fencepost.columns_of(p_table) c ON c.name = k.name;
  IF p_of_rows THEN
    -- PostgreSQL computes such a column after the BEFORE triggers, where a row's mark is judged under its key.
    SELECT reasons || coalesce(array_agg(CASE WHEN c.generated THEN format('its key column %s is generated from other columns, and not known'
        ' when a row is judged: rows could be inserted and deleted, and never changed or claimed. Make it an ordinary column that a trigger'
        ' or a CHECK keeps right, or give the table a scope (--scope), whose mark is not named after the key.', c.name) END
        ORDER BY k.n), '{}') INTO reasons
      FROM unnest(fencepost.primary_key(p_table)) WITH ORDINALITY k(name, n) JOIN fencepost.columns_of(p_table) c ON c.name = k.name;
  END IF;
  RETURN array_remove(reasons || CASE WHEN NOT seen.not_owned AND seen.ruled AND (p_of_rows OR seen.column IS NOT NULL)
                                      THEN fencepost.ruled_reason(p_table) END
    || (SELECT format('the name %s belongs to the protected table %s, renamed since: unprotect that one first.', x.name, x.relation)
          FROM fencepost.protected x WHERE x.name = fencepost.name_of(p_table) AND x.relation <> p_table
           AND EXISTS (SELECT FROM pg_class c WHERE c.oid = x.relation)), NULL);
END $$;

-- Find the table's source (R12): what was given, what is there, or external.
CREATE FUNCTION fencepost.source_asked(p_name text, now fencepost.protected, p_options jsonb) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  source text := nullif(p_options ->> 'source', '');
  queue text := p_options ->> 'queue';
  no_scope CONSTANT text := 'a queue orders the writes of one row, and not those of a scope: their positions cannot be compared.';
  others text;
  reasons text[];
BEGIN
  IF strpos(source, ':') > 0 THEN
    PERFORM fencepost.refuse_protection(p_name, ARRAY[format('--source %s: a queue orders writes and is no lock: --queue %1$s.', source)]);
  END IF;
  IF queue IS NULL THEN
    source := coalesce(source, now.source, 'external');
    IF strpos(source, ':') > 0 AND p_options ->> 'scope' <> '' THEN PERFORM fencepost.refuse_protection(p_name, ARRAY[no_scope]); END IF;
    RETURN source;
  END IF;
  SELECT string_agg(o.option, ', ' ORDER BY o.n) INTO others FROM (VALUES
    (1, '--scope', p_options ->> 'scope' <> ''), (2, '--source', source IS NOT NULL), (3, '--verify', (p_options ->> 'verify')::boolean),
    (4, '--above', p_options ->> 'above' IS NOT NULL), (5, '--max-token', p_options ->> 'max_token' IS NOT NULL),
    (6, '--max-jump', p_options ->> 'max_jump' IS NOT NULL)) AS o(n, option, given) WHERE o.given;
  reasons := CASE
    WHEN others IS NOT NULL
    THEN ARRAY[format('--queue and %s exclude each other: its tokens are the queue''s positions.', others)]
    WHEN queue !~ '^(postgres:default|(kafka|redis):[A-Za-z0-9._-]{1,48})$'
    THEN ARRAY[format('--queue %s: a queue is postgres:default, kafka:TOPIC or redis:STREAM.', queue)]
    WHEN p_options ->> 'scope' IS NULL AND now.scope IS NOT NULL
    THEN ARRAY[no_scope, '--no-scope gives each row a mark of its own again.'] END;
  PERFORM fencepost.refuse_protection(p_name, reasons);
  RETURN queue;
END $$;

-- Refuse a source that is not known, and a protection that its tokens do not allow. p: how the table is to be protected.
CREATE FUNCTION fencepost.require_source(p fencepost.protected, p_options jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  queue CONSTANT boolean := strpos(p.source, ':') > 0;
  service fencepost.sources;
  most CONSTANT numeric := (p_options ->> 'max_token')::numeric;
  jump CONSTANT numeric := (p_options ->> 'max_jump')::numeric;
  reasons text[];
BEGIN
  SELECT s.* INTO service FROM fencepost.sources s WHERE s.name = p.source;
  reasons := CASE
    -- A queue becomes known with its table.
    WHEN queue AND p.verify THEN ARRAY[format('--verify: %s is a queue, and gives no tokens to others.', p.source)]
    WHEN NOT queue AND p.source NOT IN ('builtin', 'external') AND service.name IS NULL
    THEN ARRAY[format('there is no source %s; known are %s.', p.source, (SELECT string_agg(k.name, ', ' ORDER BY k.n, k.name)
                 FROM (SELECT 1 AS n, 'builtin' UNION ALL SELECT 2, 'external'
                       UNION ALL SELECT 3, s.name FROM fencepost.sources s WHERE strpos(s.name, ':') = 0) AS k(n, name))),
               'A gateway that has it in FENCEPOST_SOURCES makes it known, or `fencepost source add NAME=URL`.']
    WHEN p.verify AND service.name IS NOT NULL AND NOT coalesce(service.verifies, false)
    THEN ARRAY[format('--verify: %s does not know which numbers it has issued.', service.scheme)]
    WHEN p.verify AND p.source IN ('builtin', 'external')
    THEN ARRAY[format('--verify asks a lock service, and the source %s is none.', p.source)]
    WHEN p.source <> 'external' AND (most IS NOT NULL OR jump IS NOT NULL)
    THEN ARRAY[format('--max-token and --max-jump are for the source external: %s knows which tokens it has issued, and all others are'
                      ' refused.', p.source)]
    WHEN most NOT BETWEEN 1 AND 9223372036854775807 OR jump NOT BETWEEN 0 AND 9223372036854775807
    THEN ARRAY['--max-token is a token, 1 to 9223372036854775807, and --max-jump a distance of 0 (any) or more.']
    WHEN (p_options ->> 'above')::numeric > coalesce(most, p.max_token, 4611686018427387903)
    THEN ARRAY[format('--above %s is above %s, the highest token that the table takes.', p_options ->> 'above', coalesce(most, p.max_token, 4611686018427387903))]
    WHEN p.sealed AND queue
    THEN ARRAY[format('--sealed and %s exclude each other: the tokens are the queue''s positions, and no client presents any. --no-sealed'
                      ' takes a seal away.', p.source)] END;
  PERFORM fencepost.refuse_protection(p.name, reasons);
END $$;

-- What is wrong with a scope's columns in a table, which others call p_called.
CREATE FUNCTION fencepost.scope_column_reasons(p_table oid, p_called text, p_columns text[]) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(r.reason ORDER BY k.n, r.n) FILTER (WHERE r.reason IS NOT NULL), '{}')
    FROM unnest(p_columns) WITH ORDINALITY k(name, n) LEFT JOIN fencepost.columns_of(p_table) c ON c.name = k.name
   CROSS JOIN LATERAL (VALUES
     (1, CASE WHEN c.name IS NULL THEN format('the scope''s column %s is no column of %s.', k.name, p_called) END),
     (2, CASE WHEN c.is_enum THEN format('the scope''s column %s is of the enum %s: renaming one of its values would give a scope a new name,'
           ' without a mark. Let the scope have a text column, with a CHECK.', c.name, c.type) END),
     (3, CASE WHEN c.is_other THEN format('the scope''s column %s is of type %s, whose equal values have several texts; it can be of %s, or a'
           ' domain over one of these.', c.name, c.type, array_to_string(fencepost.key_types(), ', ')) END),
     (4, CASE WHEN c.nondeterministic THEN format('the scope''s column %s has a nondeterministic collation: equal scopes would have two'
           ' marks.', c.name) END),
     (5, CASE WHEN c.nullable THEN format('the scope''s column %s can be null: ALTER TABLE … ALTER COLUMN %1$s SET NOT NULL.', c.name) END),
     (6, CASE WHEN c.generated THEN format('the scope''s column %s is generated, and not known before a row is written.', c.name) END)
   ) AS r(n, reason) $$;

-- The types of a scope's columns, as far as texts go: tables of one scope may differ in types whose values have the same texts.
CREATE FUNCTION fencepost.scope_family(p_table oid, p_columns text[]) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT array_agg(CASE WHEN c.base_name IN ('int2', 'int4', 'int8') THEN 'integer' WHEN c.base_name = 'varchar' THEN 'text'
                        ELSE c.base_name END ORDER BY k.n)
    FROM unnest(p_columns) WITH ORDINALITY k(name, n) JOIN fencepost.columns_of(p_table) c ON c.name = k.name $$;

-- Check a scope against its table and its other tables (R8), and tell all that is in the way.
CREATE FUNCTION fencepost.require_scope(p fencepost.protected) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  prefix text := split_part(p.scope, '/', 1);
  columns text[] := fencepost.scope_columns(p.scope);
  again CONSTANT text := 'unprotect the others, change this one, and protect them again.';
  wrong text := CASE
    WHEN p.scope !~ '^[^/]*/[{][^{}]+[}](,[{][^{}]+[}])*$'
    THEN 'a scope is a name, a slash and columns in braces: account/{account_id}, or shelf/{region},{shelf}'
    WHEN prefix !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]*$' OR length(prefix) > 63
    THEN 'the name before the slash has 1 to 63 letters, digits, _ . or -'
    WHEN cardinality(columns) > (SELECT count(DISTINCT c) FROM unnest(columns) c) THEN 'a column is named twice' END;
  reasons text[];
BEGIN
  IF wrong IS NOT NULL THEN PERFORM fencepost.refuse_protection(p.name, ARRAY[format('scope %L: %s.', p.scope, wrong)]); END IF;
  reasons := fencepost.scope_column_reasons(p.relation, p.name, columns);
  IF EXISTS (SELECT FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND prefix = fencepost.api_name(c.oid))
     OR EXISTS (SELECT FROM fencepost.protected x WHERE x.name = prefix) THEN
    reasons := reasons || format('the scope''s name %s is that of a table: a resource name would mean two things.', prefix);
  END IF;
  SELECT reasons || coalesce(array_agg(r.reason ORDER BY x.name, r.n) FILTER (WHERE r.reason IS NOT NULL), '{}') INTO reasons
    FROM fencepost.protected x JOIN pg_class c ON c.oid = x.relation
   CROSS JOIN LATERAL (VALUES
     (1, CASE
       WHEN (x.rule, x.source) <> (p.rule, p.source)
       THEN format('%s has the same scope with the rule %s and the source %s; one mark has one rule and one source: %s', x.name, x.rule, x.source, again)
       WHEN (x.max_token, x.max_jump) IS DISTINCT FROM (p.max_token, p.max_jump)
       THEN format('%s has the same scope with --max-token %s and %s; one mark has one ceiling: %s', x.name, x.max_token,
                   coalesce('--max-jump ' || x.max_jump, 'no --max-jump'), again)
       WHEN x.sealed <> p.sealed
       THEN format('%s has the same scope %s --sealed; one mark is raised by sealed tokens only, or by all: %s', x.name,
                   CASE WHEN x.sealed THEN 'with' ELSE 'without' END, again) END),
     (2, CASE WHEN fencepost.scope_column_reasons(p.relation, p.name, columns) = '{}'
                   AND fencepost.scope_column_reasons(x.relation, p.name, fencepost.scope_columns(x.scope)) = '{}'
                   AND fencepost.scope_family(p.relation, columns)
                       IS DISTINCT FROM fencepost.scope_family(x.relation, fencepost.scope_columns(x.scope))
       THEN format('%s has the scope %s, of other types or another number of columns: equal scopes would have two names.', x.name, x.scope) END)
   ) AS r(n, reason)
   WHERE fencepost.scope_prefix(x.scope) = prefix AND x.relation <> p.relation;
  PERFORM fencepost.refuse_protection(p.name, reasons);
END $$;

-- Refuse to take an owner's word for triggers that are none of rows.
CREATE FUNCTION fencepost.require_triggers_of_rows(p fencepost.protected) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  seen record := fencepost.triggers_of_others(p.relation);
BEGIN
  PERFORM fencepost.refuse_protection(p.name, ARRAY[
    '--triggers-see-own-row is not for triggers FOR EACH STATEMENT (' || array_to_string(seen.of_statements, ', ') || '): such a trigger has no'
      ' row of its own, and fires for each try of a write, of which those in a shared transaction have more.',
    '--triggers-see-own-row is not for triggers that are DEFERRABLE (' || array_to_string(seen.deferred, ', ') || '): they may fire at the'
      ' end of the transaction, when the rows of others are written.']);
END $$;

-- Refuse to have workers take a table's rows where these have no locks, or no tokens; and what is wrong with putting rows aside.
CREATE FUNCTION fencepost.require_work(p fencepost.protected, p_options jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  most CONSTANT numeric := (p_options ->> 'max_attempts')::numeric;
  changes CONSTANT jsonb := nullif(nullif(p_options -> 'on_exhausted', 'null'), '{}');
  reasons text[];
BEGIN
  reasons := ARRAY[CASE
    WHEN p.work AND p.scope IS NOT NULL
    THEN '--work and a scope exclude each other: workers take a row by its lock, and rows of a scope have one lock together. --no-scope gives'
      ' each row a mark of its own again.'
    WHEN p.work AND strpos(p.source, ':') > 0
    THEN format('--work and %s exclude each other: its tokens are the queue''s positions, and workers write under those of the locks of rows.'
                ' --no-work takes it back.', p.source)
    WHEN p.work AND p.source NOT IN ('builtin', 'external')
    THEN format('--work: workers get tokens of the source builtin, and the table takes those of %s. --source builtin, or --no-work.', p.source)
    WHEN NOT p.work AND (most > 0 OR changes IS NOT NULL)
    THEN '--max-attempts and --on-exhausted are for tables whose rows workers take: --work.'
    WHEN most NOT BETWEEN 0 AND 1000000
    THEN format('--max-attempts %s: a row can be taken 1 to 1000000 times before it is put aside; 0 takes the bound away.', most)
    WHEN p.max_attempts IS NOT NULL AND p.on_exhausted IS NULL
    THEN '--max-attempts says when a row is put aside, and --on-exhausted what it is then, such as status=failed: give both.'
    WHEN p.max_attempts IS NULL AND p.on_exhausted IS NOT NULL
    THEN '--on-exhausted says what a row is when it is put aside, and --max-attempts after how many times of being taken: give both.' END];
  SELECT reasons || array_agg(CASE
      WHEN o.key = 'last_fence_token' THEN '--on-exhausted: last_fence_token is the row''s mark, which the fence sets.'
      WHEN a.attname IS NULL THEN format('--on-exhausted: %s is no column of the table.', o.key)
      WHEN o.key = ANY (p.key_columns) THEN format('--on-exhausted: %s is a column of the key, which names the row.', o.key)
      WHEN a.attgenerated <> '' OR a.attidentity = 'a' THEN format('--on-exhausted: %s is GENERATED ALWAYS, and cannot be set.', o.key)
      WHEN o.value = 'null' AND a.attnotnull THEN format('--on-exhausted: %s cannot be null.', o.key)
    END ORDER BY o.key) INTO reasons
    FROM jsonb_each(changes) o LEFT JOIN pg_attribute a
      ON a.attrelid = p.relation AND a.attname = o.key AND a.attnum > 0 AND NOT a.attisdropped;
  PERFORM fencepost.refuse_protection(p.name, reasons);
END $$;

-- What the API calls a table, a view or a foreign table; fencepost.name_of is of tables only.
CREATE FUNCTION fencepost.api_name(p_relation oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN n.nspname = 'public' AND strpos(c.relname, '.') = 0 THEN c.relname::text ELSE n.nspname || '.' || c.relname END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = p_relation $$;

-- How a table is to be protected: the row that fencepost.protected is to have of it. What the options do not say, or say null of, stays as
-- it is; of a new table it is strict, external, no scope, no key required, no seal, no word for its triggers, no work. Changes nothing. Raises 55000, with all that is
-- in the way, and 22023 for an option that there is not.
CREATE FUNCTION fencepost.protection_asked(p_table regclass, p_options jsonb) RETURNS fencepost.protected LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now fencepost.protected;
  p fencepost.protected;
  called CONSTANT text := coalesce(fencepost.api_name(p_table), p_table::text, 'null');
  above numeric;
  other text;
  lost boolean;
  reasons text[];
BEGIN
  PERFORM fencepost.require_options(p_options);
  above := (p_options ->> 'above')::numeric;
  SELECT x.* INTO now FROM fencepost.protected x WHERE x.relation = p_table;
  reasons := fencepost.table_reasons(p_table, now, coalesce(p_options ->> 'scope', now.scope, '') = '');
  PERFORM fencepost.refuse_protection(called, reasons);
  SELECT x.name INTO other FROM fencepost.protected x WHERE fencepost.scope_prefix(x.scope) = called LIMIT 1;
  IF FOUND THEN
    PERFORM fencepost.refuse_protection(called, ARRAY[format('its name is that of a scope, %s/…, of the table %s: rename one of them.', called, other)]);
  END IF;
  lost := now.name IS NOT NULL AND now.scope IS NULL AND now.source = 'external' AND NOT EXISTS (
    SELECT FROM pg_attribute a WHERE a.attrelid = p_table AND a.attname = 'last_fence_token' AND NOT a.attisdropped);
  reasons := CASE
    WHEN lost AND above IS NULL THEN ARRAY[fencepost.lost_marks_reason(called)]
    WHEN above IS NOT NULL AND NOT lost THEN ARRAY['--above N is for a table of an external source that is protected and has lost its'
      ' column last_fence_token; this one has not.']
    WHEN above NOT BETWEEN 1 AND 4611686018427387904
    THEN ARRAY[format('--above %s: a token is a positive number, of at most 2^62 here.', above)] END;
  PERFORM fencepost.refuse_protection(called, reasons);
  p := now;
  p.relation := p_table;
  p.name := called;
  p.key_columns := fencepost.primary_key(p_table);
  p.functions := fencepost.stem_of(p_table);
  p.rule := coalesce(p_options ->> 'rule', now.rule, 'strict');
  p.source := fencepost.source_asked(called, now, p_options);
  p.scope := nullif(coalesce(p_options ->> 'scope', now.scope), '');
  p.requires_key := coalesce((p_options ->> 'requires_key')::boolean, now.requires_key, false);
  p.sealed := coalesce((p_options ->> 'sealed')::boolean, now.sealed, false);
  p.verify := coalesce((p_options ->> 'verify')::boolean, now.verify AND now.source = p.source, false);
  PERFORM fencepost.require_source(p, p_options);
  p.max_token := CASE p.source WHEN 'external' THEN coalesce((p_options ->> 'max_token')::bigint, now.max_token, 4611686018427387903) END;
  p.max_jump := CASE p.source WHEN 'external' THEN nullif(coalesce((p_options ->> 'max_jump')::bigint, now.max_jump), 0) END;
  IF p.scope IS NOT NULL THEN PERFORM fencepost.require_scope(p); END IF;
  p.triggers_see_own_row := coalesce((p_options ->> 'triggers_see_own_row')::boolean, now.triggers_see_own_row, false);
  IF p.triggers_see_own_row AND p.scope IS NOT NULL THEN
    PERFORM fencepost.refuse_protection(called, ARRAY['--triggers-see-own-row and a scope exclude each other: who enters a scope enters it for the'
      ' whole transaction, and a trigger could take a row into one that another write has entered. --no-triggers-see-own-row, or --no-scope.']);
  END IF;
  IF (p_options ->> 'triggers_see_own_row')::boolean THEN PERFORM fencepost.require_triggers_of_rows(p); END IF;
  -- A scope takes it away, unless both are asked for. So does --no-work what there is of attempts, and each of these the other one.
  p.work := coalesce((p_options ->> 'work')::boolean, now.work AND p.scope IS NULL, false);
  p.max_attempts := CASE WHEN (p_options ->> 'max_attempts')::numeric BETWEEN 1 AND 1000000 THEN (p_options ->> 'max_attempts')::integer
                         WHEN p.work AND p_options ->> 'max_attempts' IS NULL AND p_options -> 'on_exhausted' IS DISTINCT FROM '{}' THEN now.max_attempts END;
  p.on_exhausted := CASE WHEN jsonb_typeof(p_options -> 'on_exhausted') = 'object' THEN nullif(p_options -> 'on_exhausted', '{}')
                         WHEN p.work AND (p_options ->> 'max_attempts')::numeric IS DISTINCT FROM 0 THEN now.on_exhausted END;
  PERFORM fencepost.require_work(p, p_options);
  RETURN p;
END $$;
