-- Acquires that their clients have withdrawn: nobody waits for the answer, and a request that is still under way with the same secret
-- must not be granted.
--
-- A grant holds the secret's advisory lock, shared, until it commits, and then looks whether the secret is withdrawn. A
-- withdrawal that has that lock therefore sees each grant that did not see it. It does not wait for it: a grant may hold it
-- for as long as its claims wait for a row.
-- Order: the secret's advisory lock before lock rows (leases.sql); in source_grant after the source's row, which no withdrawal takes.

CREATE TABLE fencepost.withdrawn (
  secret_hash  bytea PRIMARY KEY,
  withdrawn_at timestamptz NOT NULL
);

COMMENT ON TABLE fencepost.withdrawn IS 'Secrets of acquires that their clients have withdrawn. No lease is granted under them for an hour.';

CREATE FUNCTION fencepost.secret_lock(p_hash bytea) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN hashtextextended('fencepost.secret/' || encode(p_hash, 'hex'), 0);

-- For a grant, in its transaction: whether its secret is withdrawn. Until the end of the transaction no withdrawal overlooks it.
CREATE FUNCTION fencepost.is_withdrawn(p_hash bytea) RETURNS boolean LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(fencepost.secret_lock(p_hash));
  -- A statement of its own: it sees what was committed while we waited for the lock.
  RETURN EXISTS (SELECT FROM fencepost.withdrawn w WHERE w.secret_hash = p_hash);
END $$;

-- Withdraw: no lease is granted under this secret from the commit on, and its place in a queue is gone. Its leases, of any source,
-- are returned, for the caller to release. under_way: a grant may have been overlooked; the caller asks again.
CREATE FUNCTION fencepost.withdraw(p_hash bytea, OUT sources text[], OUT lease_ids text[], OUT under_way boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  under_way := NOT pg_try_advisory_xact_lock(fencepost.secret_lock(p_hash));
  INSERT INTO fencepost.withdrawn AS w (secret_hash, withdrawn_at) VALUES (p_hash, clock_timestamp())
  ON CONFLICT (secret_hash) DO UPDATE SET withdrawn_at = clock_timestamp();
  IF NOT under_way THEN
    PERFORM fencepost.leave(w.visit, 0) FROM (SELECT DISTINCT x.visit FROM fencepost.waiters x WHERE x.secret_hash = p_hash) w;
  END IF;
  SELECT coalesce(array_agg(f.source), '{}'), coalesce(array_agg(f.lease_id::text), '{}') INTO withdraw.sources, withdraw.lease_ids
    FROM (SELECT 'builtin' AS source, x.lease_id FROM fencepost.leases x WHERE x.secret_hash = p_hash AND x.ended_at IS NULL
          UNION ALL
          SELECT x.source, x.lease_id FROM fencepost.source_leases x WHERE x.secret_hash = p_hash AND x.ended_at IS NULL) f;
END $$;
