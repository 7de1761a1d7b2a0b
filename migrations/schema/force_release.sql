-- An operator ends a lease in the place of its holder, who is gone or will not let go. Recorded as break-glass is, by those who
-- may break the glass (break_glass.sql): SET LOCAL fencepost.break_glass = 'why'.
--
-- The holder is not fenced by it: its tokens are as good as they were until a newer one writes or claims. It learns of it when
-- it renews or mints.

-- End the lease that has the lock p_lock of a source. No row: the lock is free. `handle` is what the lock service calls its hold,
-- which the caller has to end there; null for the built-in source. Locks are taken in the order of leases.sql.
CREATE FUNCTION fencepost.force_release(p_source text, p_lock text)
RETURNS TABLE (lease_id bigint, owner text, names text[], granted_at timestamptz, handle text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  held bigint;
BEGIN
  IF NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = 'a lease is ended in its holder''s place behind broken glass only',
      HINT = 'fencepost release --force LOCK --reason …';
  END IF;
  IF p_source = 'builtin' THEN
    SELECT k.lease_id INTO held FROM fencepost.locks k WHERE k.name = p_lock FOR UPDATE;
    PERFORM FROM fencepost.leases x WHERE x.lease_id = held FOR UPDATE;
    RETURN QUERY UPDATE fencepost.leases x SET ended_at = clock_timestamp(), ended_by = 'operator', secret_hash = NULL
      WHERE x.lease_id = held AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
      RETURNING x.lease_id, x.owner, x.names, x.granted_at, NULL::text;
  ELSE
    RETURN QUERY UPDATE fencepost.source_leases x SET ended_at = clock_timestamp(), ended_by = 'operator'
      WHERE x.source = p_source AND x.lock = p_lock AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
      RETURNING x.lease_id, x.owner, ARRAY[x.lock], x.granted_at, x.handle;
  END IF;
  IF NOT FOUND THEN RETURN; END IF;
  INSERT INTO fencepost.break_glass_log (name, verb, resource, reason, query, digest)
  VALUES (p_source, 'RELEASE', p_lock, left(current_setting('fencepost.break_glass'), 2000), left(current_query(), 2000),
          sha256(convert_to(concat_ws(E'\n', p_source, p_lock), 'UTF8')))
  ON CONFLICT (xid, at, name, verb, digest) DO NOTHING;
  IF p_source = 'builtin' THEN
    PERFORM fencepost.wake(x.names, NULL) FROM fencepost.leases x WHERE x.lease_id = held;
  END IF;
END $$;
