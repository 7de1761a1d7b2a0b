-- Members of bodies that json_to_record cannot read as they were answered.
--
-- Of an hstore, PostgreSQL makes an object, by the type's own cast to json, also in arrays and composites; but it reads one
-- from hstore's text only. So objects become such texts first. What is neither is left, for hstore itself to refuse.

-- A key or value as hstore's text has it. (E'' because a session may have standard_conforming_strings off.)
CREATE FUNCTION fencepost.hstore_word(p_word text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN '"' OPERATOR(pg_catalog.||) pg_catalog.replace(pg_catalog.replace(p_word, E'\\', E'\\\\'), '"', E'\\"')
       OPERATOR(pg_catalog.||) '"';

-- A value that is to be read as p_type, which may be an array, composite or domain with hstores in it. NULL: one without.
CREATE FUNCTION fencepost.hstore_as_text(p_value json, p_type oid) RETURNS json LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kind text := json_typeof(p_value);
  t pg_type;
BEGIN
  IF p_type IS NULL OR kind NOT IN ('object', 'array') THEN RETURN p_value; END IF;
  SELECT * INTO t FROM pg_type p WHERE p.oid = p_type;
  IF t.typtype = 'd' THEN RETURN fencepost.hstore_as_text(p_value, t.typbasetype); END IF;
  IF kind = 'array' AND t.typlen = -1 AND t.typelem <> 0 THEN  -- an array in an array is its next dimension
    RETURN (SELECT coalesce(json_agg(fencepost.hstore_as_text(
                     e.value, CASE json_typeof(e.value) WHEN 'array' THEN p_type ELSE t.typelem END) ORDER BY e.n), '[]')
              FROM json_array_elements(p_value) WITH ORDINALITY AS e(value, n));
  END IF;
  IF kind = 'object' AND t.typtype = 'c' THEN
    RETURN (SELECT coalesce(json_object_agg(m.key, fencepost.hstore_as_text(m.value, (
                     SELECT a.atttypid FROM pg_attribute a
                      WHERE a.attrelid = t.typrelid AND a.attname = m.key AND a.attnum > 0))), '{}')
              FROM json_each(p_value) AS m);
  END IF;
  IF kind = 'object' AND t.typname = 'hstore'
     AND NOT EXISTS (SELECT FROM json_each(p_value) AS m WHERE json_typeof(m.value) IN ('object', 'array')) THEN
    RETURN (SELECT to_json(coalesce(string_agg(
                     fencepost.hstore_word(m.key) || '=>' || coalesce(fencepost.hstore_word(m.value), 'NULL'), ','), ''))
              FROM json_each_text(p_value) AS m);
  END IF;
  RETURN p_value;
END $$;

-- The body, an object or an array of them, with the texts. p_types: those of the columns p_columns that have hstores somewhere.
CREATE FUNCTION fencepost.hstores_as_text(p_body json, p_columns text[], p_types regtype[]) RETURNS json LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF json_typeof(p_body) = 'array' THEN
    RETURN (SELECT coalesce(json_agg(fencepost.hstores_as_text(e.value, p_columns, p_types) ORDER BY e.n), '[]')
              FROM json_array_elements(p_body) WITH ORDINALITY AS e(value, n));
  END IF;
  RETURN (SELECT coalesce(json_object_agg(
                   m.key, fencepost.hstore_as_text(m.value, p_types[array_position(p_columns, m.key)])), '{}')
            FROM json_each(p_body) AS m);
END $$;
