-- Names of resources: `orders/order-123`, from the table's name in the API and the key's values. Marks are kept under them, so
-- equal keys must have equal names, whatever the session's settings are, and different keys different ones.
--
-- Names stay: a table keeps the name under which it was protected, also when it is renamed. Only `protect` moves marks to a new
-- name, with the table locked (protect.sql).

-- One part of a resource name. Injective: 'a/b','c' and 'a','b/c' must not render alike.
CREATE FUNCTION fencepost.enc(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
         part, '%', '%25'), '/', '%2F'), ',', '%2C'), ';', '%3B');

-- One text per value, whatever the session's settings: for the key types whose own text depends on them, or of which
-- equal values have several texts. (E'' because a session may have standard_conforming_strings off.)
CREATE FUNCTION fencepost.canon(value date) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, MDY' AS 'SELECT value::text';

CREATE FUNCTION fencepost.canon(value timestamp) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, MDY' AS 'SELECT value::text';

CREATE FUNCTION fencepost.canon(value timestamptz) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, MDY' SET TimeZone = 'UTC' AS 'SELECT value::text';

CREATE FUNCTION fencepost.canon(value numeric) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS 'SELECT trim_scale(value)::text';

CREATE FUNCTION fencepost.canon(value bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS $$ SELECT E'\\x' || encode(value, 'hex') $$;

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

-- Whether what could be stored as p_was has the same text as p_now: the same type, another integer, or a longer text.
CREATE FUNCTION fencepost.same_texts(p_was text, p_now text) RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT p_was = p_now
      OR p_was IN ('smallint', 'integer', 'bigint') AND p_now IN ('smallint', 'integer', 'bigint')
      OR p_was ~ '^character varying' AND p_now IN ('text', 'character varying')
      OR p_was = 'text' AND p_now = 'character varying'
      OR coalesce(substring(p_was from '^character varying[(]([0-9]+)[)]$')::integer
                  <= substring(p_now from '^character varying[(]([0-9]+)[)]$')::integer, false) $$;

-- Whether a row has the same name under two keys. NULL is a key that is not known.
CREATE FUNCTION fencepost.same_key(p_was jsonb, p_now jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((
    SELECT bool_and(coalesce(fencepost.same_texts(was ->> 'type', is_now ->> 'type')
                             AND CASE WHEN p_was -> 'relation' = p_now -> 'relation'
                                 THEN was -> 'number' = is_now -> 'number' ELSE was -> 'name' = is_now -> 'name' END, false))
      FROM ROWS FROM (jsonb_array_elements(p_was -> 'columns'), jsonb_array_elements(p_now -> 'columns')) AS k(was, is_now)),
    false) $$;

-- A type that comes down to one of PostgreSQL's own, whose casts only a superuser can make. Functions that run in
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

-- Whose the marks under a name are. A table's resources keep the name that it was protected under; renamed while nothing
-- protects it, its marks wait under the old name, and floors.relation shows that they are its own. Another table may take the
-- name meanwhile, also one with the same data (a copy that was swapped in). So no mark is taken away from either of them.

-- What the API calls a table, and protect its resources: see catalog_load.api_name. NULL: there is no such table.
CREATE FUNCTION fencepost.name_of(p_relation oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN n.nspname = 'public' AND strpos(c.relname, '.') = 0 THEN c.relname::text
              ELSE n.nspname || '.' || c.relname END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = p_relation AND c.relkind IN ('r', 'p') $$;

-- Give what is remembered under p_old to p_new as well. The higher of two marks counts. Where both have marks, and not of
-- the same key, it is not known any more of which key the names are.
CREATE FUNCTION fencepost.copy_marks(p_old text, p_new text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old_prefix text := fencepost.enc(p_old) || '/';
  new_prefix text := fencepost.enc(p_new) || '/';
BEGIN
  INSERT INTO fencepost.floors AS f (name, floor, key)
  SELECT p_new, o.floor, o.key FROM fencepost.floors o WHERE o.name = p_old
  ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor),
     key = CASE WHEN NOT EXISTS (SELECT FROM fencepost.marks k WHERE starts_with(k.resource, new_prefix)) THEN excluded.key
                WHEN NOT EXISTS (SELECT FROM fencepost.marks k WHERE starts_with(k.resource, old_prefix))
                     OR f.key = excluded.key THEN f.key END;
  -- Those are of another table's rows: for this one's they show no more than the mark of a key without a row.
  UPDATE fencepost.marks k SET row_absent = true WHERE starts_with(k.resource, new_prefix) AND NOT k.row_absent;
  INSERT INTO fencepost.marks AS k
  SELECT new_prefix || substr(o.resource, length(old_prefix) + 1), o.last_fence_token, o.xid, o.row_absent, o.changed_at
    FROM fencepost.marks o WHERE starts_with(o.resource, old_prefix)
  ON CONFLICT (resource) DO UPDATE SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token),
     row_absent = excluded.row_absent;
END $$;

-- The table p_relation was renamed from p_old to p_new: its marks and its floor follow it. They stay under the old name as
-- well where another table has that name, or has left marks there.
CREATE FUNCTION fencepost.move_marks(p_relation oid, p_old text, p_new text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.copy_marks(p_old, p_new);
  IF NOT EXISTS (SELECT FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.oid <> p_relation
                    AND (fencepost.name_of(c.oid) = p_old
                         OR c.oid = (SELECT f.relation FROM fencepost.floors f WHERE f.name = p_old))) THEN
    DELETE FROM fencepost.marks k WHERE starts_with(k.resource, fencepost.enc(p_old) || '/');
  END IF;
END $$;

-- The table p_relation takes the name p_name. Marks and floor of another table that was unprotected under this name, and
-- lives on under another one, are copied to the name that it has now; and what is there, to whose they are, until no table is
-- left. Before that the table's own marks have been moved to p_name.
CREATE FUNCTION fencepost.take_name(p_relation oid, p_name text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  left_by fencepost.floors;
  called text := p_name;
  next_by fencepost.floors;
  seen oid[] := ARRAY[p_relation];
BEGIN
  SELECT f.* INTO left_by FROM fencepost.floors f WHERE f.name = p_name;
  -- Not for the rows of the table that takes the name: they are others.
  UPDATE fencepost.floors f SET relation = NULL, covers_rows = false
   WHERE f.name = p_name AND f.relation <> p_relation AND fencepost.name_of(f.relation) IS NOT NULL;
  LOOP
    EXIT WHEN left_by.relation IS NULL OR left_by.relation = ANY (seen) OR fencepost.name_of(left_by.relation) IS NULL;
    seen := seen || left_by.relation;
    SELECT f.* INTO next_by FROM fencepost.floors f WHERE f.name = fencepost.name_of(left_by.relation);
    PERFORM fencepost.copy_marks(called, fencepost.name_of(left_by.relation));
    called := fencepost.name_of(left_by.relation);
    UPDATE fencepost.floors f
       SET relation = left_by.relation,
           covers_rows = left_by.covers_rows OR f.covers_rows AND f.relation IS NOT DISTINCT FROM left_by.relation
     WHERE f.name = called;
    left_by := next_by;
  END LOOP;
END $$;
