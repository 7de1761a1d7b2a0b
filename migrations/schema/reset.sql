-- `fencepost fence reset` (postgres/upkeep.py): an operator lowers a mark that was made up. Recorded as
-- break-glass is, with the old and the new mark, so that whatever is written afterwards can be judged. The record is the
-- permission: no mark of a row falls but to where a record of the same transaction says.
--
-- Lock order, as everywhere: the row (locked by the caller), then its mark.

-- Lock a mark, and return it. p_live is the row's mark, null where there is no row.
CREATE FUNCTION fencepost.held_mark(p_resource text, p_live bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kept bigint;
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a mark is lowered behind broken glass only',
      HINT = 'fencepost fence reset RESOURCE --to N --reason …';
  END IF;
  SELECT k.last_fence_token INTO kept FROM fencepost.marks k WHERE k.resource = p_resource FOR UPDATE;
  RETURN coalesce(p_live, kept);
END $$;

-- The same for the floor of a table or of a scope's prefix.
CREATE FUNCTION fencepost.held_floor(p_name text) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  held bigint;
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a floor is lowered behind broken glass only',
      HINT = 'fencepost fence reset NAME --to N --reason …';
  END IF;
  SELECT f.floor INTO held FROM fencepost.floors f WHERE f.name = p_name FOR UPDATE;
  RETURN held;
END $$;

-- The highest mark below p_below in fencepost.marks and the floor, of all resources of p_name (a table, or a scope's prefix)
-- but p_resource.
CREATE FUNCTION fencepost.highest_below(p_name text, p_resource text, p_below bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a mark is lowered behind broken glass only';
  END IF;
  RETURN greatest((SELECT max(k.last_fence_token) FROM fencepost.marks k
                    WHERE starts_with(k.resource, fencepost.enc(p_name) || '/') AND k.resource <> p_resource
                      AND k.last_fence_token < p_below),
                  (SELECT f.floor FROM fencepost.floors f
                    WHERE f.name = p_name AND f.name <> p_resource AND f.floor < p_below), 0);
END $$;

-- Record a reset, lower what fencepost.marks or fencepost.floors has, and return the new mark; the row's own mark is lowered
-- by the caller. p_resource = tab: it is the floor, since no resource is called like its table.
--
-- The new mark is what the table's source has issued. Of an external source, or without a table, it is p_new, which is not
-- below the other marks and the floor of tab. The marks in the rows of tab are compared by postgres/upkeep.py, because
-- the schema's owner may not be able to read the table.
CREATE FUNCTION fencepost.reset_mark(tab text, p_resource text, p_old bigint, p_new bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := coalesce(current_setting('fencepost.lowering', true), '');
  known text := (SELECT p.source FROM fencepost.protected p
                  WHERE coalesce(left(p.scope, strpos(p.scope, '/{') - 1), p.name) = tab LIMIT 1);
  lowest bigint;
  lowered bigint := p_new;
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a mark is lowered behind broken glass only';
  END IF;
  IF NOT coalesce(p_resource = tab OR starts_with(p_resource, fencepost.enc(tab) || '/'), false) THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s is no resource of %s', p_resource, tab);
  END IF;
  IF EXISTS (SELECT FROM fencepost.marks k WHERE k.resource = p_resource AND k.last_fence_token > p_old)
    OR EXISTS (SELECT FROM fencepost.floors f WHERE p_resource = tab AND f.name = tab AND f.floor > p_old) THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s has a mark above %s', p_resource, p_old);
  END IF;
  IF coalesce(known, 'external') = 'external' THEN
    lowest := fencepost.highest_below(tab, p_resource, p_old);
    IF p_new < lowest THEN
      RAISE EXCEPTION USING ERRCODE = 'FP400',
        MESSAGE = format('%s: %s is below %s, another mark (or the floor) of %s', p_resource, p_new, lowest, tab);
    END IF;
  ELSE
    lowered := CASE known WHEN 'builtin' THEN fencepost.issued() ELSE fencepost.issued(known) END;
  END IF;
  IF NOT coalesce(lowered > 0 AND lowered < p_old, false) THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s: from %s to %s no mark falls', p_resource, p_old, lowered);
  END IF;
  INSERT INTO fencepost.break_glass_log (name, verb, resource, reason, query, digest, old_mark, new_mark)
  VALUES (tab, 'RESET', p_resource, left(current_setting('fencepost.break_glass'), 2000), left(current_query(), 2000),
          sha256(convert_to(concat_ws(E'\n', p_resource, p_old, lowered), 'UTF8')), p_old, lowered);
  PERFORM set_config('fencepost.lowering', p_resource, true);
  IF p_resource = tab THEN
    UPDATE fencepost.floors f SET floor = lowered WHERE f.name = tab AND f.floor > lowered;
  ELSE
    UPDATE fencepost.marks k SET last_fence_token = lowered, changed_at = clock_timestamp()
     WHERE k.resource = p_resource AND k.last_fence_token > lowered;
  END IF;
  PERFORM set_config('fencepost.lowering', before, true);
  RETURN lowered;
END $$;

-- Whether this transaction has recorded that the mark falls so. Our own record: the number may be another database's, where
-- the log was replicated or restored.
CREATE FUNCTION fencepost.is_reset(p_resource text, p_old bigint, p_new bigint) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM fencepost.break_glass_log l
                  WHERE l.xid = pg_current_xact_id() AND l.verb = 'RESET' AND l.resource = p_resource
                    AND l.old_mark = p_old AND l.new_mark = p_new AND fencepost.is_own_write(l.xmin));
END $$;
