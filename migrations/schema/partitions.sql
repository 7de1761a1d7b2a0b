-- Partitions. fencepost.protected.partitions are those of which it is known what their rows have been through: under them
-- each row has at least the mark of its key. Event triggers (event_triggers.sql; only a superuser can make them) follow
-- what comes and goes; without them the next `protect` does, as far as it can be known by then.
--   comes by CREATE … PARTITION OF   it is empty: it gets the triggers of statements, which no partition inherits: against TRUNCATE, for workers
--   comes by ATTACH PARTITION        its rows take up the floor and the marks of their keys, then the same triggers
--   goes by DETACH PARTITION         its rows leave their marks behind, and TRUNCATE is free again
--   goes by DROP TABLE               refused: when an event trigger runs there are no rows to read any more
-- A role that changes the table owns it, and reads and writes its rows in his own name: nothing of a table's owner (triggers,
-- policies, expressions) ever runs in ours. Marks are written by functions of ours that ask which table is being changed.

-- The partitions that a table has, at any depth. Without a lock on any of them.
CREATE FUNCTION fencepost.partitions_of(p_root oid) RETURNS regclass[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE part(oid) AS (
    SELECT i.inhrelid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition WHERE i.inhparent = p_root
    UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT coalesce(array_agg(part.oid::regclass ORDER BY part.oid), '{}') FROM part $$;

-- Those of them that came while no event trigger ran: they are not registered, or lack the trigger that refuses TRUNCATE, or have been
-- away and are back: then the row triggers, which come with ATTACH and go with DETACH, are younger than that one.
CREATE FUNCTION fencepost.partitions_unknown(p_root oid) RETURNS regclass[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(u.part ORDER BY u.part::oid), '{}') FROM unnest(fencepost.partitions_of(p_root)) AS u(part)
   WHERE NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = p_root AND u.part = ANY (p.partitions))
      OR NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = u.part AND t.tgname = 'zzz_fencepost_trunc' AND t.oid > ALL (
           SELECT x.oid FROM pg_trigger x WHERE x.tgrelid = u.part AND starts_with(x.tgname, 'zzz_fencepost_') AND x.tgparentid <> 0))
$$;

-- In an event trigger: the protected tables that the command has changed, and which of their partitions came and went. Outside of
-- one PostgreSQL raises an error. `attached`: they are not only ones that the command has made, which are empty: it may find
-- some that came or went while no event trigger was there. `oldest`: below it no mark is of the source's present
-- generation. A partition that went still has our trigger; another relation of its number, in a restored dump, has not.
CREATE FUNCTION fencepost.altered()
RETURNS TABLE (root regclass, name text, named_by text, by_rows boolean, work boolean, attached boolean, lowest bigint, oldest bigint,
               came regclass[], went regclass[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p fencepost.protected;
BEGIN
  FOR p IN
    WITH RECURSIVE up(oid) AS (
      SELECT c.objid FROM pg_event_trigger_ddl_commands() c
       WHERE c.classid = 'pg_class'::regclass AND c.command_tag IN ('CREATE TABLE', 'ALTER TABLE')
      UNION SELECT i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.oid)
    SELECT x.* FROM up JOIN fencepost.protected x ON x.relation = up.oid
      JOIN pg_class c ON c.oid = up.oid AND c.relkind = 'p'
  LOOP
    root := p.relation;
    name := p.name;
    named_by := p.functions || '_name';
    by_rows := p.scope IS NULL;
    work := p.work;
    lowest := coalesce((SELECT f.floor FROM fencepost.floors f WHERE f.name = p.name), 0);
    came := ARRAY(SELECT unnest(fencepost.partitions_of(p.relation)) EXCEPT SELECT unnest(p.partitions));
    went := ARRAY(SELECT g.part FROM (SELECT unnest(p.partitions) EXCEPT SELECT unnest(fencepost.partitions_of(p.relation))) AS g(part)
                   WHERE EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = g.part AND t.tgname = 'zzz_fencepost_trunc'
                                    AND t.tgfoid = 'fencepost.no_truncate()'::regprocedure));
    attached := EXISTS (SELECT FROM unnest(came || went) AS g(part)
                         WHERE NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c
                           WHERE c.classid = 'pg_class'::regclass AND c.command_tag = 'CREATE TABLE' AND c.objid = g.part));
    -- Right after a generation was raised no token of it has been issued, and the rows' own trigger lets no other mark pass.
    -- One is drawn that no holder gets.
    IF p.source = 'builtin' AND attached AND fencepost.issued() < fencepost.oldest() THEN
      PERFORM nextval('fencepost.tokens');
    END IF;
    oldest := CASE p.source WHEN 'external' THEN 0 WHEN 'builtin' THEN fencepost.oldest() ELSE fencepost.oldest(p.source) END;
    RETURN NEXT;
  END LOOP;
END $$;

-- Everybody may call the next three, and they do nothing but for a table that is being changed at this moment: only its
-- owner can do that. They do not decide which partitions these are.
CREATE FUNCTION fencepost.altered_marks(p_root regclass) RETURNS TABLE (resource text, mark bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT k.resource, k.last_fence_token FROM fencepost.altered() a
    JOIN fencepost.marks k ON starts_with(k.resource, fencepost.enc(a.name) || '/') WHERE a.root = p_root;
END $$;

CREATE FUNCTION fencepost.leave_marks(p_root regclass, p_resources text[], p_marks bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
  SELECT u.resource, u.mark, pg_current_xact_id(), true FROM unnest(p_resources, p_marks) AS u(resource, mark)
    JOIN fencepost.altered() a ON a.root = p_root AND starts_with(u.resource, fencepost.enc(a.name) || '/')
   ORDER BY u.resource COLLATE "C"
  ON CONFLICT (resource) DO UPDATE
     SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), xid = excluded.xid,
         row_absent = true, changed_at = clock_timestamp();
END $$;

-- The row first, then the partitions: another session may have given another table of the tree one. An old snapshot would not
-- see it, and fails (40001).
CREATE FUNCTION fencepost.partitions_known(p_root regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fencepost.protected p WHERE p.relation = p_root AND p.partitions IS DISTINCT FROM fencepost.partitions_of(p_root)
      AND EXISTS (SELECT FROM fencepost.altered() a WHERE a.root = p_root) FOR NO KEY UPDATE;
  IF FOUND THEN
    UPDATE fencepost.protected p SET partitions = fencepost.partitions_of(p_root) WHERE p.relation = p_root;
  END IF;
END $$;

-- The trigger of a table, or a partition, whose rows workers take; and whether it is there.
CREATE FUNCTION fencepost.work_trigger(p_part regclass) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('CREATE OR REPLACE TRIGGER zzz_fencepost_work AFTER INSERT OR UPDATE ON %s FOR EACH STATEMENT'
                ' EXECUTE FUNCTION fencepost.work_there()', p_part) $$;

CREATE FUNCTION fencepost.tells_of_work(p_part oid) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = p_part AND t.tgname = 'zzz_fencepost_work') $$;

-- A table as a query that gives the parent's row type: its columns may be in another order, and once it is detached it
-- cannot be cast any more.
CREATE FUNCTION fencepost.as_row_of(p_root regclass) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('ROW(%s)::%s', string_agg(format('r.%I', a.attname), ', ' ORDER BY a.attnum), p_root)
    FROM pg_attribute a WHERE a.attrelid = p_root AND a.attnum > 0 AND NOT a.attisdropped $$;

-- The rows of a partition that was attached. p_path is the session's search_path, for triggers of the table's owner; what runs
-- under it names its operators in full. The fence's own trigger takes the new marks for tokens, and finds no others.
CREATE FUNCTION fencepost.attach_rows(p_root regclass, p_part regclass, p_named_by text, p_lowest bigint, p_oldest bigint, p_path text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  token text := current_setting('fencepost.token', true);
  glass text := current_setting('fencepost.break_glass', true);
  named text := format('fencepost.%I(%s)', p_named_by, fencepost.as_row_of(p_root));
  raise text := format('UPDATE ONLY %s AS r SET last_fence_token = m.mark FROM (SELECT x.resource, greatest(x.mark, %L::bigint) AS mark'
    ' FROM fencepost.altered_marks(%L::pg_catalog.regclass) AS x) AS m WHERE m.resource OPERATOR(pg_catalog.=) %s'
    ' AND r.last_fence_token OPERATOR(pg_catalog.<) m.mark', p_part, p_oldest, p_root, named);
  lift text := format('UPDATE ONLY %s AS r SET last_fence_token = %L::bigint WHERE r.last_fence_token OPERATOR(pg_catalog.<) %L::bigint',
    p_part, greatest(p_lowest, p_oldest), p_lowest);
BEGIN
  PERFORM set_config('fencepost.token', '', true), set_config('fencepost.break_glass', '', true);
  -- `protect` has a path that is pinned, too: its own tables' triggers find their names by the session's.
  PERFORM set_config('search_path', CASE WHEN p_path = 'pg_catalog, pg_temp'
    THEN (SELECT s.reset_val FROM pg_settings s WHERE s.name = 'search_path') ELSE p_path END, true);
  EXECUTE lift;
  EXECUTE raise;
  PERFORM pg_catalog.set_config('fencepost.token', coalesce(token, ''), true),
          pg_catalog.set_config('fencepost.break_glass', coalesce(glass, ''), true);
END $$;

-- The rows of a partition that was detached.
CREATE FUNCTION fencepost.detach_rows(p_root regclass, p_part regclass, p_named_by text, p_lowest bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  names text[];
  marks bigint[];
BEGIN
  -- Up to the floor nothing needs to be recorded: the floor refuses as well.
  FOR names, marks IN EXECUTE format(
    'SELECT array_agg(s.name), array_agg(s.mark) FROM (SELECT fencepost.%I(%s) AS name, r.last_fence_token AS mark,'
    ' row_number() OVER () / 10000 AS batch FROM ONLY %s AS r WHERE r.last_fence_token > %s) AS s GROUP BY s.batch',
    p_named_by, fencepost.as_row_of(p_root), p_part, p_lowest)
  LOOP
    PERFORM fencepost.leave_marks(p_root, names, marks);
  END LOOP;
END $$;

-- A superuser who changes another role's table must not run what that one has hung on it. Whether the role is another one now.
-- In a SECURITY DEFINER function PostgreSQL refuses that (42501).
CREATE FUNCTION fencepost.act_as_owner(p_part regclass) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('role', pg_get_userbyid(c.relowner), true) FROM pg_class c
    WHERE c.oid = p_part AND pg_get_userbyid(c.relowner) <> current_user
      AND pg_has_role(c.relowner, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END);
  RETURN FOUND;
END $$;

-- Whether any of these tables has a row.
CREATE FUNCTION fencepost.any_filled(p_parts regclass[]) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  part regclass;
  filled boolean := false;
BEGIN
  FOREACH part IN ARRAY p_parts LOOP
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = part AND c.relkind = 'r') THEN
      EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', part) INTO filled;
    END IF;
    EXIT WHEN filled;
  END LOOP;
  RETURN filled;
END $$;

CREATE FUNCTION fencepost.follow_partitions(p_path text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  role text := current_setting('role');
  t record;
  part regclass;
  by_rows boolean;
  acting boolean;
BEGIN
  FOR t IN SELECT * FROM fencepost.altered() LOOP
    IF t.by_rows AND t.attached AND cardinality(t.came || t.went) > 0 THEN
      IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'FP428',
          MESSAGE = format('%s is protected: its partitions are attached and detached in READ COMMITTED only', t.name),
          HINT = 'The snapshot of this transaction may be older than marks that the partition''s rows have, or need.';
      END IF;
      IF fencepost.any_filled(t.came) THEN
        -- Who claims a key without a row raises its mark, and then looks whether there is a row now. Either he has looked, and
        -- we see his mark once he is done; or he waits, and sees the row. Hence the lock first, then marks and floor.
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', t.root);
        SELECT a.* INTO t FROM fencepost.altered() a WHERE a.root = t.root;
      END IF;
    END IF;
    FOREACH part IN ARRAY t.went || t.came LOOP
      -- Nothing of the owner's runs where there are no rows: so a SECURITY DEFINER function may make and detach partitions.
      by_rows := t.by_rows AND t.attached AND fencepost.any_filled(ARRAY[part]);
      acting := by_rows AND fencepost.act_as_owner(part);
      IF part = ANY (t.went) THEN
        IF by_rows THEN PERFORM fencepost.detach_rows(t.root, part, t.named_by, t.lowest); END IF;
        EXECUTE format('DROP TRIGGER zzz_fencepost_trunc ON %s', part);
        IF fencepost.tells_of_work(part) THEN EXECUTE format('DROP TRIGGER zzz_fencepost_work ON %s', part); END IF;
      ELSE
        IF by_rows THEN PERFORM fencepost.attach_rows(t.root, part, t.named_by, t.lowest, t.oldest, p_path); END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_trunc ON %s', part);
        EXECUTE format('CREATE TRIGGER zzz_fencepost_trunc BEFORE TRUNCATE ON %s FOR EACH STATEMENT'
          ' EXECUTE FUNCTION fencepost.no_truncate()', part);
        IF t.work THEN EXECUTE fencepost.work_trigger(part); END IF;
      END IF;
      IF acting THEN PERFORM set_config('role', role, true); END IF;
    END LOOP;
    PERFORM fencepost.partitions_known(t.root);
  END LOOP;
END $$;
