-- `fencepost fence reset` (storage/upkeep/reset.py): an operator lowers a mark that was made up. Recorded as
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

-- Record a reset, and lower what fencepost.marks or fencepost.floors has; the row's own mark is lowered by the caller.
-- p_resource = tab: it is the floor, since no resource is called like its table.
CREATE FUNCTION fencepost.reset_mark(tab text, p_resource text, p_old bigint, p_new bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before text := coalesce(current_setting('fencepost.lowering', true), '');
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a mark is lowered behind broken glass only';
  END IF;
  IF NOT coalesce(p_new > 0 AND p_new < p_old, false) THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s: from %s to %s no mark falls', p_resource, p_old, p_new);
  END IF;
  INSERT INTO fencepost.break_glass_log (name, verb, resource, reason, query, digest, old_mark, new_mark)
  VALUES (tab, 'RESET', p_resource, current_setting('fencepost.break_glass'), current_query(),
          sha256(convert_to(concat_ws(E'\n', p_resource, p_old, p_new), 'UTF8')), p_old, p_new);
  PERFORM set_config('fencepost.lowering', p_resource, true);
  IF p_resource = tab THEN
    UPDATE fencepost.floors f SET floor = p_new WHERE f.name = tab AND f.floor > p_new;
  ELSE
    UPDATE fencepost.marks k SET last_fence_token = p_new, changed_at = clock_timestamp()
     WHERE k.resource = p_resource AND k.last_fence_token > p_new;
  END IF;
  PERFORM set_config('fencepost.lowering', before, true);
END $$;

-- Whether this transaction has recorded that the mark falls so. Our own record: the number may be another database's, where
-- the log was replicated or restored.
CREATE FUNCTION fencepost.is_reset(p_resource text, p_old bigint, p_new bigint) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM fencepost.break_glass_log l
                  WHERE l.xid = pg_current_xact_id() AND l.verb = 'RESET' AND l.resource = p_resource
                    AND l.old_mark = p_old AND l.new_mark = p_new AND fencepost.ours(l.xmin));
END $$;
