-- Grants: acquire, extend and release. The order of the statements in acquire is the safety of the built-in source: see
-- leases.sql for locks, order and invariant. The digits at the right are the steps of the order of a grant.

CREATE TYPE fencepost.acquired AS (
  verdict text, lease_id bigint, owner text, claim_token bigint, tokens bigint[], ttl_ms integer,
  granted_at timestamptz, expires_at timestamptz, lock text, due_ms bigint, ticket bigint, first boolean, waiting integer
);

COMMENT ON TYPE fencepost.acquired IS 'verdict: granted or repeated (the lease is in lease_id … expires_at), held or queued (these are the holder''s, null when the lock is free and others wait for it; lock is which, first whether no request is before ours, waiting how many wait). due_ms: until the lease expires; mismatch (the secret belongs to a live lease of other locks, claims or writes); withdrawn (the secret''s client waits no more).';

-- Acquire one or many locks: all, or none, or a place in the queue of all. p_gateway, p_visit: who waits; p_wait_ms 0
-- does not queue. The caller may go on in the same transaction, raising marks under claim_token.
CREATE FUNCTION fencepost.acquire(p_names text[], p_hash bytea, p_owner text, p_ttl_ms integer, p_count integer,
                                  p_claims text[], p_gateway uuid, p_visit uuid, p_wait_ms integer,
                                  p_writes text[])
RETURNS fencepost.acquired LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Query plans are kept from when the tables were small; a scan that was cheap then is not when they have grown. Planning for each value anew,
-- as PostgreSQL would where arrays are asked for, is a fifth of a grant's time. A lock row is held for long only by a grant whose claims wait
-- for a row: do not queue up behind it with a connection each.
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '1s' AS $$
DECLARE
  wanted text[] := p_names;
  claimed text[] := p_claims;
  written text[] := p_writes;
  claiming boolean := cardinality(p_claims) > 0;
  r fencepost.acquired;
  l fencepost.leases;
  n text;
  other bigint;
  before bigint[] := '{}';
  contended boolean := false;
  drawn bigint[];
BEGIN
  IF cardinality(wanted) > 1 THEN
    wanted := ARRAY(SELECT DISTINCT x COLLATE "C" FROM unnest(wanted) x ORDER BY 1);
  END IF;
  IF cardinality(claimed) > 1 THEN
    claimed := ARRAY(SELECT DISTINCT x COLLATE "C" FROM unnest(claimed) x ORDER BY 1);
  END IF;
  IF cardinality(written) > 1 THEN
    written := ARRAY(SELECT DISTINCT x COLLATE "C" FROM unnest(written) x ORDER BY 1);
  END IF;
  PERFORM pg_advisory_xact_lock_shared(fencepost.secret_lock(p_hash));  -- see withdrawn.sql
  IF EXISTS (SELECT FROM fencepost.withdrawn w WHERE w.secret_hash = p_hash) THEN
    r.verdict := 'withdrawn';
    RETURN r;
  END IF;
  FOREACH n IN ARRAY wanted LOOP                                                                               -- 1
    SELECT k.lease_id INTO other FROM fencepost.locks k WHERE k.name = n FOR UPDATE;
    IF NOT FOUND THEN
      -- Always ends with the row locked by us, also when its DELETE commits while we wait.
      INSERT INTO fencepost.locks AS k (name) VALUES (n) ON CONFLICT (name) DO UPDATE SET name = k.name
      RETURNING k.lease_id INTO other;
    END IF;
    IF other IS NOT NULL THEN before := before || other; END IF;
  END LOOP;
  IF cardinality(before) > 0 THEN  -- one that has ended will not come back, and needs no lock
    PERFORM FROM fencepost.leases x WHERE x.lease_id = ANY (before) AND x.ended_at IS NULL
      ORDER BY x.lease_id FOR UPDATE;                                                                          -- 2
    contended := FOUND;
  END IF;
  IF contended THEN
    UPDATE fencepost.leases x SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)
     WHERE x.lease_id = ANY (before) AND x.ended_at IS NULL AND x.expires_at > fencepost.within_ttl(x.expires_at, x.ttl_ms);
  END IF;
  -- 3. The same secret again: a request whose answer was lost; or one of a lease that is over.
  SELECT * INTO l FROM fencepost.leases x WHERE x.secret_hash = p_hash;
  IF FOUND AND l.ended_at IS NULL AND l.expires_at > clock_timestamp() THEN
    r.verdict := CASE WHEN l.names = wanted AND l.claims = claimed AND l.writes = written THEN 'repeated' ELSE 'mismatch' END;
    SELECT d.tokens INTO STRICT drawn FROM fencepost.draws d WHERE d.first_token = l.first_token;
    r.lease_id := l.lease_id; r.owner := l.owner; r.ttl_ms := l.ttl_ms;
    r.claim_token := CASE WHEN claiming THEN drawn[1] END;
    r.tokens := CASE WHEN claiming THEN drawn[2:] ELSE drawn END;
    r.granted_at := l.granted_at; r.expires_at := fencepost.within_ttl(l.expires_at, l.ttl_ms);
    r.due_ms := floor(extract(epoch FROM r.expires_at - clock_timestamp()) * 1000);
    RETURN r;
  END IF;
  IF contended THEN
    SELECT k.name, x.lease_id, x.owner, x.granted_at, x.expires_at,
           greatest(ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000), 1)
      INTO r.lock, r.lease_id, r.owner, r.granted_at, r.expires_at, r.due_ms
      FROM fencepost.leases x JOIN fencepost.locks k ON k.lease_id = x.lease_id AND k.name = ANY (wanted)
      WHERE x.lease_id = ANY (before) AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
      ORDER BY k.name LIMIT 1;
  END IF;
  IF EXISTS (SELECT FROM fencepost.waiters w WHERE w.name = ANY (wanted)) THEN
    SELECT w.ticket INTO r.ticket FROM fencepost.waiters w
      WHERE w.secret_hash = p_hash AND w.give_up_at > clock_timestamp()
      GROUP BY w.ticket HAVING array_agg(w.name ORDER BY w.name) = wanted LIMIT 1;
    IF r.lock IS NULL THEN  -- free; but no request passes those that wait already
      SELECT u INTO r.lock FROM unnest(wanted) u WHERE fencepost.first_waiter(u) < coalesce(r.ticket, 9223372036854775807)
        ORDER BY u LIMIT 1;
    END IF;
    IF p_wait_ms <= 1 THEN  -- a waiter's last try, which will be answered
      r.waiting := (SELECT count(*) FROM fencepost.live_waiters w WHERE w.name = r.lock);
    END IF;
  END IF;
  IF r.lock IS NOT NULL AND p_wait_ms = 0 THEN
    r.verdict := 'held';
    IF p_visit IS NOT NULL THEN  -- a waiter's last try; its place is there, unless a repeat of its request has taken it over
      PERFORM set_config('synchronous_commit', 'off', true);  -- as in leave
      DELETE FROM fencepost.waiters w WHERE w.visit = p_visit;
      IF FOUND THEN PERFORM fencepost.wake(wanted, NULL); END IF;
    END IF;
    RETURN r;
  ELSIF r.lock IS NOT NULL THEN
    r.verdict := 'queued';
    -- A place that a crash takes away is only a place.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF r.ticket IS NULL THEN
      r.ticket := nextval('fencepost.tickets');
      INSERT INTO fencepost.waiters (ticket, name, secret_hash, owner, gateway, visit, queued_at, give_up_at)
      SELECT r.ticket, u, p_hash, p_owner, p_gateway, p_visit, clock_timestamp(),
             clock_timestamp() + (p_wait_ms + 1000) * interval '1 ms' FROM unnest(wanted) u;
    ELSE
      UPDATE fencepost.waiters w SET gateway = p_gateway, visit = p_visit, kept_ms = NULL,
             give_up_at = clock_timestamp() + (p_wait_ms + 1000) * interval '1 ms'
       WHERE w.name = ANY (wanted) AND w.ticket = r.ticket;
    END IF;
    r.first := (SELECT bool_and(fencepost.first_waiter(u) >= r.ticket) FROM unnest(wanted) u);
    RETURN r;
  END IF;
  -- Ours. A lease that had expired here is over for good, and so is the secret's earlier use.
  IF contended THEN
    UPDATE fencepost.leases x SET ended_at = clock_timestamp(), secret_hash = NULL
      WHERE x.lease_id = ANY (before) AND x.ended_at IS NULL;
  END IF;
  IF l.lease_id IS NOT NULL THEN  -- it had expired when we looked; renewed meanwhile, its secret is its own
    UPDATE fencepost.leases x SET ended_at = clock_timestamp(), secret_hash = NULL
      WHERE x.lease_id = l.lease_id AND x.secret_hash = p_hash AND x.expires_at <= clock_timestamp();
  END IF;
  IF p_count = 1 AND NOT claiming THEN
    drawn := ARRAY[nextval('fencepost.tokens')];                                                               -- 4
  ELSE
    drawn := ARRAY(SELECT nextval('fencepost.tokens') FROM generate_series(1, p_count + claiming::int));
  END IF;
  r.verdict := 'granted';
  r.lease_id := nextval('fencepost.lease_ids'); r.owner := p_owner; r.ttl_ms := p_ttl_ms;
  r.claim_token := CASE WHEN claiming THEN drawn[1] END;
  r.tokens := CASE WHEN claiming THEN drawn[2:] ELSE drawn END;
  r.granted_at := clock_timestamp();
  r.expires_at := r.granted_at + p_ttl_ms * interval '1 ms';
  r.due_ms := p_ttl_ms;
  INSERT INTO fencepost.leases (lease_id, first_token, secret_hash, names, owner, claims, ttl_ms, last_token, granted_at, expires_at,
                                writes)
  VALUES (r.lease_id, drawn[1], p_hash, wanted, p_owner, claimed, p_ttl_ms, drawn[cardinality(drawn)], r.granted_at, r.expires_at,
          written);
  INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at) VALUES (drawn[1], drawn, r.lease_id, r.granted_at);
  UPDATE fencepost.locks k SET lease_id = r.lease_id WHERE k.name = ANY (wanted);
  IF r.ticket IS NOT NULL THEN
    DELETE FROM fencepost.waiters w WHERE w.name = ANY (wanted) AND w.ticket = r.ticket;
  END IF;
  RETURN r;
END $$;

-- Acquire many locks for as many requests, each as acquire does, in one transaction and with one flush of the log: a row for each, in the
-- order given. A request whose lock, its lease, its secret or the lease that this had before is locked elsewhere is busy, and gets nothing. What cannot be
-- passed by, a lock's row that is just being made or swept, is waited for no longer than lock_timeout; then the batch fails, but of rows that are
-- taken only the row is busy. p_names are
-- sorted (COLLATE "C"), so that two batches that make lock rows never wait for each other in a circle.
-- p_marks: of the rows that the locks are named after, which the grants take: each has its lock's name among its claims, and counts (attempt) how
-- often its row was taken. Null: the grants are of locks only.
CREATE FUNCTION fencepost.acquire_each(p_names text[], p_hashes bytea[], p_owners text[], p_ttls_ms integer[], p_counts integer[],
                                       p_marks bigint[], p_writes text[])
RETURNS TABLE (busy boolean, acquired fencepost.acquired, attempt integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET lock_timeout = '10ms' AS $$
#variable_conflict use_column
DECLARE
  other bigint;
  theirs bigint;
  is_busy boolean;
  made fencepost.acquired;
  taken integer;
BEGIN
  -- Its claims tell nobody that there are rows to take (next_rows.sql).
  IF p_marks IS NOT NULL THEN PERFORM set_config('fencepost.taking', 'on', true); END IF;
  FOR i IN 1 .. cardinality(p_names) LOOP
    SELECT k.lease_id INTO other FROM fencepost.locks k WHERE k.name = p_names[i] FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND p_marks IS NULL THEN  -- made here, for acquire would wait for longer
      INSERT INTO fencepost.locks (name) VALUES (p_names[i]) ON CONFLICT (name) DO NOTHING;
    ELSIF NOT FOUND THEN
      BEGIN
        INSERT INTO fencepost.locks (name) VALUES (p_names[i]) ON CONFLICT (name) DO NOTHING;
      EXCEPTION WHEN lock_not_available THEN NULL;  -- one row's lock, and not the batch's: there are other rows
      END;
    END IF;
    -- The secret's lock: another grant under it, or its withdrawal, which acquire would wait for.
    is_busy := NOT FOUND OR NOT pg_try_advisory_xact_lock(fencepost.secret_lock(p_hashes[i]));
    -- The lock's lease, and the one that the secret had before, of whatever lock: acquire may end both.
    FOR theirs IN SELECT x.lease_id FROM fencepost.leases x
                   WHERE (x.lease_id = other OR x.secret_hash = p_hashes[i]) AND x.ended_at IS NULL AND NOT is_busy LOOP
      PERFORM FROM fencepost.leases x WHERE x.lease_id = theirs FOR UPDATE SKIP LOCKED;
      is_busy := is_busy OR NOT FOUND;
    END LOOP;
    made := CASE WHEN NOT is_busy THEN fencepost.acquire(ARRAY[p_names[i]], p_hashes[i], p_owners[i], p_ttls_ms[i], p_counts[i],
                                                        CASE WHEN p_marks IS NULL THEN '{}' ELSE ARRAY[p_names[i]] END, NULL, NULL, 0, p_writes) END;
    taken := NULL;
    IF p_marks IS NOT NULL AND made.verdict = 'granted' THEN
      taken := CASE WHEN p_marks[i] > 0 THEN fencepost.attempts_of(p_names[i], p_marks[i]) ELSE 0 END + 1;  -- 0 was no token
      UPDATE fencepost.leases x SET attempt = taken WHERE x.lease_id = made.lease_id;
    ELSIF p_marks IS NOT NULL AND made.verdict = 'repeated' THEN
      SELECT x.attempt INTO taken FROM fencepost.leases x WHERE x.lease_id = made.lease_id;
    END IF;
    busy := is_busy; acquired := made; attempt := taken;
    RETURN NEXT;
  END LOOP;
END $$;

-- The next row of a table that no request has taken (gateway/next_rows.py): its lock is named as the row is.

-- How often the row of this name was taken, as its mark tells: it is a token of the lease that wrote to the row last. 0: that was no lease of the row's
-- own, or it is not remembered. Between the tokens of one draw there may be those of others, but not of a hundred.
CREATE FUNCTION fencepost.attempts_of(p_name text, p_mark bigint) RETURNS integer LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT coalesce((
    SELECT x.attempt FROM (SELECT d.tokens, d.lease_id FROM fencepost.draws d WHERE d.first_token <= p_mark ORDER BY d.first_token DESC LIMIT 100) d
      JOIN fencepost.leases x ON x.lease_id = d.lease_id WHERE p_mark = ANY (d.tokens) AND x.names = ARRAY[p_name]), 0) $$;

-- Whether a lock is held or waited for, and so the row that it is named after is passed by. VOLATILE: it is asked again where a row was changed since the
-- statement began, and then sees who has taken it.
CREATE FUNCTION fencepost.is_taken(p_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  RETURN EXISTS (SELECT FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
                  WHERE k.name = p_name AND x.ended_at IS NULL AND x.expires_at > clock_timestamp())
      OR EXISTS (SELECT FROM fencepost.waiters w WHERE w.name = p_name);
END $$;

-- Which leases these secrets have: a request for the next row that is repeated finds its own again. busy: another request with the secret is
-- under way; else none begins before this transaction is over, and no withdrawal. withdrawn: there was one.
CREATE FUNCTION fencepost.taken_by(p_hashes bytea[]) RETURNS TABLE (busy boolean, withdrawn boolean, names text[], attempt integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  hash bytea;
  is_busy boolean;
BEGIN
  FOREACH hash IN ARRAY p_hashes LOOP
    is_busy := NOT pg_try_advisory_xact_lock(fencepost.secret_lock(hash));
    RETURN QUERY SELECT is_busy, EXISTS (SELECT FROM fencepost.withdrawn w WHERE w.secret_hash = hash), x.names, x.attempt FROM (SELECT) one LEFT JOIN fencepost.leases x
      ON x.secret_hash = hash AND x.ended_at IS NULL AND x.expires_at > clock_timestamp();
  END LOOP;
END $$;

-- End a lease of the next row in the transaction that granted it: the row is put aside, for it was taken too often. How often is counted anew from
-- here on.
CREATE FUNCTION fencepost.put_aside(p_lease_id bigint) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
  UPDATE fencepost.leases x SET ended_at = clock_timestamp(), ended_by = 'holder', secret_hash = NULL, attempt = NULL
   WHERE x.lease_id = p_lease_id $$;

-- A grant whose claims had to wait begins when they are done, and so do its tokens. Only for the transaction that made it.
CREATE FUNCTION fencepost.begin_now(p_lease_id bigint, OUT granted_at timestamptz, OUT expires_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH begun AS (
    UPDATE fencepost.leases x SET granted_at = n.now, expires_at = n.now + x.ttl_ms * interval '1 ms'
      FROM (SELECT clock_timestamp() AS now) n
     WHERE x.lease_id = p_lease_id AND x.xmin = pg_current_xact_id()::xid
    RETURNING x.first_token, x.granted_at, x.expires_at
  ), drawn AS (
    UPDATE fencepost.draws d SET drawn_at = b.granted_at FROM begun b WHERE d.first_token = b.first_token)
  SELECT b.granted_at, b.expires_at FROM begun b $$;

-- Renew (p_ttl_ms > 0; 0 keeps the expiry) and mint (p_count > 0) in one. No row: the lease is lost, or not the caller's.
CREATE FUNCTION fencepost.extend(p_lease_id bigint, p_hash bytea, p_ttl_ms integer, p_count integer)
RETURNS TABLE (lease_id bigint, names text[], owner text, claims text[], ttl_ms integer, tokens bigint[],
               last_token bigint, granted_at timestamptz, expires_at timestamptz, remaining_ms bigint, writes text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  drawn bigint[] := '{}';
BEGIN
  -- The clock is compared by the NEXT statement: one that waits for the row has read it before the wait.
  PERFORM FROM fencepost.leases x WHERE x.lease_id = p_lease_id AND x.secret_hash = p_hash FOR UPDATE;
  PERFORM FROM fencepost.leases x WHERE x.lease_id = p_lease_id AND x.secret_hash = p_hash
     AND x.ended_at IS NULL AND x.expires_at > clock_timestamp();
  IF NOT FOUND THEN RETURN; END IF;
  IF p_count > 0 THEN
    drawn := ARRAY(SELECT nextval('fencepost.tokens') FROM generate_series(1, p_count));
    INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at)
    VALUES (drawn[1], drawn, p_lease_id, clock_timestamp());
  END IF;
  RETURN QUERY UPDATE fencepost.leases x
     SET last_token = coalesce(drawn[cardinality(drawn)], x.last_token),
         ttl_ms = CASE WHEN p_ttl_ms > 0 THEN p_ttl_ms ELSE x.ttl_ms END,
         expires_at = CASE WHEN p_ttl_ms <> 0
           THEN clock_timestamp() + CASE WHEN p_ttl_ms > 0 THEN p_ttl_ms ELSE x.ttl_ms END * interval '1 ms'
           ELSE fencepost.within_ttl(x.expires_at, x.ttl_ms) END
   WHERE x.lease_id = p_lease_id
  RETURNING x.lease_id, x.names, x.owner, x.claims, x.ttl_ms, drawn, x.last_token, x.granted_at, x.expires_at,
            floor(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000)::bigint, x.writes;
END $$;

-- Release: the first waiter of each lock is woken; returns those of p_gateway, which it wakes itself. The lock's row stays
-- until `sweep`; it points to a lease that has ended. A request that tries for the lock holds the lease's row, so its ticket is
-- there to be seen once we have it. NULL: the lease is held, and the secret is not its holder's. A lease that is gone
-- already is no error.
CREATE FUNCTION fencepost.release(p_lease_id bigint, p_hash bytea, p_gateway uuid) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
  released text[];
BEGIN
  UPDATE fencepost.leases x SET ended_at = clock_timestamp(), ended_by = 'holder', secret_hash = NULL
    WHERE x.lease_id = p_lease_id AND x.secret_hash = p_hash AND x.ended_at IS NULL RETURNING x.names INTO released;
  IF FOUND THEN RETURN fencepost.wake(released, p_gateway); END IF;
  PERFORM FROM fencepost.leases x WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL AND x.expires_at > clock_timestamp();
  RETURN CASE WHEN NOT FOUND THEN '{}'::uuid[] END;
END $$;

-- Release many, each as release does: a row for each, in the order given. A lease that another transaction has locked is busy, and stays.
CREATE FUNCTION fencepost.release_each(p_leases bigint[], p_hashes bytea[], p_gateway uuid) RETURNS TABLE (busy boolean, woken uuid[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
BEGIN
  FOR i IN 1 .. cardinality(p_leases) LOOP
    PERFORM FROM fencepost.leases x WHERE x.lease_id = p_leases[i] FOR UPDATE SKIP LOCKED;
    busy := NOT FOUND AND EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = p_leases[i]);
    woken := CASE WHEN NOT busy THEN fencepost.release(p_leases[i], p_hashes[i], p_gateway) END;
    RETURN NEXT;
  END LOOP;
END $$;
