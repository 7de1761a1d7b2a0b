-- What the two event triggers call: on_partitions at the end of each CREATE TABLE and ALTER TABLE of the database, on_dropped when
-- something is dropped. ops/schema.py makes the event triggers: only a superuser can, and they
-- belong to the database and not to this schema. What they do for partitions is in partitions.sql.

-- The tables, of a protected one and its partitions, where a row that is inserted without a word about last_fence_token gets
-- something else than 0: a value in that column is a token. Looks at the expression as it is stored, for pg_get_expr
-- takes the table's lock: a constant 0, maybe of an integer that is made a bigint (function 481).
CREATE FUNCTION fencepost.other_defaults(p_root oid) RETURNS regclass[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(a.attrelid::regclass ORDER BY a.attrelid), '{}')
    FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   WHERE a.attrelid = ANY (array_append(fencepost.partitions_of(p_root)::oid[], p_root))
     AND a.attname = 'last_fence_token' AND NOT a.attisdropped
     AND d.adbin::text !~ ('^([{]FUNCEXPR :funcid 481 [^{}]*:args [(])?'
                           '[{]CONST [^{}]*:constvalue [0-9]+ [[]( 0){8} []][}]([)] :location -?[0-9]+[}])?$') $$;

-- In an event trigger: refuse an ALTER TABLE that leaves such a default on a table whose rows have marks.
CREATE FUNCTION fencepost.require_no_default() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p record;
BEGIN
  FOR p IN
    WITH RECURSIVE up(oid) AS (
      SELECT c.objid FROM pg_event_trigger_ddl_commands() c
       WHERE c.classid = 'pg_class'::regclass AND c.command_tag IN ('CREATE TABLE', 'ALTER TABLE')
      UNION SELECT i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.oid)
    SELECT x.name, fencepost.other_defaults(x.relation) AS tables FROM up JOIN fencepost.protected x
      ON x.relation = up.oid AND x.scope IS NULL
  LOOP
    IF cardinality(p.tables) > 0 THEN
      RAISE EXCEPTION USING ERRCODE = 'FP428',
        MESSAGE = format('%s is protected: with this default of last_fence_token an INSERT would pass without a token', p.name),
        HINT = format('ALTER TABLE %s ALTER COLUMN last_fence_token SET DEFAULT 0', p.tables[1]);
    END IF;
  END LOOP;
END $$;

-- Every CREATE TABLE and ALTER TABLE of the database ends here, whichever role runs it: nothing here may fail for those that do
-- not concern us, also for a role that may not look into our schema, or where the schema is no longer whole.
CREATE FUNCTION fencepost.on_partitions() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
  IF pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace('fencepost')::pg_catalog.oid, 'USAGE') THEN
    -- Nor while the schema gets another owner, when its functions cannot read its tables.
    IF pg_catalog.to_regprocedure('fencepost.follow_partitions(text)') IS NOT NULL AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_proc AS f
       WHERE f.oid OPERATOR(pg_catalog.=) ANY (ARRAY[pg_catalog.to_regprocedure('fencepost.altered()'),
               pg_catalog.to_regprocedure('fencepost.require_no_default()')]::pg_catalog.oid[])
         AND pg_catalog.has_table_privilege(f.proowner, pg_catalog.to_regclass('fencepost.protected')::pg_catalog.oid, 'SELECT')
             IS NOT TRUE)
    THEN
      PERFORM fencepost.require_no_default();
      PERFORM fencepost.follow_partitions(pg_catalog.current_setting('search_path'));
    END IF;
  END IF;
END $$;

CREATE FUNCTION fencepost.on_dropped() RETURNS event_trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p record;
BEGIN
  IF to_regclass('fencepost.protected') IS NULL THEN RETURN; END IF;
  FOR p IN SELECT x.relation, x.name, x.scope, d.object_identity AS part
             FROM pg_event_trigger_dropped_objects() d JOIN fencepost.protected x ON d.objid = ANY (x.partitions::oid[])
             JOIN pg_class c ON c.oid = x.relation  -- with the whole table nothing is lost: marks stay with the name
            WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0
  LOOP
    IF p.scope IS NULL THEN
      RAISE EXCEPTION USING ERRCODE = 'FP428',
        MESSAGE = format('%s is a partition of %s, which is protected: DROP would forget the marks of its rows', p.part, p.name),
        HINT = format('ALTER TABLE %s DETACH PARTITION %s keeps them; then drop it.', p.relation, p.part);
    END IF;
    UPDATE fencepost.protected x SET partitions = fencepost.partitions_of(x.relation) WHERE x.relation = p.relation;
  END LOOP;
END $$;
