-- The functions of one protected table, as text: `fencepost.protect` makes them. The comparisons themselves are those of the other files.
--
-- Each table has trigger functions of its own, with its key columns written out: to_jsonb(NEW) would cost more than the UPDATE that it
-- guards. What runs inside other people's sessions names its operators in full, against their search_path.
--
-- Texts are put together by format(), which looks at each value once: a table and its columns may be called anything.

CREATE FUNCTION fencepost.quoted(p_name text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN '"' || pg_catalog.replace(p_name, '"', '""') || '"';

-- The name of a table in SQL, in full.
CREATE FUNCTION fencepost.sql_name(p_table oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT fencepost.quoted(n.nspname) || '.' || fencepost.quoted(c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = p_table $$;

-- Quote a function's body with a tag that the body does not contain.
CREATE FUNCTION fencepost.dollar(p_body text) RETURNS text LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  tag text := '$fn$';
BEGIN
  WHILE strpos(p_body, tag) > 0 LOOP tag := rtrim(tag, '$') || '_$'; END LOOP;
  RETURN tag || p_body || ' ' || tag;
END $$;

-- PostgreSQL's own types whose equality is equality of one text (R6). Not float (-0 = 0), interval (1 day = 24 hours), citext, json, arrays.
CREATE FUNCTION fencepost.key_types() RETURNS name[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '{int2,int4,int8,numeric,text,varchar,bpchar,uuid,bool,date,timestamp,timestamptz,bytea}'::pg_catalog.name[];

-- The columns of a table with the types that they come down to. known: one of key_types.
CREATE FUNCTION fencepost.columns_of(p_table oid) RETURNS TABLE (
  name text, type text, base_name text, known boolean, is_enum boolean, is_other boolean, enum_in_domain boolean,
  enum_called_so boolean, nondeterministic boolean, nullable boolean, generated boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE base(attnum, type) AS (
    SELECT a.attnum, a.atttypid FROM pg_attribute a WHERE a.attrelid = p_table AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
  )
  SELECT a.attname, format_type(a.atttypid, -1), bt.typname, of.known, of.is_enum,
         NOT of.is_enum AND NOT of.known, of.is_enum AND bt.oid <> a.atttypid, of.is_enum AND bt.typname = ANY (fencepost.key_types()),
         EXISTS (SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic),
         NOT a.attnotnull, a.attgenerated <> ''
    FROM base b JOIN pg_attribute a ON a.attrelid = p_table AND a.attnum = b.attnum
    JOIN pg_type bt ON bt.oid = b.type AND bt.typtype <> 'd' JOIN pg_namespace bn ON bn.oid = bt.typnamespace
   CROSS JOIN LATERAL (SELECT bt.typtype = 'e', bn.nspname = 'pg_catalog' AND bt.typname = ANY (fencepost.key_types())) AS of(is_enum, known)
$$;

CREATE FUNCTION fencepost.primary_key(p_table oid) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT array_agg(a.attname::text ORDER BY k.n) FROM pg_index i
   CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
   WHERE i.indrelid = p_table AND i.indisprimary AND k.n <= i.indnkeyatts $$;

-- An expression for the name of a resource: a prefix, and the values of columns of p_record, each as its one text. The gateway's statements
-- have the same (resource_sql in postgres/row_sql.py).
--
-- The owner of an enum may define its cast to text, and triggers would run that in their owner's name: no role can replace the type's
-- output function. A type that is none of these is not read. COLLATE "C": the collations of two columns must not meet in a name.
CREATE FUNCTION fencepost.resource_expression(p_table oid, p_prefix text, p_columns text[], p_record text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT quote_literal(fencepost.enc(p_prefix) || '/') || ' || ' || string_agg(format('fencepost.enc(%s)', CASE
           WHEN c.known AND c.base_name IN ('date', 'timestamp', 'timestamptz', 'numeric', 'bytea') THEN format('fencepost.canon(%s)', value)
           WHEN c.known AND c.base_name IN ('int2', 'int4', 'int8', 'text', 'varchar', 'bpchar', 'uuid', 'bool')
           THEN format('(%s)::text COLLATE pg_catalog."C"', value)
           WHEN c.is_enum THEN format('pg_catalog.textin(pg_catalog.enum_out(%s)) COLLATE pg_catalog."C"', value)
           ELSE 'NULL' END), ' || '','' || ' ORDER BY k.n)
    FROM unnest(p_columns) WITH ORDINALITY k(name, n) JOIN fencepost.columns_of(p_table) c ON c.name = k.name
   CROSS JOIN LATERAL (SELECT p_record || '.' || fencepost.quoted(c.name)) AS of(value) $$;

-- A scope's template, read.
CREATE FUNCTION fencepost.scope_prefix(p_template text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog."left"(p_template, pg_catalog.strpos(p_template, '/{') - 1);

CREATE FUNCTION fencepost.scope_columns(p_template text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.string_to_array(pg_catalog.regexp_replace(p_template, '^[^/]*/[{]|[}]$', '', 'g'), '},{');

-- The common start of the names of a table's functions: readable, unique, and short of PostgreSQL's 63 bytes.
CREATE FUNCTION fencepost.stem_of(p_table oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT left(c.relname, (SELECT max(n) FROM generate_series(0, length(c.relname::text)) n
                           WHERE octet_length(convert_to(left(c.relname, n), 'UTF8')) <= 36))
         || '_' || left(encode(sha256(convert_to(n.nspname, 'UTF8') || decode('00', 'hex') || convert_to(c.relname, 'UTF8')), 'hex'), 10)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = p_table $$;

CREATE FUNCTION fencepost.part_name(p_stem text, p_part text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'fencepost.' || fencepost.quoted(p_stem || '_' || p_part);

-- The bounds of a table's tokens (R12, R19): compared in the writer's own function, and bounds.sql is called only to raise. A table that is
-- pinned to a source asks whether the token was issued, and in the present generation; one of an external source compares
-- the token with the table's ceiling. After the mark, whose refusal is more exact where both refuse.

-- Whether a token is beyond the ceiling, above a mark.
CREATE FUNCTION fencepost.is_beyond_text(p fencepost.protected, p_token text, p_mark text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('%s OPERATOR(pg_catalog.>) ''%s''::pg_catalog.int8', p_token, p.max_token) || CASE WHEN p.max_jump IS NULL THEN ''
    ELSE format(' OR %s OPERATOR(pg_catalog.-) %s OPERATOR(pg_catalog.>) ''%s''::pg_catalog.int8', p_token, p_mark, p.max_jump) END $$;

-- Call p_by where a token is beyond the ceiling. p_arguments: what stands between the resource and the ceiling.
CREATE FUNCTION fencepost.require_reach_text(p fencepost.protected, p_by text, p_resource text, p_token text, p_mark text,
                                             p_arguments text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(E'IF %s THEN\n    PERFORM fencepost.%s(%L, %s, %s, ''%s'', %s);\n  END IF;',
                fencepost.is_beyond_text(p, p_token, p_mark), p_by, p.name, p_resource, p_arguments, p.max_token,
                coalesce(quote_literal(p.max_jump), 'NULL')) $$;

-- fencepost.issued or fencepost.oldest of the table's source.
CREATE FUNCTION fencepost.of_source_text(p fencepost.protected, p_what text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('fencepost.%s(%s)', p_what, CASE WHEN p.source = 'builtin' THEN '' ELSE quote_literal(p.source) END) $$;

-- Refuse a token that was never issued, or, where p_operator is <, in an earlier generation. Its SET clause makes require_issued dearer than
-- the comparison. issued() locks the sequence: see oldest().
CREATE FUNCTION fencepost.require_issued_text(p fencepost.protected, p_operator text, p_resource text, p_token text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(E'IF %s OPERATOR(pg_catalog.%s) %s THEN\n    PERFORM fencepost.require_issued(%s, %1$s%5$s);\n  END IF;',
                p_token, p_operator, fencepost.of_source_text(p, CASE p_operator WHEN '>' THEN 'issued' ELSE 'oldest' END), p_resource,
                CASE WHEN p.source = 'builtin' THEN '' ELSE ', ' || quote_literal(p.source) END) $$;

CREATE FUNCTION fencepost.update_body(p fencepost.protected) RETURNS text LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  resource text := fencepost.part_name(p.functions, 'name') || '(OLD)';
  same_key text := fencepost.part_name(p.functions, 'key') || '(NEW, OLD)';
  within text;
  bounds text;
BEGIN
  -- The column's new value is a token too, even where a setting's is the one that counts.
  IF p.source = 'external' THEN
    within := format('NOT (%s)', fencepost.is_beyond_text(p, 'given', 'OLD.last_fence_token'));
    bounds := E'given := greatest(given, NEW.last_fence_token);\n  '
      || fencepost.require_reach_text(p, 'require_reach_of_row', resource, 'given', 'OLD.last_fence_token', 'given, OLD.last_fence_token');
  ELSE
    within := format('given OPERATOR(pg_catalog.<=) %s AND given OPERATOR(pg_catalog.>=) %s',
                     fencepost.of_source_text(p, 'issued'), fencepost.of_source_text(p, 'oldest'));
    bounds := fencepost.require_issued_text(p, '>', resource, 'greatest(given, NEW.last_fence_token)') || E'\n  '
      || fencepost.require_issued_text(p, '<', resource, 'NEW.last_fence_token');
  END IF;
  -- The plain case first: a token above the mark passes under both rules (fencepost.accepts) and within the bounds. No SET clause or WHEN:
  -- both would cost more than the comparison. The gateway gives -t (`Mark.stored`). The lowest number has no positive one: it
  -- is judged, and is malformed.
  RETURN format($body$
DECLARE
  given bigint := NEW.last_fence_token;
BEGIN
  IF given OPERATOR(pg_catalog.<) 0 AND given OPERATOR(pg_catalog.>) '-9223372036854775808'::pg_catalog.int8 THEN given := OPERATOR(pg_catalog.-) given; END IF;
  IF given OPERATOR(pg_catalog.>) OLD.last_fence_token AND %1$s AND (pg_catalog.current_setting('fencepost.token', true) OPERATOR(pg_catalog.<>) '') IS NOT TRUE AND %2$s THEN
    IF NEW.last_fence_token OPERATOR(pg_catalog.<) 0 THEN NEW.last_fence_token := given; END IF;
    RETURN NEW;
  END IF;
  NEW.last_fence_token := fencepost.judge_update(%3$L, %4$s, %5$L,
    OLD.last_fence_token, NEW.last_fence_token, (%1$s) IS NOT TRUE, OLD.xmin);
  %6$s
  RETURN NEW;
END$body$, same_key, within, p.name, resource, p.rule, bounds);
END $$;

-- Before an INSERT: find the token and touch no mark, for ON CONFLICT DO NOTHING comes through here as well. The gateway's statement has
-- looked at whether the fence fires, but for the partition that PostgreSQL chooses for the row (R13).
CREATE FUNCTION fencepost.insert_body(p fencepost.protected, p_partitioned boolean) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($body$
DECLARE
  token bigint;
BEGIN
  IF (pg_catalog.current_setting('fencepost.token', true) OPERATOR(pg_catalog.<>) '') THEN token := fencepost.token_from_setting(%1$L); END IF;
  IF token IS NULL AND NEW.last_fence_token < 0 THEN
    IF NEW.last_fence_token = '-9223372036854775808' THEN PERFORM fencepost.malformed(NEW.last_fence_token::text); END IF;
    token := - NEW.last_fence_token;%3$s%4$s
  END IF;
  NEW.last_fence_token := coalesce(token, nullif(NEW.last_fence_token, 0));
  IF NEW.last_fence_token IS NULL OR current_setting('fencepost.break_glass', true) <> '' THEN
    NEW.last_fence_token := coalesce(
      fencepost.mark_behind_glass(%1$L, %2$s, NEW.last_fence_token), NEW.last_fence_token);
    IF NEW.last_fence_token IS NULL THEN
      PERFORM fencepost.enforce('no token', %1$L, %2$s, 'INSERT', NULL, NULL);
    END IF;
  END IF;
  RETURN NEW;
END$body$, p.name, resource,
    CASE p.rule WHEN 'epoch' THEN format(E'\n    PERFORM fencepost.note_explicit(%s, token);', resource) ELSE '' END,
    CASE WHEN p_partitioned THEN format(
      E'\n    IF NOT fencepost.fires(TG_RELID, ''zzz_fencepost_insmark'') THEN PERFORM fencepost.unfenced(%L); END IF;', p.name) ELSE '' END)
    FROM (SELECT fencepost.part_name(p.functions, 'name') || '(NEW)') AS of(resource) $$;

-- The mark's type is looked at before anything reads it: what follows runs in our name, and the table's owner may have changed it, and made
-- casts. The key's cannot change: see `function_texts`.
CREATE FUNCTION fencepost.unchanged_text(p_name text, p_record text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('IF pg_typeof(%s.last_fence_token) <> ''bigint''::regtype THEN PERFORM fencepost.outdated(%L); END IF;', p_record, p_name) $$;

-- After an INSERT. Another trigger, or a function in RETURNING, may have deleted the row before this trigger fires. That leaves a
-- transaction's number in xmax, as an UPDATE or a lock does; and judge_delete's word, which stays.
-- The plain case first, under the rule strict: the key has no mark yet, the row's is made, and the token is above the floor, which is read in a
-- later statement, for the first one may have waited. Everything else is judged by judge_insert, which finds this transaction's mark.
CREATE FUNCTION fencepost.insmark_body(p fencepost.protected) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($body$
DECLARE
  named text;
  gone boolean := false;
  passes boolean := false;
BEGIN
  %1$s
  named := %2$s;
  IF NEW.xmax <> '0' THEN
    gone := EXISTS (SELECT FROM fencepost.marks k WHERE k.resource = named AND k.row_absent AND k.xid = pg_current_xact_id());
  END IF;%3$s%4$s
  IF passes IS NOT TRUE THEN PERFORM fencepost.judge_insert(%5$L, named, NEW.last_fence_token, %6$L); END IF;%7$s
  IF gone THEN UPDATE fencepost.marks k SET row_absent = true WHERE k.resource = named; END IF;
  RETURN NULL;
END$body$, fencepost.unchanged_text(p.name, 'NEW'), fencepost.part_name(p.functions, 'name') || '(NEW)',
    -- What the row raises is in fencepost.marks, or nowhere.
    CASE p.source WHEN 'external' THEN E'\n  '
      || fencepost.require_reach_text(p, 'meet_ceiling', 'named', 'NEW.last_fence_token', '0', 'NEW.last_fence_token') ELSE '' END,
    CASE p.rule WHEN 'strict' THEN format($plain$
  IF NEW.last_fence_token > 0 AND octet_length(named) <= 2600 AND current_setting('transaction_isolation') = 'read committed'
     AND (current_setting('fencepost.break_glass', true) <> '') IS NOT TRUE THEN
    INSERT INTO fencepost.marks (resource, last_fence_token, xid, row_absent)
    VALUES (named, NEW.last_fence_token, pg_current_xact_id(), false) ON CONFLICT (resource) DO NOTHING;
    IF FOUND THEN SELECT f.floor < NEW.last_fence_token INTO passes FROM fencepost.floors f WHERE f.name = %1$L; END IF;
  END IF;$plain$, p.name) ELSE '' END,
    p.name, p.rule,
    CASE p.source WHEN 'external' THEN '' ELSE E'\n  ' || fencepost.require_issued_text(p, '>', 'named', 'NEW.last_fence_token')
      || E'\n  ' || fencepost.require_issued_text(p, '<', 'named', 'NEW.last_fence_token') END) $$;

CREATE FUNCTION fencepost.deleted_body(p fencepost.protected) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($body$
DECLARE
  token bigint;
BEGIN
  %1$s
  token := fencepost.judge_delete(%2$L, %3$s, OLD.last_fence_token, %4$L, OLD.xmin);%5$s
  RETURN NULL;
END$body$, fencepost.unchanged_text(p.name, 'OLD'), p.name, resource, p.rule, E'\n  ' || CASE p.source
      WHEN 'external' THEN fencepost.require_reach_text(p, 'require_reach', resource, 'token', 'OLD.last_fence_token',
                                                         'token, OLD.last_fence_token')
      ELSE fencepost.require_issued_text(p, '>', resource, 'token') || E'\n  ' || fencepost.require_issued_text(p, '<', resource, 'token') END)
    FROM (SELECT fencepost.part_name(p.functions, 'name') || '(OLD)') AS of(resource) $$;

-- The gateway's DELETE in one round trip: the token is bound to this table, and is taken back at its end. The row comes back with the columns
-- that are `shown`, all of them if that is NULL, and with nulls in place of others: these are not read, and need no privilege.
CREATE FUNCTION fencepost.delete_body(p fencepost.protected, p_partitioned boolean) RETURNS text LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  tab text := fencepost.sql_name(p.relation);
  passes text := CASE p.rule WHEN 'strict' THEN '<' ELSE '<=' END;
  -- The row leaves its mark: the trigger fires (R13). PostgreSQL looks when it plans the statement, and again when the table was
  -- altered; that a partition is altered it may not see, and there it looks each time.
  fenced text := format(CASE WHEN p_partitioned THEN '((SELECT fencepost.fires(%1$s)) OR fencepost.unfenced(%2$L) IS NULL)'
                             ELSE '(fencepost.fires_as_planned(%1$s) OR fencepost.unfenced(%2$L) IS NULL)' END,
                        format('%L::pg_catalog.regclass::oid, ''zzz_fencepost_del''', tab), p.name);
  key_is text;
  key_is_parameter text;
  arguments text;
  token text := '$' || cardinality(p.key_columns) + 1;
BEGIN
  SELECT string_agg(format('r.%s OPERATOR(pg_catalog.=) k%s', fencepost.quoted(c), n), ' AND ' ORDER BY n),
         string_agg(format('r.%s OPERATOR(pg_catalog.=) $%s', fencepost.quoted(c), n), ' AND ' ORDER BY n),
         string_agg('k' || n, ', ' ORDER BY n) || ', token'
    INTO key_is, key_is_parameter, arguments FROM unnest(p.key_columns) WITH ORDINALITY k(c, n);
  RETURN format($body$
#variable_conflict use_variable
DECLARE
  before pg_catalog.text := pg_catalog.current_setting('fencepost.token', true);
BEGIN
  PERFORM pg_catalog.set_config('fencepost.token', pg_catalog.concat(%1$L, '=', token), true);
  FOR round IN 1..10 LOOP
    IF shown IS NULL THEN
      RETURN QUERY DELETE FROM %2$s AS r WHERE %3$s AND r.last_fence_token OPERATOR(pg_catalog.%4$s) token AND %5$s RETURNING r.*;
    ELSIF pg_catalog.cardinality(shown) OPERATOR(pg_catalog.=) 0 THEN
      RETURN QUERY DELETE FROM %2$s AS r WHERE %3$s AND r.last_fence_token OPERATOR(pg_catalog.%4$s) token AND %5$s RETURNING (NULL::%2$s).*;
    ELSE
      RETURN QUERY EXECUTE pg_catalog.concat(%6$L, (
        SELECT pg_catalog.string_agg(pg_catalog.format('%%s.%%I', CASE
                 WHEN a.attname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (shown) THEN 'r' ELSE %7$L END,
                 a.attname), ', ' ORDER BY a.attnum)
          FROM pg_catalog.pg_attribute a
         WHERE a.attrelid OPERATOR(pg_catalog.=) %8$L::pg_catalog.regclass AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped))
        USING %9$s;
    END IF;
    EXIT WHEN FOUND;
    -- Not there, or refused by its mark: that is for the caller to ask. There, and it would pass or a trigger has just
    -- written it: made anew meanwhile, so again; or kept from being deleted, and then nothing may remain of it.
    PERFORM FROM %2$s AS r WHERE %3$s AND r.last_fence_token OPERATOR(pg_catalog.%4$s) token;
    IF NOT FOUND THEN
      -- A transaction that has no number has written nothing; xmin is a column of its own, to which few have a right.
      EXIT WHEN pg_catalog.pg_current_xact_id_if_assigned() IS NULL;
      PERFORM FROM %2$s AS r WHERE %3$s AND fencepost.is_own_write(r.xmin);
      EXIT WHEN NOT FOUND;
    END IF;
    IF round OPERATOR(pg_catalog.=) 10 THEN PERFORM fencepost.suppressed(%1$L); END IF;
  END LOOP;
  PERFORM pg_catalog.set_config('fencepost.token', coalesce(before, ''), true);
END$body$, p.name, tab, key_is, passes, fenced,
    format('DELETE FROM %s AS r WHERE %s AND r.last_fence_token OPERATOR(pg_catalog.%s) %s AND %s RETURNING ',
           tab, key_is_parameter, passes, token, fenced),
    format('(NULL::%s)', tab), tab, arguments);
END $$;

-- With a scope one mark stands in fencepost.marks for many rows: a trigger enters the scope for a transaction that has not yet.
CREATE FUNCTION fencepost.scope_body(p fencepost.protected) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($body$
DECLARE
  scope text;
BEGIN
  IF TG_OP = 'DELETE' THEN scope := %1$s(OLD); ELSE scope := %1$s(NEW); END IF;
  IF TG_OP = 'UPDATE' THEN
    IF scope IS DISTINCT FROM %1$s(OLD) THEN PERFORM fencepost.no_scope(%2$L, %3$L, true); END IF;
  END IF;
  IF scope IS NULL THEN PERFORM fencepost.no_scope(%2$L, %3$L, false); END IF;
  PERFORM fencepost.judge_scope(%2$L, %4$L, scope, TG_OP);
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  RETURN NEW;
END$body$, fencepost.part_name(p.functions, 'of'), p.name, p.scope, fencepost.scope_prefix(p.scope)) $$;

-- The functions of a table that is protected so, in the order in which they are made. arguments and body: of the function `part`; making: the
-- statement.
--
-- The functions that name a row's resource, and that compare the keys of two rows, are bound: PostgreSQL keeps them parsed, so they mean the
-- columns themselves, whatever these are called later, and keep them from being dropped or getting another type, with other
-- texts for equal values. Nor could another type's owner decide what its cast to text does, in our name.
CREATE FUNCTION fencepost.function_texts(p fencepost.protected) RETURNS TABLE (part text, arguments text, body text, making text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  tab text := fencepost.sql_name(p.relation);
  partitioned boolean := (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = p.relation);
  pinned CONSTANT text := ' SET search_path = pg_catalog, pg_temp';
BEGIN
  RETURN QUERY
  SELECT f.part, f.arguments, f.body, format('CREATE OR REPLACE FUNCTION %s(%s) RETURNS %s AS %s',
           fencepost.part_name(p.functions, f.part), f.arguments, f.options, fencepost.dollar(f.body))
    FROM (VALUES
      ('upd', '', 'trigger LANGUAGE plpgsql', CASE WHEN p.scope IS NULL THEN fencepost.update_body(p) END),
      ('ins', '', 'trigger LANGUAGE plpgsql' || pinned, CASE WHEN p.scope IS NULL THEN fencepost.insert_body(p, partitioned) END),
      ('insmark', '', 'trigger LANGUAGE plpgsql SECURITY DEFINER' || pinned, CASE WHEN p.scope IS NULL THEN fencepost.insmark_body(p) END),
      ('del', '', 'trigger LANGUAGE plpgsql SECURITY DEFINER' || pinned, CASE WHEN p.scope IS NULL THEN fencepost.deleted_body(p) END),
      ('delete', (SELECT string_agg(format('k%s %s', k.n, c.type), ', ' ORDER BY k.n) || ', token bigint, shown text[]'
                    FROM unnest(p.key_columns) WITH ORDINALITY k(name, n) JOIN fencepost.columns_of(p.relation) c ON c.name = k.name),
       format('SETOF %s LANGUAGE plpgsql', tab), CASE WHEN p.scope IS NULL THEN fencepost.delete_body(p, partitioned) END),
      ('scope', '', 'trigger LANGUAGE plpgsql SECURITY DEFINER' || pinned, CASE WHEN p.scope IS NOT NULL THEN fencepost.scope_body(p) END)
    ) AS f(part, arguments, options, body) WHERE f.body IS NOT NULL;
END $$;

CREATE FUNCTION fencepost.bound_text(p fencepost.protected, p_part text) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('CREATE OR REPLACE FUNCTION %s(%s) RETURNS %s LANGUAGE sql IMMUTABLE RETURN %s', fencepost.part_name(p.functions, p_part),
                format(CASE p_part WHEN 'key' THEN 'n %1$s, o %1$s' ELSE 'r %1$s' END, fencepost.sql_name(p.relation)),
                CASE p_part WHEN 'key' THEN 'boolean' ELSE 'text' END, CASE p_part
    WHEN 'key' THEN (SELECT string_agg(format('(n).%1$s OPERATOR(pg_catalog.=) (o).%1$s', fencepost.quoted(c)), ' AND ' ORDER BY k.n)
                       FROM unnest(p.key_columns) WITH ORDINALITY k(c, n))
    WHEN 'name' THEN fencepost.resource_expression(p.relation, p.name, p.key_columns, 'r')
    ELSE fencepost.resource_expression(p.relation, fencepost.scope_prefix(p.scope), fencepost.scope_columns(p.scope), 'r') END) $$;

-- Which functions of a protected table are others than `fencepost.protect` would make now; none where the table has changed too much for
-- that, which `fencepost doctor` finds with the table. What is gone altogether is found there, too.
CREATE FUNCTION fencepost.old_functions(p fencepost.protected) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(f.part), '{}') FROM fencepost.function_texts(p) f
    JOIN pg_proc o ON o.pronamespace = 'fencepost'::regnamespace AND o.proname = p.functions || '_' || f.part
   WHERE btrim(o.prosrc, E' \n') <> btrim(f.body, E' \n') AND p.name = fencepost.name_of(p.relation)
     AND p.functions = fencepost.stem_of(p.relation) AND p.key_columns = fencepost.primary_key(p.relation)
     AND NOT EXISTS (SELECT FROM unnest(fencepost.scope_columns(p.scope)) s WHERE NOT EXISTS (
                       SELECT FROM fencepost.columns_of(p.relation) c WHERE c.name = s)) $$;
