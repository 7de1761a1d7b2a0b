-- What lock services granted: each hold that was acquired through a gateway is recorded as a lease, with the tokens that were
-- drawn for it. The service decides who holds a lock; a record only ends earlier than the hold, never later.
--
-- Order of a grant:  1 source_state (sources.sql)   2 the service is asked   3 source_grant compares, and records. Lock order: see
-- sources.sql.

CREATE TABLE fencepost.source_leases (
  lease_id    bigint PRIMARY KEY DEFAULT nextval('fencepost.lease_ids'),
  source      text COLLATE "C" NOT NULL REFERENCES fencepost.sources,
  lock        text COLLATE "C" NOT NULL,
  secret_hash bytea NOT NULL,
  owner       text NOT NULL,
  claims      text[] COLLATE "C" NOT NULL,
  claimed     boolean NOT NULL,
  handle      text NOT NULL,
  tokens      bigint[] NOT NULL,
  last_token  bigint NOT NULL,
  ttl_ms      integer NOT NULL CONSTRAINT source_leases_ttl_check CHECK (ttl_ms > 0),
  granted_at  timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  ended_at    timestamptz,
  ended_by    text CONSTRAINT source_leases_ended_by_check CHECK (ended_by IN ('holder', 'operator', 'generation', 'service')),
  writes      text[] COLLATE "C" NOT NULL DEFAULT '{}'
) WITH (fillfactor = 70);

COMMENT ON TABLE fencepost.source_leases IS 'Grants of lock services. handle: what the service needs to renew or release. claimed: the claims that go with the grant have been made. tokens: those drawn with the grant. writes, ended_by: as in fencepost.leases; service: it was lost there.';

-- A secret may be used again once its lease is over. It stays with that one: a holder that has it may still have the service's own
-- hold released.
CREATE UNIQUE INDEX source_leases_secret_hash_key ON fencepost.source_leases (secret_hash) WHERE ended_at IS NULL;

CREATE INDEX source_leases_live_idx ON fencepost.source_leases (source, lock) WHERE ended_at IS NULL;

-- The last grants of a lock: for services whose numbers rise within one lock only, and to know who came after whom.
CREATE INDEX source_leases_lock_idx ON fencepost.source_leases (source, lock, last_token);

CREATE TABLE fencepost.source_draws (
  source      text COLLATE "C" NOT NULL,
  first_token bigint NOT NULL,
  tokens      bigint[] NOT NULL,
  lease_id    bigint NOT NULL,
  drawn_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX source_draws_idx ON fencepost.source_draws (source, first_token);

CREATE INDEX source_draws_lease_id_idx ON fencepost.source_draws (lease_id);

-- Record a grant of the service.
--   granted     lease_id is the new lease
--   void        the generation was raised since the service was asked, or a grant of this lock with this number or a later one is recorded already
--   backwards   its number is not above what was issued before it was requested: the source is quarantined now
--   quarantined it was quarantined before
--   withdrawn   the secret's client waits no more (withdrawn.sql)
CREATE FUNCTION fencepost.source_grant(p_source text, p_lock text, p_hash bytea, p_owner text, p_claims text[], p_handle text,
  p_tokens bigint[], p_generation bigint, p_issued_before bigint, p_ttl_ms integer, p_elapsed_ms integer,
  p_writes text[],
  OUT verdict text, OUT lease_id bigint, OUT granted_at timestamptz, OUT expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s fencepost.sources;
  highest bigint := p_tokens[cardinality(p_tokens)];
BEGIN
  SELECT x.* INTO STRICT s FROM fencepost.sources x WHERE x.name = p_source FOR NO KEY UPDATE;
  IF s.quarantined_at IS NOT NULL THEN verdict := 'quarantined'; RETURN; END IF;
  IF fencepost.is_withdrawn(p_hash) THEN verdict := 'withdrawn'; RETURN; END IF;
  PERFORM fencepost.issued(p_source);  -- before oldest(), see there
  IF fencepost.oldest(p_source) >> 48 <> p_generation THEN verdict := 'void'; RETURN; END IF;
  IF s.ordering <> 'database' AND p_tokens[1] <= p_issued_before THEN
    verdict := 'backwards';
    PERFORM fencepost.source_quarantine(p_source, format('its grant of %s has the token %s, which is not above all that had been issued before it was requested',
                                                     p_lock, p_tokens[1]));
    RETURN;
  END IF;
  -- Statements see what others have committed: a holder with a later grant recorded it with the source's row locked.
  IF EXISTS (SELECT FROM fencepost.source_leases x WHERE x.source = p_source AND x.lock = p_lock AND x.last_token >= p_tokens[1]) THEN
    verdict := 'void';
    RETURN;
  END IF;
  granted_at := clock_timestamp() - p_elapsed_ms * interval '1 ms';
  -- One that the service has lost was over when this one began, and not only when that was recorded.
  UPDATE fencepost.source_leases x
     SET ended_at = least(greatest(source_grant.granted_at, x.granted_at), x.expires_at), ended_by = 'service'
   WHERE x.source = p_source AND x.lock = p_lock AND x.ended_at IS NULL;
  UPDATE fencepost.source_leases x SET ended_at = least(clock_timestamp(), x.expires_at)
   WHERE x.secret_hash = p_hash AND x.ended_at IS NULL AND x.expires_at <= clock_timestamp();
  PERFORM fencepost.source_reaches(p_source, highest);
  expires_at := source_grant.granted_at + p_ttl_ms * interval '1 ms';
  INSERT INTO fencepost.source_leases AS x (source, lock, secret_hash, owner, claims, claimed, handle, tokens, last_token, ttl_ms,
                                            granted_at, expires_at, writes)
  VALUES (p_source, p_lock, p_hash, p_owner, p_claims, cardinality(p_claims) = 0, p_handle, p_tokens, highest, p_ttl_ms,
          source_grant.granted_at, source_grant.expires_at, p_writes)
  RETURNING x.lease_id INTO source_grant.lease_id;
  INSERT INTO fencepost.source_draws (source, first_token, tokens, lease_id)
  VALUES (p_source, p_tokens[1], p_tokens, source_grant.lease_id);
  verdict := 'granted';
END $$;

-- A live lease by its secret: for a request that is repeated.
CREATE FUNCTION fencepost.source_repeated(p_hash bytea) RETURNS SETOF fencepost.source_leases
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l fencepost.source_leases;
BEGIN
  FOR l IN SELECT x.* FROM fencepost.source_leases x
            WHERE x.secret_hash = p_hash AND x.ended_at IS NULL AND x.expires_at > clock_timestamp() LOOP
    l.expires_at := fencepost.within_ttl(l.expires_at, l.ttl_ms);
    RETURN NEXT l;
  END LOOP;
END $$;

-- Before the claims that go with a grant are made, in their transaction: of two requests with one secret the second waits
-- here, and then sees that they are made, and under which tokens. No row: the lease is over. Not the lease's row: a later
-- grant of the lock has to lock that one, with the source's, and would wait for whatever the claims wait for.
CREATE FUNCTION fencepost.source_claiming(p_lease_id bigint) RETURNS TABLE (claimed boolean, tokens bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('fencepost.source_claim/' || p_lease_id, 0));
  RETURN QUERY SELECT x.claimed, x.tokens FROM fencepost.source_leases x
                WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL AND x.expires_at > clock_timestamp();
END $$;

-- They have been made, with the first of these tokens; the others are the holder's. False: the lease is over.
CREATE FUNCTION fencepost.source_claimed(p_lease_id bigint, p_tokens bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.source_leases x SET claimed = true, tokens = p_tokens WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL;
  RETURN FOUND;
END $$;

-- A live lease, for the holder of its secret (p_hash), or for every caller (null).
CREATE FUNCTION fencepost.source_lease(p_source text, p_lease_id bigint, p_hash bytea)
RETURNS TABLE (lease_id bigint, lock text, owner text, claims text[], claimed boolean, handle text, tokens bigint[], last_token bigint,
               ttl_ms integer, granted_at timestamptz, expires_at timestamptz, remaining_ms bigint, writes text[])
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, x.lock, x.owner, x.claims, x.claimed, x.handle, x.tokens, x.last_token, x.ttl_ms, x.granted_at, t.expires_at,
         ceil(extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::bigint, x.writes
    FROM fencepost.source_leases x, LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) t(expires_at)
   WHERE x.lease_id = p_lease_id AND x.source = p_source AND (p_hash IS NULL OR x.secret_hash = p_hash)
     AND x.ended_at IS NULL AND x.expires_at > clock_timestamp() $$;

-- The hold of a lease, whether or not that is over by our record: for the holder of its secret, to release it.
CREATE FUNCTION fencepost.source_hold(p_source text, p_lease_id bigint, p_hash bytea) RETURNS TABLE (lock text, handle text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lock, x.handle FROM fencepost.source_leases x
   WHERE x.lease_id = p_lease_id AND x.source = p_source AND x.secret_hash = p_hash $$;

-- The service has renewed the hold, at p_elapsed_ms before now. No row: the lease is over by our record.
CREATE FUNCTION fencepost.source_renewed(p_lease_id bigint, p_hash bytea, p_ttl_ms integer, p_elapsed_ms integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fencepost.source_leases x WHERE x.lease_id = p_lease_id FOR NO KEY UPDATE;
  -- The clock is compared by a statement after the wait for the row.
  UPDATE fencepost.source_leases x
     SET ttl_ms = p_ttl_ms, expires_at = clock_timestamp() + (p_ttl_ms - p_elapsed_ms) * interval '1 ms'
   WHERE x.lease_id = p_lease_id AND x.secret_hash = p_hash AND x.ended_at IS NULL AND x.expires_at > clock_timestamp();
  RETURN FOUND;
END $$;

-- Record tokens that were minted under a lease. minted; lost: it is over by our record; backwards: see source_grant.
CREATE FUNCTION fencepost.source_minted(p_lease_id bigint, p_hash bytea, p_tokens bigint[], p_generation bigint, p_issued_before bigint)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l fencepost.source_leases;
  s fencepost.sources;
BEGIN
  SELECT x.* INTO l FROM fencepost.source_leases x WHERE x.lease_id = p_lease_id AND x.secret_hash = p_hash;
  IF NOT FOUND THEN RETURN 'lost'; END IF;
  SELECT x.* INTO STRICT s FROM fencepost.sources x WHERE x.name = l.source FOR NO KEY UPDATE;
  SELECT x.* INTO l FROM fencepost.source_leases x
   WHERE x.lease_id = p_lease_id AND x.secret_hash = p_hash AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
     FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 'lost'; END IF;
  PERFORM fencepost.issued(l.source);  -- before oldest(), see there
  IF fencepost.oldest(l.source) >> 48 <> p_generation THEN RETURN 'lost'; END IF;
  IF s.quarantined_at IS NOT NULL THEN RETURN 'quarantined'; END IF;
  -- As with grants: what was issued before this was asked for, of the source or of the lock.
  IF s.ordering <> 'database' AND p_tokens[1] <= p_issued_before THEN
    PERFORM fencepost.source_quarantine(l.source, format('it minted the token %s under its grant of %s, which is not above all that had been issued before',
                                                     p_tokens[1], l.lock));
    RETURN 'backwards';
  END IF;
  PERFORM fencepost.source_reaches(l.source, p_tokens[cardinality(p_tokens)]);
  UPDATE fencepost.source_leases x SET last_token = greatest(x.last_token, p_tokens[cardinality(p_tokens)]) WHERE x.lease_id = p_lease_id;
  INSERT INTO fencepost.source_draws (source, first_token, tokens, lease_id) VALUES (l.source, p_tokens[1], p_tokens, p_lease_id);
  RETURN 'minted';
END $$;

-- A lease is over. p_by: who ended it, see ended_by; null: its time ran out. Returns whether it was there.
CREATE FUNCTION fencepost.source_end(p_lease_id bigint, p_by text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.source_leases x SET ended_at = clock_timestamp(), ended_by = p_by
   WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL;
  RETURN FOUND;
END $$;

-- Live leases that have more time left than their TTL are from before the database's clock stepped back: they count from
-- now. p_leases null: all of them. Never waits for a row.
CREATE FUNCTION fencepost.source_count_anew(p_leases bigint[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  WITH ahead AS (SELECT x.lease_id FROM fencepost.source_leases x
                  WHERE (p_leases IS NULL OR x.lease_id = ANY (p_leases)) AND x.ended_at IS NULL
                    AND x.expires_at > fencepost.within_ttl(x.expires_at, x.ttl_ms) FOR NO KEY UPDATE SKIP LOCKED)
  UPDATE fencepost.source_leases x SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)
    FROM ahead WHERE x.lease_id = ahead.lease_id $$;

-- Which of these leases are over, and in how many ms the others may be: for holds that live by a process's session, which
-- that process has to end.
CREATE FUNCTION fencepost.source_over(p_leases bigint[]) RETURNS TABLE (lease_id bigint, due_ms bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT fencepost.source_count_anew(p_leases);
  SELECT u, greatest(coalesce(ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000), 0), 0)::bigint
    FROM unnest(p_leases) u LEFT JOIN fencepost.source_leases x ON x.lease_id = u AND x.ended_at IS NULL $$;

CREATE FUNCTION fencepost.source_issued_to(p_source text, p_token bigint)
RETURNS TABLE (lease_id bigint, names text[], owner text, granted_at timestamptz, drawn_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, ARRAY[x.lock], x.owner, x.granted_at, d.drawn_at
    FROM (SELECT * FROM fencepost.source_draws f WHERE f.source = p_source AND f.first_token <= p_token
           ORDER BY f.first_token DESC LIMIT 64) d
    JOIN fencepost.source_leases x ON x.lease_id = d.lease_id
   WHERE p_token = ANY (d.tokens) $$;

CREATE FUNCTION fencepost.source_lost(p_source text, p_lease_id bigint)
RETURNS TABLE (names text[], owner text, ended_at timestamptz, ended_by text, superseded_by json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY[x.lock], x.owner, least(x.ended_at, x.expires_at), CASE WHEN x.ended_at < x.expires_at THEN x.ended_by END,
         (SELECT json_build_object('holder', y.owner, 'lease_id', p_source || '-' || y.lease_id, 'locks', ARRAY[y.lock],
                                   'granted_at', y.granted_at, 'issued_at',
                                   (SELECT i.drawn_at FROM fencepost.source_issued_to(p_source, y.last_token) i), 'source', p_source)
            FROM fencepost.source_leases y
           WHERE y.source = p_source AND y.lock = x.lock AND y.last_token > x.last_token AND y.ended_at IS NULL
             AND y.expires_at > clock_timestamp() ORDER BY y.last_token LIMIT 1)
    FROM fencepost.source_leases x
   WHERE x.lease_id = p_lease_id AND x.source = p_source AND (x.ended_at IS NOT NULL OR x.expires_at <= clock_timestamp()) $$;

CREATE FUNCTION fencepost.source_lock_states(p_source text, p_names text[], p_after text, p_limit integer, p_like text[])
RETURNS TABLE (name text, lease_id bigint, owner text, first_token bigint, last_token bigint, granted_at timestamptz,
               expires_at timestamptz, remaining_ms bigint, waiters json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lock, x.lease_id, x.owner, x.tokens[1], x.last_token, x.granted_at, t.expires_at,
         ceil(extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::bigint, '[]'::json
    FROM fencepost.source_leases x, LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) t(expires_at)
   WHERE x.source = p_source AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
     AND (p_names IS NULL OR x.lock = ANY (p_names)) AND (p_after IS NULL OR x.lock > p_after)
     AND (p_like IS NULL OR x.lock LIKE ANY (p_like))
   ORDER BY x.lock LIMIT p_limit $$;

-- Forget leases that ended long ago, and count those anew that are from before the clock stepped back. Those of services whose numbers rise within one lock only keep the last of each lock:
-- it is what the next grant is compared with.
CREATE FUNCTION fencepost.source_forget(p_keep_s double precision, p_limit integer) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint[];
BEGIN
  PERFORM fencepost.source_count_anew(NULL);
  WITH old AS (
    SELECT x.lease_id FROM fencepost.source_leases x JOIN fencepost.sources s ON s.name = x.source
     WHERE coalesce(x.ended_at, x.expires_at) < clock_timestamp() - p_keep_s * interval '1 s'
       AND (s.ordering IS DISTINCT FROM 'lock' OR EXISTS (SELECT FROM fencepost.source_leases y
              WHERE y.source = x.source AND y.lock = x.lock AND y.last_token > x.last_token))
     ORDER BY x.lease_id LIMIT p_limit FOR UPDATE OF x SKIP LOCKED),
  forgotten AS (DELETE FROM fencepost.source_leases x USING old WHERE x.lease_id = old.lease_id RETURNING x.lease_id)
  SELECT array_agg(f.lease_id) INTO gone FROM forgotten f;
  DELETE FROM fencepost.source_draws d WHERE d.lease_id = ANY (gone);
  RETURN coalesce(cardinality(gone), 0);
END $$;
