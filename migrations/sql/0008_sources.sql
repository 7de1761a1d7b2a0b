-- Token sources beside the built-in one (R12): what was granted by a lock service, and how far its numbers got.
-- Statements are separated by a line of "-- next".
--
-- A token is generation * 2^48 + the service's own number. The generation is read BEFORE the service is asked; a grant
-- that comes back after it was raised is void. A grant that was requested after `issued` was recorded, and whose number is
-- not higher, says that the service forgot what it handed out: a backup was restored, a failover lost writes, a counter
-- was evicted. Then the source is frozen until an operator raises its generation.
--
-- Lock order:  sources (by name)  ->  source_leases (by lease_id)  ->  protected rows and marks.

CREATE TABLE fencepost.sources (
  name           text COLLATE "C" PRIMARY KEY CONSTRAINT sources_name_check
                 CHECK (name ~ '^[a-z][a-z0-9_]{0,31}$' AND name NOT IN ('builtin', 'external')),
  scheme         text NOT NULL,
  ordering       text NOT NULL CONSTRAINT sources_ordering_check CHECK (ordering IN ('source', 'lock', 'database')),
  verifies       boolean,
  generation     bigint NOT NULL DEFAULT 0 CONSTRAINT sources_generation_check CHECK (generation BETWEEN 0 AND 32767),
  issued         bigint NOT NULL DEFAULT 0 CONSTRAINT sources_issued_check CHECK (issued >= 0),
  frozen_at      timestamptz,
  frozen_because text
);
-- next
COMMENT ON TABLE fencepost.sources IS 'Lock services whose tokens tables may be pinned to. issued: the highest token known to have been handed out. ordering: how far its numbers can be compared. scheme: what kind of service it is.';
-- next
CREATE TABLE fencepost.source_leases (
  lease_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
  released    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);
-- next
COMMENT ON TABLE fencepost.source_leases IS 'Grants of lock services. handle: what the service needs to renew or release. claimed: the claims that go with the grant have been made. tokens: those drawn with the grant.';
-- next
-- A secret may be used again once its lease is over. It stays with that one: whoever has it may still have the service's own
-- hold released.
CREATE UNIQUE INDEX source_leases_secret_hash_key ON fencepost.source_leases (secret_hash) WHERE ended_at IS NULL;
-- next
CREATE INDEX source_leases_live_idx ON fencepost.source_leases (source, lock) WHERE ended_at IS NULL;
-- next
-- The last grants of a lock: for services whose numbers rise within one lock only, and to tell who came after whom.
CREATE INDEX source_leases_lock_idx ON fencepost.source_leases (source, lock, last_token);
-- next
CREATE TABLE fencepost.source_draws (
  source      text COLLATE "C" NOT NULL,
  first_token bigint NOT NULL,
  tokens      bigint[] NOT NULL,
  lease_id    bigint NOT NULL,
  drawn_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- next
CREATE INDEX source_draws_idx ON fencepost.source_draws (source, first_token);
-- next
CREATE INDEX source_draws_lease_id_idx ON fencepost.source_draws (lease_id);
-- next
CREATE TABLE fencepost.source_log (
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  source     text COLLATE "C" NOT NULL,
  event      text NOT NULL CONSTRAINT source_log_event_check CHECK (event IN ('registered', 'frozen', 'raised')),
  generation bigint NOT NULL,
  detail     text NOT NULL,
  by         text NOT NULL DEFAULT session_user
);
-- next
COMMENT ON TABLE fencepost.source_log IS 'What befell the sources, in order: rows are only ever added.';
-- next
-- For triggers of tables that are pinned to a source, in the writer's own name. VOLATILE: under READ COMMITTED each call sees
-- what has been granted by then. A transaction with one snapshot does not, and is told FP018 of later tokens.
CREATE FUNCTION fencepost.issued(p_source text) RETURNS bigint LANGUAGE sql VOLATILE
RETURN coalesce((SELECT s.issued FROM fencepost.sources s WHERE s.name = p_source), 0);
-- next
-- The last token that an earlier generation may have had, and one more.
CREATE FUNCTION fencepost.oldest(p_source text) RETURNS bigint LANGUAGE sql VOLATILE
RETURN coalesce((SELECT greatest(s.generation << 48, 1) FROM fencepost.sources s WHERE s.name = p_source), 1);
-- next
-- As require_issued(text, bigint) for the built-in source. A generation that the source does not have: FP008.
CREATE FUNCTION fencepost.require_issued(p_resource text, p_token bigint, p_source text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s fencepost.sources;
BEGIN
  SELECT x.* INTO s FROM fencepost.sources x WHERE x.name = p_source;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018', MESSAGE = format('the source %s is not registered, so no token for %s was issued', p_source, p_resource),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', '0', 'source', p_source)::text;
  END IF;
  IF p_token >> 48 > s.generation THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s is of generation %s, and the source %s is at generation %s: it is not one of its tokens',
                       p_token, p_resource, p_token >> 48, p_source, s.generation),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', s.issued::text, 'source', p_source)::text,
      HINT = 'Send the token as it came with the lease.';
  END IF;
  IF p_token > s.issued THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s was never issued, as far as is known here: none above %s of the source %s was',
                       p_token, p_resource, s.issued, p_source),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', s.issued::text, 'source', p_source)::text,
      HINT = format('Acquire through POST /v1/leases with "source": "%s"; for locks that are taken elsewhere, protect the table with --verify.', p_source);
  END IF;
  IF p_token < greatest(s.generation << 48, 1) AND NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = 'FP409',
      MESSAGE = format('stale token %s for %s: a token of an earlier generation of the source %s, all of which are void up to %s',
                       p_token, p_resource, p_source, (s.generation << 48) - 1),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'mark', ((s.generation << 48) - 1)::text)::text,
      HINT = 'The generation of the source was raised since this token was drawn. Do not retry: acquire the lock anew and read again.';
  END IF;
END $$;
-- next
-- A gateway has this source configured. A name keeps its kind: numbers of two services cannot be compared. What is known
-- already is only read: the source's row may be locked by grants.
CREATE FUNCTION fencepost.source_register(p_name text, p_kind text, p_ordering text, p_verifies boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  known fencepost.sources;
BEGIN
  SELECT s.* INTO known FROM fencepost.sources s WHERE s.name = p_name;
  IF NOT FOUND THEN
    INSERT INTO fencepost.sources AS s (name, scheme, ordering, verifies) VALUES (p_name, p_kind, p_ordering, p_verifies)
    ON CONFLICT (name) DO NOTHING;
    IF FOUND THEN
      INSERT INTO fencepost.source_log (source, event, generation, detail) VALUES (p_name, 'registered', 0, p_kind);
      RETURN;
    END IF;
    SELECT s.* INTO STRICT known FROM fencepost.sources s WHERE s.name = p_name;
  END IF;
  IF (known.scheme, known.ordering) IS DISTINCT FROM (p_kind, p_ordering) THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('the source %s is %s here, and not %s', p_name, known.scheme, p_kind),
      HINT = 'Numbers of two services cannot be compared: give the new one a name of its own.';
  END IF;
  IF known.verifies IS DISTINCT FROM p_verifies THEN
    UPDATE fencepost.sources s SET verifies = p_verifies WHERE s.name = p_name;
  END IF;
END $$;
-- next
-- What has to be known before a service is asked: where its tokens are now. For a service whose numbers rise within one
-- lock only, `issued` is that lock's.
CREATE FUNCTION fencepost.source_state(p_name text, p_lock text, OUT generation bigint, OUT issued bigint, OUT frozen text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_ordering text;
BEGIN
  SELECT s.generation, s.issued, s.frozen_because, s.ordering INTO source_state.generation, source_state.issued, frozen, found_ordering
    FROM fencepost.sources s WHERE s.name = p_name;
  IF found_ordering = 'lock' THEN
    source_state.issued := coalesce((SELECT x.last_token FROM fencepost.source_leases x
                                      WHERE x.source = p_name AND x.lock = p_lock ORDER BY x.last_token DESC LIMIT 1), 0);
  END IF;
END $$;
-- next
-- A lease by its secret: for a request that is repeated. A live one, or one that is over.
CREATE FUNCTION fencepost.source_repeated(p_hash bytea) RETURNS SETOF fencepost.source_leases
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.* FROM fencepost.source_leases x
   WHERE x.secret_hash = p_hash AND x.ended_at IS NULL AND x.expires_at > clock_timestamp() $$;
-- next
-- Tokens of a source that has no number of its own. Whoever draws asks the service afterwards whether the lock is still
-- his: if so it was his when this drew. NULL: the generation is another by now.
CREATE FUNCTION fencepost.source_draw(p_source text, p_generation bigint, p_count integer) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  last bigint;
BEGIN
  UPDATE fencepost.sources s SET issued = greatest(s.issued, s.generation << 48) + p_count
   WHERE s.name = p_source AND s.ordering = 'database' AND s.generation = p_generation AND s.frozen_at IS NULL
  RETURNING s.issued INTO last;
  IF NOT FOUND THEN RETURN NULL; END IF;
  RETURN ARRAY(SELECT generate_series(last - p_count + 1, last));
END $$;
-- next
-- Record a grant of the service.
--   granted     lease_id is the new lease
--   void        the generation was raised since the service was asked, or a later grant of this lock is recorded already
--   backwards   its number is not above what was issued before it was requested: the source is frozen now
--   frozen      it was frozen before
CREATE FUNCTION fencepost.source_grant(p_source text, p_lock text, p_hash bytea, p_owner text, p_claims text[], p_handle text,
  p_tokens bigint[], p_generation bigint, p_issued_before bigint, p_ttl_ms integer, p_elapsed_ms integer,
  OUT verdict text, OUT lease_id bigint, OUT granted_at timestamptz, OUT expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s fencepost.sources;
  highest bigint := p_tokens[cardinality(p_tokens)];
BEGIN
  SELECT x.* INTO STRICT s FROM fencepost.sources x WHERE x.name = p_source FOR NO KEY UPDATE;
  IF s.frozen_at IS NOT NULL THEN verdict := 'frozen'; RETURN; END IF;
  IF s.generation <> p_generation THEN verdict := 'void'; RETURN; END IF;
  IF s.ordering <> 'database' AND p_tokens[1] <= p_issued_before THEN
    verdict := 'backwards';
    PERFORM fencepost.source_freeze(p_source, format('its grant of %s has the token %s, and %s had been issued before it was requested',
                                                     p_lock, p_tokens[1], p_issued_before));
    RETURN;
  END IF;
  -- Statements see what others have committed: whoever has a later grant recorded it with the source's row locked.
  IF EXISTS (SELECT FROM fencepost.source_leases x WHERE x.source = p_source AND x.lock = p_lock AND x.last_token > p_tokens[1]) THEN
    verdict := 'void';
    RETURN;
  END IF;
  UPDATE fencepost.source_leases x SET ended_at = least(clock_timestamp(), x.expires_at)
   WHERE x.source = p_source AND x.lock = p_lock AND x.ended_at IS NULL;
  UPDATE fencepost.source_leases x SET ended_at = least(clock_timestamp(), x.expires_at)
   WHERE x.secret_hash = p_hash AND x.ended_at IS NULL AND x.expires_at <= clock_timestamp();
  UPDATE fencepost.sources x SET issued = greatest(x.issued, highest) WHERE x.name = p_source;
  granted_at := clock_timestamp() - p_elapsed_ms * interval '1 ms';
  expires_at := source_grant.granted_at + p_ttl_ms * interval '1 ms';
  INSERT INTO fencepost.source_leases AS x (source, lock, secret_hash, owner, claims, claimed, handle, tokens, last_token, ttl_ms,
                                            granted_at, expires_at)
  VALUES (p_source, p_lock, p_hash, p_owner, p_claims, cardinality(p_claims) = 0, p_handle, p_tokens, highest, p_ttl_ms,
          source_grant.granted_at, source_grant.expires_at)
  RETURNING x.lease_id INTO source_grant.lease_id;
  INSERT INTO fencepost.source_draws (source, first_token, tokens, lease_id)
  VALUES (p_source, p_tokens[1], p_tokens, source_grant.lease_id);
  verdict := 'granted';
END $$;
-- next
CREATE FUNCTION fencepost.source_freeze(p_source text, p_because text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.sources s SET frozen_at = clock_timestamp(), frozen_because = p_because
   WHERE s.name = p_source AND s.frozen_at IS NULL;
  IF FOUND THEN
    INSERT INTO fencepost.source_log (source, event, generation, detail)
    SELECT s.name, 'frozen', s.generation, p_because FROM fencepost.sources s WHERE s.name = p_source;
    PERFORM pg_notify('fencepost', 'reload');
  END IF;
END $$;
-- next
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
-- next
-- They have been made, with the first of these tokens; the others are the holder's. False: the lease is over.
CREATE FUNCTION fencepost.source_claimed(p_lease_id bigint, p_tokens bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.source_leases x SET claimed = true, tokens = p_tokens WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL;
  RETURN FOUND;
END $$;
-- next
-- A live lease, for whoever has its secret (p_hash), or for everybody (null).
CREATE FUNCTION fencepost.source_lease(p_source text, p_lease_id bigint, p_hash bytea)
RETURNS TABLE (lease_id bigint, lock text, owner text, claims text[], claimed boolean, handle text, tokens bigint[], last_token bigint,
               ttl_ms integer, granted_at timestamptz, expires_at timestamptz, remaining_ms bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, x.lock, x.owner, x.claims, x.claimed, x.handle, x.tokens, x.last_token, x.ttl_ms, x.granted_at, x.expires_at,
         ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000)::bigint
    FROM fencepost.source_leases x
   WHERE x.lease_id = p_lease_id AND x.source = p_source AND (p_hash IS NULL OR x.secret_hash = p_hash)
     AND x.ended_at IS NULL AND x.expires_at > clock_timestamp() $$;
-- next
-- The hold of a lease, whether or not that is over by our record: for whoever has its secret, to release it.
CREATE FUNCTION fencepost.source_hold(p_source text, p_lease_id bigint, p_hash bytea) RETURNS TABLE (lock text, handle text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lock, x.handle FROM fencepost.source_leases x
   WHERE x.lease_id = p_lease_id AND x.source = p_source AND x.secret_hash = p_hash $$;
-- next
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
-- next
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
  IF NOT FOUND OR s.generation <> p_generation THEN RETURN 'lost'; END IF;
  IF s.frozen_at IS NOT NULL THEN RETURN 'frozen'; END IF;
  -- As with grants: what was issued before this was asked for, of the source or of the lock.
  IF s.ordering <> 'database' AND p_tokens[1] <= p_issued_before THEN
    PERFORM fencepost.source_freeze(l.source, format('it minted the token %s under its grant of %s, and %s had been issued before',
                                                     p_tokens[1], l.lock, p_issued_before));
    RETURN 'backwards';
  END IF;
  UPDATE fencepost.sources x SET issued = greatest(x.issued, p_tokens[cardinality(p_tokens)]) WHERE x.name = l.source;
  UPDATE fencepost.source_leases x SET last_token = greatest(x.last_token, p_tokens[cardinality(p_tokens)]) WHERE x.lease_id = p_lease_id;
  INSERT INTO fencepost.source_draws (source, first_token, tokens, lease_id) VALUES (l.source, p_tokens[1], p_tokens, p_lease_id);
  RETURN 'minted';
END $$;
-- next
-- A lease is over: released by its holder, or lost as the service says. Returns whether it was there.
CREATE FUNCTION fencepost.source_end(p_lease_id bigint, p_released boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.source_leases x SET ended_at = clock_timestamp(), released = p_released
   WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL;
  RETURN FOUND;
END $$;
-- next
-- Which of these leases are over, and in how many ms the others may be: for holds that live by a process's session, which
-- that process has to end.
CREATE FUNCTION fencepost.source_over(p_leases bigint[]) RETURNS TABLE (lease_id bigint, due_ms bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT u, greatest(coalesce(ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000), 0), 0)::bigint
    FROM unnest(p_leases) u LEFT JOIN fencepost.source_leases x ON x.lease_id = u AND x.ended_at IS NULL $$;
-- next
CREATE FUNCTION fencepost.source_issued_to(p_source text, p_token bigint)
RETURNS TABLE (lease_id bigint, names text[], owner text, granted_at timestamptz, drawn_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, ARRAY[x.lock], x.owner, x.granted_at, d.drawn_at
    FROM (SELECT * FROM fencepost.source_draws f WHERE f.source = p_source AND f.first_token <= p_token
           ORDER BY f.first_token DESC LIMIT 64) d
    JOIN fencepost.source_leases x ON x.lease_id = d.lease_id
   WHERE p_token = ANY (d.tokens) $$;
-- next
CREATE FUNCTION fencepost.source_lost(p_source text, p_lease_id bigint)
RETURNS TABLE (names text[], owner text, ended_at timestamptz, released boolean, superseded_by json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY[x.lock], x.owner, least(x.ended_at, x.expires_at), x.released,
         (SELECT json_build_object('holder', y.owner, 'lease_id', p_source || '-' || y.lease_id, 'locks', ARRAY[y.lock],
                                   'token', y.last_token::text, 'granted_at', y.granted_at, 'issued_at',
                                   (SELECT i.drawn_at FROM fencepost.source_issued_to(p_source, y.last_token) i), 'source', p_source)
            FROM fencepost.source_leases y
           WHERE y.source = p_source AND y.lock = x.lock AND y.last_token > x.last_token AND y.ended_at IS NULL
             AND y.expires_at > clock_timestamp() ORDER BY y.last_token LIMIT 1)
    FROM fencepost.source_leases x
   WHERE x.lease_id = p_lease_id AND x.source = p_source AND (x.ended_at IS NOT NULL OR x.expires_at <= clock_timestamp()) $$;
-- next
CREATE FUNCTION fencepost.source_lock_states(p_source text, p_name text, p_after text, p_limit integer)
RETURNS TABLE (name text, lease_id bigint, owner text, first_token bigint, last_token bigint, granted_at timestamptz,
               expires_at timestamptz, remaining_ms bigint, waiters json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lock, x.lease_id, x.owner, x.tokens[1], x.last_token, x.granted_at, x.expires_at,
         ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000)::bigint, '[]'::json
    FROM fencepost.source_leases x
   WHERE x.source = p_source AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
     AND (p_name IS NULL OR x.lock = p_name) AND (p_after IS NULL OR x.lock > p_after)
   ORDER BY x.lock LIMIT p_limit $$;
-- next
-- The service says that it has handed out p_token (--verify).
CREATE FUNCTION fencepost.source_verified(p_source text, p_token bigint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE fencepost.sources s SET issued = p_token
   WHERE s.name = p_source AND s.issued < p_token AND s.frozen_at IS NULL AND s.generation = p_token >> 48 $$;
-- next
-- An operator vouches that the service counts on from here: tokens of the new generation are above all of the old ones,
-- which are void, and so are the leases; and above p_above. Returns the new generation.
CREATE FUNCTION fencepost.source_raise(p_source text, p_reason text, p_above bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  raised bigint;
BEGIN
  IF p_reason IS NULL OR p_reason !~ '[^[:space:]]' THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = 'a generation is raised for a reason, and none was given';
  END IF;
  SELECT greatest(s.generation, s.issued >> 48, p_above >> 48) + 1 INTO raised FROM fencepost.sources s WHERE s.name = p_source FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('there is no source %s', p_source),
      HINT = 'A gateway that has it configured registers it; fencepost status lists those that are known.';
  END IF;
  IF raised > 32767 THEN
    RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = format('there is no generation %s: tokens end at 2^63', raised);
  END IF;
  -- Its number 0 counts as issued: so `issued` always is of the present generation.
  UPDATE fencepost.sources s SET generation = raised, issued = raised << 48, frozen_at = NULL, frozen_because = NULL
   WHERE s.name = p_source;
  UPDATE fencepost.source_leases x SET ended_at = clock_timestamp()
   WHERE x.source = p_source AND x.ended_at IS NULL;
  INSERT INTO fencepost.source_log (source, event, generation, detail) VALUES (p_source, 'raised', raised, p_reason);
  PERFORM pg_notify('fencepost', 'reload');
  RETURN raised;
END $$;
-- next
-- Forget leases that ended long ago. Those of services whose numbers rise within one lock only keep the last of each lock:
-- it is what the next grant is compared with.
CREATE FUNCTION fencepost.source_forget(p_keep_s double precision, p_limit integer) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint[];
BEGIN
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
-- next
-- As in 0006; and the sources whose tokens are drawn here have forgotten theirs as well.
ALTER TABLE fencepost.protected ADD COLUMN verify boolean NOT NULL DEFAULT false;
-- next
COMMENT ON COLUMN fencepost.protected.verify IS 'Whether the gateway asks the source about tokens that it does not know, before a mark is raised under them.';
-- next
CREATE FUNCTION fencepost.raise_sources_of_ours() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n text;
BEGIN
  FOR n IN SELECT s.name FROM fencepost.sources s WHERE s.ordering = 'database' ORDER BY s.name LOOP
    PERFORM fencepost.source_raise(n, 'the generation of the database was raised: ' || NEW.reason, 0);
  END LOOP;
  RETURN NULL;
END $$;
-- next
-- The sources whose tokens are drawn in this database have forgotten theirs when it was failed over (R19).
CREATE TRIGGER raise_sources AFTER INSERT ON fencepost.generations FOR EACH ROW EXECUTE FUNCTION fencepost.raise_sources_of_ours();
-- next
-- As in 0004, for scopes of every source.
CREATE OR REPLACE FUNCTION fencepost.enter(p_prefix text, p_scopes text[], p_token bigint, p_table oid DEFAULT NULL,
                                p_template text DEFAULT NULL)
RETURNS TABLE (scope text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fresh boolean := current_setting('transaction_isolation') = 'read committed';
  found_rule text;
  found_source text;
  lowest bigint;
  passed boolean := true;
BEGIN
  -- Rule and source as they are now: who changes them waits for us, or we for him. A claim locks no table.
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('fencepost.scope/' || p_prefix, 0));
  IF fresh THEN
    SELECT p.rule, p.source INTO found_rule, found_source FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1;
  ELSE  -- an old snapshot must fail (40001), not read an old rule
    SELECT p.rule, p.source INTO found_rule, found_source FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1 FOR SHARE;
  END IF;
  IF NOT FOUND THEN PERFORM fencepost.outdated(p_prefix); END IF;
  -- After the lock: until this transaction ends the table cannot leave the scope any more.
  IF p_table IS NOT NULL AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = p_table AND p.scope = p_template)
  THEN
    PERFORM fencepost.outdated(p_table::regclass::text);
  END IF;
  FOR scope IN SELECT DISTINCT u.name COLLATE "C" FROM unnest(p_scopes) AS u(name) ORDER BY 1 LOOP
    refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);
    IF refused_by IS NULL THEN
      -- In a statement of its own, after the mark: a floor read before the wait could be too old.
      IF fresh THEN
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
      ELSE
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix FOR SHARE;
      END IF;
      IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
      IF NOT (lowest < p_token OR lowest = p_token AND found_rule = 'lease') THEN refused_by := lowest; END IF;
    END IF;
    passed := passed AND refused_by IS NULL;
    RETURN NEXT;
  END LOOP;
  IF passed AND found_source = 'builtin' THEN
    PERFORM fencepost.require_issued(p_scopes[1], p_token);
  ELSIF passed AND found_source <> 'external' THEN
    PERFORM fencepost.require_issued(p_scopes[1], p_token, found_source);
  END IF;
END $$;
-- next
-- As in 0007, for scopes of every source.
CREATE OR REPLACE FUNCTION fencepost.enter_each(p_prefix text, p_scopes text[], p_tokens bigint[], p_table oid, p_template text)
RETURNS TABLE (number integer, scope text, verdict text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  found_rule text;
  found_source text;
  lowest bigint;
  highest bigint := 9223372036854775807;
  oldest bigint := 1;
  first_entered bigint := 9223372036854775807;
  entered boolean[] := array_fill(false, ARRAY[cardinality(p_scopes)]);
  p_token bigint;
BEGIN
  IF cardinality(array_remove(p_scopes, NULL)) = 0 THEN  -- nothing to enter: all of them are answered already
    RETURN QUERY SELECT u.o::integer - 1, NULL::text, 'unclear', NULL::bigint
                   FROM unnest(p_scopes) WITH ORDINALITY AS u(name, o);
    RETURN;
  END IF;
  -- Rule and source as they are now: who changes them waits for us, or we for him.
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('fencepost.scope/' || p_prefix, 0));
  SELECT p.rule, p.source INTO found_rule, found_source FROM fencepost.protected p
   WHERE p.relation = p_table AND p.scope = p_template;
  IF NOT FOUND THEN PERFORM fencepost.outdated(p_table::regclass::text); END IF;
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
  IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
  IF found_source = 'builtin' THEN
    highest := fencepost.issued();
    oldest := fencepost.oldest();
  ELSIF found_source <> 'external' THEN
    highest := fencepost.issued(found_source);
    oldest := fencepost.oldest(found_source);
  END IF;
  -- Most have a mark that is lower, and that nobody holds. Only one of two that have the same mark gets to it.
  FOR number, p_token IN
    UPDATE fencepost.marks k
       SET last_fence_token = x.token, xid = pg_current_xact_id(), row_absent = true, changed_at = clock_timestamp()
      FROM (SELECT u.o, u.token, h.place
              FROM ROWS FROM (unnest(p_scopes), unnest(p_tokens)) WITH ORDINALITY AS u(name, token, o)
             CROSS JOIN LATERAL (SELECT h.ctid AS place FROM fencepost.marks h
                                  WHERE h.resource = u.name AND h.last_fence_token < u.token FOR UPDATE SKIP LOCKED) h
             WHERE lowest < u.token AND u.token BETWEEN oldest AND highest) x
     WHERE k.ctid = x.place
    RETURNING x.o, x.token
  LOOP
    entered[number] := true;
    first_entered := least(first_entered, p_token);
  END LOOP;
  FOR number, scope, p_token, verdict IN
    SELECT u.o - 1, u.name, u.token, CASE WHEN u.entered THEN 'entered' ELSE 'unclear' END
      FROM ROWS FROM (unnest(p_scopes), unnest(p_tokens), unnest(entered)) WITH ORDINALITY AS u(name, token, entered, o)
     ORDER BY u.name COLLATE "C", u.entered DESC
  LOOP
    refused_by := NULL;
    IF verdict = 'unclear' AND p_token BETWEEN oldest AND highest
       AND (lowest < p_token OR lowest = p_token AND found_rule = 'lease') AND scope IS NOT NULL
    THEN
      PERFORM FROM fencepost.marks k WHERE k.resource = scope FOR UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (SELECT FROM fencepost.marks k WHERE k.resource = scope) THEN
        verdict := 'busy';
      ELSIF FOUND AND EXISTS (SELECT FROM fencepost.marks k
                               WHERE k.resource = scope AND k.xid = pg_current_xact_id() AND fencepost.ours(k.xmin)) THEN
        verdict := 'busy';
      ELSE
        refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);
        verdict := CASE WHEN refused_by IS NULL THEN 'entered' ELSE 'refused' END;
        IF refused_by IS NULL THEN first_entered := least(first_entered, p_token); END IF;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
  -- In a statement of its own, after the marks: the floor may have risen before they were ours.
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
  IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
  IF NOT (lowest < first_entered OR lowest = first_entered AND found_rule = 'lease') THEN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('the floor of %s rose meanwhile', p_prefix);
  END IF;
END $$;
-- next
-- A table, or scope, becomes the source's that has marks up to p_token. A source of which nobody has a token yet goes on from
-- there: above them in a new generation where they are known to be another source's (p_of_another), else by counting them as
-- its own. One that is in use is not touched: its other tables' holders would be refused, or its next grant be called a step back.
CREATE FUNCTION fencepost.source_beyond(p_source text, p_token bigint, p_of_another boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s fencepost.sources;
  first bigint := (p_token >> 48) + p_of_another::int;
BEGIN
  SELECT x.* INTO STRICT s FROM fencepost.sources x WHERE x.name = p_source;
  IF coalesce(p_token, 0) <= s.issued THEN RETURN; END IF;  -- without a lock: it never falls
  SELECT x.* INTO STRICT s FROM fencepost.sources x WHERE x.name = p_source FOR NO KEY UPDATE;
  IF p_token <= s.issued THEN RETURN; END IF;
  IF s.issued > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('there is a mark of %s, and the source %s, which is in use, has issued none above %s', p_token, p_source, s.issued),
      HINT = format('fencepost source bump %s --above %s --reason … ends its leases, and lets its tokens begin above the mark. Then protect the table.', p_source, p_token);
  END IF;
  UPDATE fencepost.sources x SET generation = first, issued = greatest(first << 48, CASE WHEN NOT p_of_another THEN p_token END)
   WHERE x.name = p_source;
  IF first > 0 THEN
    INSERT INTO fencepost.source_log (source, event, generation, detail)
    VALUES (p_source, 'raised', first, format('a table with the mark %s was pinned to it', p_token));
  END IF;
END $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.source_register(text, text, text, boolean), fencepost.source_state(text, text),
  fencepost.source_repeated(bytea), fencepost.source_draw(text, bigint, integer),
  fencepost.source_grant(text, text, bytea, text, text[], text, bigint[], bigint, bigint, integer, integer),
  fencepost.source_freeze(text, text), fencepost.source_claiming(bigint), fencepost.source_claimed(bigint, bigint[]), fencepost.source_lease(text, bigint, bytea),
  fencepost.source_hold(text, bigint, bytea), fencepost.source_renewed(bigint, bytea, integer, integer),
  fencepost.source_minted(bigint, bytea, bigint[], bigint, bigint),
  fencepost.source_end(bigint, boolean), fencepost.source_over(bigint[]), fencepost.source_issued_to(text, bigint),
  fencepost.source_lost(text, bigint), fencepost.source_lock_states(text, text, text, integer),
  fencepost.source_verified(text, bigint), fencepost.source_raise(text, text, bigint), fencepost.source_forget(double precision, integer),
  fencepost.source_beyond(text, bigint, boolean), fencepost.raise_sources_of_ours() FROM PUBLIC;
-- next
-- Triggers compare with it in the writer's own name.
GRANT SELECT ON fencepost.sources TO PUBLIC;
-- next
GRANT EXECUTE ON FUNCTION fencepost.issued(text), fencepost.oldest(text), fencepost.require_issued(text, bigint, text) TO PUBLIC;
