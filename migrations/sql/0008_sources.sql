-- Token sources beside the built-in one (R12): what was granted by a lock service, and how far its numbers got.
-- Statements are separated by a line of "-- next".
--
-- A token is generation * 2^48 + the service's own number. The generation is read BEFORE the service is asked; a grant
-- that comes back after it was raised is void. A grant that was requested after `issued` was recorded, and whose number is
-- not higher, says that the service forgot what it handed out: a backup was restored, a failover lost writes, a counter
-- was evicted. Then the source is frozen until an operator raises its generation.
--
-- Each source has a sequence, fencepost.tokens_NAME, which no token is drawn from: MINVALUE is where its generation begins
-- (1 in generation 0), and its last value the highest token known to have been handed out. A sequence, because a statement
-- with an old snapshot must see both as they are now, and because whoever compares a token with them keeps a lock on the
-- sequence until his transaction ends, which `bump` waits for. Only whoever has the source's row locked sets it.
--
-- Lock order:  sources (by name)  ->  its sequence  ->  source_leases (by lease_id). Writers lock rows and marks, and then the
-- sequence, and none of the others.

CREATE TABLE fencepost.sources (
  name           text COLLATE "C" PRIMARY KEY CONSTRAINT sources_name_check
                 CHECK (name ~ '^[a-z][a-z0-9_]{0,31}$' AND name NOT IN ('builtin', 'external')),
  scheme         text NOT NULL,
  ordering       text NOT NULL CONSTRAINT sources_ordering_check CHECK (ordering IN ('source', 'lock', 'database')),
  verifies       boolean,
  frozen_at      timestamptz,
  frozen_because text
);
-- next
COMMENT ON TABLE fencepost.sources IS 'Lock services whose tokens tables may be pinned to; how far these got is in a sequence for each, tokens_NAME. ordering: how far its numbers can be compared. scheme: what kind of service it is.';
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
-- The oldest token of the source's generation; 1 in the first. After issued() in the same expression, as oldest() is: that
-- one locks the sequence, so a generation that is being raised is waited for and then seen.
CREATE FUNCTION fencepost.oldest(p_source text) RETURNS bigint LANGUAGE sql VOLATILE
RETURN coalesce((pg_catalog.pg_sequence_parameters(to_regclass('fencepost.tokens_' || p_source))).minimum_value, 1);
-- next
-- The highest token known to have been handed out: for triggers of tables that are pinned to a source, in the writer's own
-- name. 0 where there is no such source. Locks its sequence until the transaction ends.
CREATE FUNCTION fencepost.issued(p_source text) RETURNS bigint LANGUAGE sql VOLATILE
RETURN coalesce(pg_catalog.pg_sequence_last_value(to_regclass('fencepost.tokens_' || p_source)), fencepost.oldest(p_source) - 1);
-- next
-- Both without that lock, and so maybe of a moment ago: to list them, and for whoever would take a stronger lock next.
CREATE FUNCTION fencepost.source_bounds(p_source text, OUT generation bigint, OUT issued bigint) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('SELECT q.seqmin >> 48, CASE WHEN t.is_called THEN t.last_value ELSE q.seqmin - 1 END'
                 ' FROM fencepost.%I t, pg_sequence q WHERE q.seqrelid = %L::regclass',
                 'tokens_' || p_source, 'fencepost.tokens_' || p_source) INTO generation, issued;
END $$;
-- next
-- Note that tokens up to p_token have been handed out. With the source's row locked; it never falls, and it stays when the
-- transaction does not commit: the service has handed them out all the same.
CREATE FUNCTION fencepost.source_reaches(p_source text, p_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_token > fencepost.issued(p_source) THEN PERFORM setval(('fencepost.tokens_' || p_source)::regclass, p_token); END IF;
END $$;
-- next
-- The source goes on in this generation, of which p_issued and what is below count as issued. With its row locked. Waits for
-- writes that have compared their token (see issued), and later ones wait for this. Undone where the transaction is.
CREATE FUNCTION fencepost.source_begins(p_source text, p_generation bigint, p_issued bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_generation > 32767 THEN
    RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = format('there is no generation %s: tokens end at 2^63', p_generation);
  END IF;
  EXECUTE format('ALTER SEQUENCE fencepost.%1$I MINVALUE %2$s START %2$s RESTART',
                 'tokens_' || p_source, greatest(p_generation << 48, 1));
  PERFORM setval(('fencepost.tokens_' || p_source)::regclass, p_issued);
END $$;
-- next
-- As require_issued(text, bigint) for the built-in source. A generation that the source does not have: FP008.
CREATE FUNCTION fencepost.require_issued(p_resource text, p_token bigint, p_source text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  issued bigint := fencepost.issued(p_source);
  oldest bigint := fencepost.oldest(p_source);  -- after issued(), see there
BEGIN
  IF to_regclass('fencepost.tokens_' || p_source) IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018', MESSAGE = format('the source %s is not registered, so no token for %s was issued', p_source, p_resource),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', '0', 'source', p_source)::text;
  END IF;
  IF p_token >> 48 > oldest >> 48 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s is of generation %s, and the source %s is at generation %s: it is not one of its tokens',
                       p_token, p_resource, p_token >> 48, p_source, oldest >> 48),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', issued::text, 'source', p_source)::text,
      HINT = 'Send the token as it came with the lease.';
  END IF;
  IF p_token > issued THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s was never issued, as far as is known here: none above %s of the source %s was',
                       p_token, p_resource, issued, p_source),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', issued::text, 'source', p_source)::text,
      HINT = format('Acquire through POST /v1/leases with "source": "%s"; for locks that are taken elsewhere, protect the table with --verify.', p_source);
  END IF;
  IF p_token < oldest AND NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = 'FP409',
      MESSAGE = format('stale token %s for %s: a token of an earlier generation of the source %s, all of which are void up to %s',
                       p_token, p_resource, p_source, oldest - 1),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'mark', (oldest - 1)::text)::text,
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
      EXECUTE format('CREATE SEQUENCE fencepost.%1$I AS bigint MINVALUE 1 NO CYCLE CACHE 1 OWNED BY fencepost.sources.name',
                     'tokens_' || p_name);
      EXECUTE format('GRANT SELECT ON SEQUENCE fencepost.%I TO PUBLIC', 'tokens_' || p_name);
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
  SELECT s.frozen_because, s.ordering INTO frozen, found_ordering FROM fencepost.sources s WHERE s.name = p_name;
  IF NOT FOUND THEN RETURN; END IF;
  source_state.issued := fencepost.issued(p_name);
  source_state.generation := fencepost.oldest(p_name) >> 48;
  IF found_ordering = 'lock' THEN
    source_state.issued := coalesce((SELECT x.last_token FROM fencepost.source_leases x
                                      WHERE x.source = p_name AND x.lock = p_lock ORDER BY x.last_token DESC LIMIT 1), 0);
  END IF;
END $$;
-- next
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
-- next
-- Tokens of a source that has no number of its own. Whoever draws asks the service afterwards whether the lock is still
-- his: if so it was his when this drew. NULL: the generation is another by now.
CREATE FUNCTION fencepost.source_draw(p_source text, p_generation bigint, p_count integer) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  last bigint;
BEGIN
  PERFORM FROM fencepost.sources s WHERE s.name = p_source AND s.ordering = 'database' AND s.frozen_at IS NULL FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN NULL; END IF;
  last := fencepost.issued(p_source);
  IF fencepost.oldest(p_source) >> 48 <> p_generation THEN RETURN NULL; END IF;
  PERFORM fencepost.source_reaches(p_source, last + p_count);
  RETURN ARRAY(SELECT generate_series(last + 1, last + p_count));
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
  PERFORM fencepost.issued(p_source);  -- before oldest(), see there
  IF fencepost.oldest(p_source) >> 48 <> p_generation THEN verdict := 'void'; RETURN; END IF;
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
  PERFORM fencepost.source_reaches(p_source, highest);
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
    VALUES (p_source, 'frozen', fencepost.oldest(p_source) >> 48, p_because);
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
  SELECT x.lease_id, x.lock, x.owner, x.claims, x.claimed, x.handle, x.tokens, x.last_token, x.ttl_ms, x.granted_at, t.expires_at,
         ceil(extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::bigint
    FROM fencepost.source_leases x, LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) t(expires_at)
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
  IF NOT FOUND THEN RETURN 'lost'; END IF;
  PERFORM fencepost.issued(l.source);  -- before oldest(), see there
  IF fencepost.oldest(l.source) >> 48 <> p_generation THEN RETURN 'lost'; END IF;
  IF s.frozen_at IS NOT NULL THEN RETURN 'frozen'; END IF;
  -- As with grants: what was issued before this was asked for, of the source or of the lock.
  IF s.ordering <> 'database' AND p_tokens[1] <= p_issued_before THEN
    PERFORM fencepost.source_freeze(l.source, format('it minted the token %s under its grant of %s, and %s had been issued before',
                                                     p_tokens[1], l.lock, p_issued_before));
    RETURN 'backwards';
  END IF;
  PERFORM fencepost.source_reaches(l.source, p_tokens[cardinality(p_tokens)]);
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
-- Live leases that have more time left than their TTL are from before the database's clock stepped back: they count from
-- now. p_leases null: all of them. Never waits for a row.
CREATE FUNCTION fencepost.source_count_anew(p_leases bigint[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  WITH ahead AS (SELECT x.lease_id FROM fencepost.source_leases x
                  WHERE (p_leases IS NULL OR x.lease_id = ANY (p_leases)) AND x.ended_at IS NULL
                    AND x.expires_at > fencepost.within_ttl(x.expires_at, x.ttl_ms) FOR NO KEY UPDATE SKIP LOCKED)
  UPDATE fencepost.source_leases x SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)
    FROM ahead WHERE x.lease_id = ahead.lease_id $$;
-- next
-- Which of these leases are over, and in how many ms the others may be: for holds that live by a process's session, which
-- that process has to end.
CREATE FUNCTION fencepost.source_over(p_leases bigint[]) RETURNS TABLE (lease_id bigint, due_ms bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT fencepost.source_count_anew(p_leases);
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
  SELECT x.lock, x.lease_id, x.owner, x.tokens[1], x.last_token, x.granted_at, t.expires_at,
         ceil(extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::bigint, '[]'::json
    FROM fencepost.source_leases x, LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) t(expires_at)
   WHERE x.source = p_source AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
     AND (p_name IS NULL OR x.lock = p_name) AND (p_after IS NULL OR x.lock > p_after)
   ORDER BY x.lock LIMIT p_limit $$;
-- next
-- The service says that it has handed out p_token (--verify).
CREATE FUNCTION fencepost.source_verified(p_source text, p_token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fencepost.sources s WHERE s.name = p_source AND s.frozen_at IS NULL FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  PERFORM fencepost.issued(p_source);  -- before oldest(), see there
  IF fencepost.oldest(p_source) >> 48 = p_token >> 48 THEN PERFORM fencepost.source_reaches(p_source, p_token); END IF;
END $$;
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
  PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('there is no source %s', p_source),
      HINT = 'A gateway that has it configured registers it; fencepost status lists those that are known.';
  END IF;
  SELECT (greatest(b.issued, p_above) >> 48) + 1 INTO raised FROM fencepost.source_bounds(p_source) b;
  PERFORM fencepost.source_begins(p_source, raised, raised << 48);  -- its number 0 counts as issued
  UPDATE fencepost.sources s SET frozen_at = NULL, frozen_because = NULL WHERE s.name = p_source;
  UPDATE fencepost.source_leases x SET ended_at = clock_timestamp()
   WHERE x.source = p_source AND x.ended_at IS NULL;
  INSERT INTO fencepost.source_log (source, event, generation, detail) VALUES (p_source, 'raised', raised, p_reason);
  PERFORM pg_notify('fencepost', 'reload');
  RETURN raised;
END $$;
-- next
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
-- next
-- As in 0006; and the sources whose tokens are drawn here have forgotten theirs as well.
ALTER TABLE fencepost.protected ADD COLUMN verify boolean NOT NULL DEFAULT false;
-- next
COMMENT ON COLUMN fencepost.protected.verify IS 'Whether the gateway asks the source about tokens that it does not know, before a mark is raised under them.';
-- next
-- By as many generations as the database's own number rose, and at least to that number: the gap that raise_generation
-- leaves by chance keeps tokens of another history apart here, too.
CREATE FUNCTION fencepost.raise_sources_of_ours() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rose bigint := NEW.generation - coalesce((SELECT max(g.generation) FROM fencepost.generations g
                                             WHERE g.generation < NEW.generation), 0);
  s record;
BEGIN
  FOR s IN SELECT x.name, b.issued >> 48 AS generation FROM fencepost.sources x, fencepost.source_bounds(x.name) b
            WHERE x.ordering = 'database' ORDER BY x.name LOOP
    PERFORM fencepost.source_raise(s.name, 'the generation of the database was raised: ' || NEW.reason,
                                   (greatest(NEW.generation, least(s.generation + rose, 32767)) - 1) << 48);
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
  found_max bigint;
  found_jump bigint;
  lowest bigint;
  passed boolean := true;
BEGIN
  -- Rule and source as they are now: who changes them waits for us, or we for him. A claim locks no table.
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('fencepost.scope/' || p_prefix, 0));
  IF fresh THEN
    SELECT p.rule, p.source, p.max_token, p.max_jump INTO found_rule, found_source, found_max, found_jump
      FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1;
  ELSE  -- an old snapshot must fail (40001), not read an old rule
    SELECT p.rule, p.source, p.max_token, p.max_jump INTO found_rule, found_source, found_max, found_jump
      FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1 FOR SHARE;
  END IF;
  IF NOT FOUND THEN PERFORM fencepost.outdated(p_prefix); END IF;
  -- After the lock: until this transaction ends the table cannot leave the scope any more.
  IF p_table IS NOT NULL AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = p_table AND p.scope = p_template)
  THEN
    PERFORM fencepost.outdated(p_table::regclass::text);
  END IF;
  FOR scope IN SELECT DISTINCT u.name COLLATE "C" FROM unnest(p_scopes) AS u(name) ORDER BY 1 LOOP
    IF p_token > found_max OR found_jump IS NOT NULL THEN
      PERFORM fencepost.meet_ceiling(p_prefix, scope, p_token, found_max, found_jump);
    END IF;
    refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);
    IF refused_by IS NULL THEN
      -- In a statement of its own, after the mark: a floor read before the wait could be too old.
      IF fresh THEN
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
      ELSE
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix FOR SHARE;
      END IF;
      IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
      IF NOT (lowest < p_token OR lowest = p_token AND found_rule = 'epoch') THEN refused_by := lowest; END IF;
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
  found_jump bigint;
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
  SELECT p.rule, p.source, coalesce(p.max_token, highest), p.max_jump INTO found_rule, found_source, highest, found_jump
    FROM fencepost.protected p
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
                                  WHERE h.resource = u.name AND h.last_fence_token < u.token
                                    AND (found_jump IS NULL OR u.token - h.last_fence_token <= found_jump)
                                    FOR UPDATE SKIP LOCKED) h
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
       AND (lowest < p_token OR lowest = p_token AND found_rule = 'epoch') AND scope IS NOT NULL
       AND found_jump IS NULL  -- whether it is too far, fencepost.enter says
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
  IF NOT (lowest < first_entered OR lowest = first_entered AND found_rule = 'epoch') THEN
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
  issued bigint;
  first bigint := (p_token >> 48) + p_of_another::int;
BEGIN
  SELECT b.issued INTO STRICT issued FROM fencepost.source_bounds(p_source) b;
  IF coalesce(p_token, 0) <= issued THEN RETURN; END IF;  -- without a lock: it never falls
  PERFORM FROM fencepost.sources x WHERE x.name = p_source FOR NO KEY UPDATE;
  SELECT b.issued INTO STRICT issued FROM fencepost.source_bounds(p_source) b;
  IF p_token <= issued THEN RETURN; END IF;
  IF issued > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('there is a mark of %s, and the source %s, which is in use, has issued none above %s', p_token, p_source, issued),
      HINT = format('fencepost source bump %s --above %s --reason … ends its leases, and lets its tokens begin above the mark. Then protect the table.', p_source, p_token);
  END IF;
  PERFORM fencepost.source_begins(p_source, first, CASE WHEN p_of_another THEN first << 48 ELSE p_token END);
  IF first > 0 THEN
    INSERT INTO fencepost.source_log (source, event, generation, detail)
    VALUES (p_source, 'raised', first, format('a table with the mark %s was pinned to it', p_token));
  END IF;
END $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.source_register(text, text, text, boolean), fencepost.source_state(text, text),
  fencepost.source_reaches(text, bigint), fencepost.source_begins(text, bigint, bigint),
  fencepost.source_repeated(bytea), fencepost.source_draw(text, bigint, integer),
  fencepost.source_grant(text, text, bytea, text, text[], text, bigint[], bigint, bigint, integer, integer),
  fencepost.source_freeze(text, text), fencepost.source_claiming(bigint), fencepost.source_claimed(bigint, bigint[]), fencepost.source_lease(text, bigint, bytea),
  fencepost.source_hold(text, bigint, bytea), fencepost.source_renewed(bigint, bytea, integer, integer),
  fencepost.source_minted(bigint, bytea, bigint[], bigint, bigint),
  fencepost.source_end(bigint, boolean), fencepost.source_count_anew(bigint[]), fencepost.source_over(bigint[]), fencepost.source_issued_to(text, bigint),
  fencepost.source_lost(text, bigint), fencepost.source_lock_states(text, text, text, integer),
  fencepost.source_verified(text, bigint), fencepost.source_raise(text, text, bigint), fencepost.source_forget(double precision, integer),
  fencepost.source_beyond(text, bigint, boolean), fencepost.raise_sources_of_ours() FROM PUBLIC;
-- next
-- What sources there are, and how far they got, is no secret: each sequence may be read as well (source_register).
GRANT SELECT ON fencepost.sources TO PUBLIC;
-- next
GRANT EXECUTE ON FUNCTION fencepost.issued(text), fencepost.oldest(text), fencepost.source_bounds(text),
  fencepost.require_issued(text, bigint, text) TO PUBLIC;
-- next
-- Partitions. fencepost.protected.partitions are those of which it is known what their rows have been through: under them
-- each row has at least the mark of its key. Event triggers (storage/protecting/partitions.py; only a superuser can make them) follow
-- what comes and goes; without them the next `protect` does, as far as it can be known by then.
--   comes by CREATE … PARTITION OF   it is empty: it gets the trigger that refuses TRUNCATE, which no partition inherits
--   comes by ATTACH PARTITION        its rows take up the floor and the marks of their keys, then the same trigger
--   goes by DETACH PARTITION         its rows leave their marks behind, and TRUNCATE is free again
--   goes by DROP TABLE               refused: when an event trigger hears of it there are no rows to read any more
-- Whoever changes the table owns it, and reads and writes its rows in his own name: nothing of a table's owner (triggers,
-- policies, expressions) ever runs in ours. Marks are written by functions of ours that ask which table is being changed.
ALTER TABLE fencepost.protected ADD COLUMN partitions regclass[] NOT NULL DEFAULT '{}';
-- next
COMMENT ON COLUMN fencepost.protected.partitions IS 'The partitions, at any depth, whose rows have the marks of their keys. One that is attached and not here has to be looked at by `fencepost protect`.';
-- next
-- The partitions that a table has, at any depth. Without a lock on any of them.
CREATE FUNCTION fencepost.partitions_of(p_root oid) RETURNS regclass[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE part(oid) AS (
    SELECT i.inhrelid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition WHERE i.inhparent = p_root
    UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT coalesce(array_agg(part.oid::regclass ORDER BY part.oid), '{}') FROM part $$;
-- next
-- Those of them that came while nobody looked: they are not registered, or lack the trigger that refuses TRUNCATE, or have been
-- away and are back: then the row triggers, which come with ATTACH and go with DETACH, are younger than that one.
CREATE FUNCTION fencepost.partitions_unknown(p_root oid) RETURNS regclass[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(u.part ORDER BY u.part::oid), '{}') FROM unnest(fencepost.partitions_of(p_root)) AS u(part)
   WHERE NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = p_root AND u.part = ANY (p.partitions))
      OR NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = u.part AND t.tgname = 'zzz_fencepost_trunc' AND t.oid > ALL (
           SELECT x.oid FROM pg_trigger x WHERE x.tgrelid = u.part AND starts_with(x.tgname, 'zzz_fencepost_') AND x.tgparentid <> 0))
$$;
-- next
-- In an event trigger: the protected tables that the command has changed, and which of their partitions came and went. Outside of
-- one PostgreSQL raises an error. `attached`: they are not only ones that the command has made, which are empty: it may find
-- some that came or went while no event trigger was there. `oldest`: below it no mark is of the source's present
-- generation. A partition that went still has our trigger; another relation of its number, in a restored dump, has not.
CREATE FUNCTION fencepost.altered()
RETURNS TABLE (root regclass, name text, named_by text, by_rows boolean, attached boolean, lowest bigint, oldest bigint,
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
    lowest := coalesce((SELECT f.floor FROM fencepost.floors f WHERE f.name = p.name), 0);
    came := ARRAY(SELECT unnest(fencepost.partitions_of(p.relation)) EXCEPT SELECT unnest(p.partitions));
    went := ARRAY(SELECT g.part FROM (SELECT unnest(p.partitions) EXCEPT SELECT unnest(fencepost.partitions_of(p.relation))) AS g(part)
                   WHERE EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = g.part AND t.tgname = 'zzz_fencepost_trunc'
                                    AND t.tgfoid = 'fencepost.no_truncate()'::regprocedure));
    attached := EXISTS (SELECT FROM unnest(came || went) AS g(part)
                         WHERE NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c
                           WHERE c.classid = 'pg_class'::regclass AND c.command_tag = 'CREATE TABLE' AND c.objid = g.part));
    -- Right after a generation was raised no token of it has been issued, and the rows' own trigger lets no other mark pass.
    -- One is drawn that nobody gets.
    IF p.source = 'builtin' AND attached AND fencepost.issued() < fencepost.oldest() THEN
      PERFORM nextval('fencepost.tokens');
    END IF;
    oldest := CASE p.source WHEN 'external' THEN 0 WHEN 'builtin' THEN fencepost.oldest() ELSE fencepost.oldest(p.source) END;
    RETURN NEXT;
  END LOOP;
END $$;
-- next
-- Everybody may call the next three, and they do nothing but for a table that is being changed at this moment: only its
-- owner can do that. They have no say in which partitions these are.
CREATE FUNCTION fencepost.altered_marks(p_root regclass) RETURNS TABLE (resource text, mark bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT k.resource, k.last_fence_token FROM fencepost.altered() a
    JOIN fencepost.marks k ON starts_with(k.resource, fencepost.enc(a.name) || '/') WHERE a.root = p_root;
END $$;
-- next
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
-- next
-- The row first, then the partitions: somebody else may have given another table of the tree one. An old snapshot would not
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
-- next
-- A table as a query that gives the parent's row type: its columns may be in another order, and once it is detached it
-- cannot be cast any more.
CREATE FUNCTION fencepost.as_row_of(p_root regclass) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('ROW(%s)::%s', string_agg(format('r.%I', a.attname), ', ' ORDER BY a.attnum), p_root)
    FROM pg_attribute a WHERE a.attrelid = p_root AND a.attnum > 0 AND NOT a.attisdropped $$;
-- next
-- The rows of a partition that was attached. p_path is the session's search_path, for triggers of the table's owner; what runs
-- under it names its operators in full. The fence's own trigger takes the new marks for tokens, and finds no others.
CREATE FUNCTION fencepost.take_in(p_root regclass, p_part regclass, p_named_by text, p_lowest bigint, p_oldest bigint, p_path text)
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
-- next
-- The rows of a partition that was detached.
CREATE FUNCTION fencepost.let_go(p_root regclass, p_part regclass, p_named_by text, p_lowest bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  names text[];
  marks bigint[];
BEGIN
  -- Up to the floor nothing needs to be said: it refuses as well.
  FOR names, marks IN EXECUTE format(
    'SELECT array_agg(s.name), array_agg(s.mark) FROM (SELECT fencepost.%I(%s) AS name, r.last_fence_token AS mark,'
    ' row_number() OVER () / 10000 AS batch FROM ONLY %s AS r WHERE r.last_fence_token > %s) AS s GROUP BY s.batch',
    p_named_by, fencepost.as_row_of(p_root), p_part, p_lowest)
  LOOP
    PERFORM fencepost.leave_marks(p_root, names, marks);
  END LOOP;
END $$;
-- next
-- A superuser who changes somebody else's table must not run what that one has hung on it. Whether the role is another one now.
-- In a SECURITY DEFINER function PostgreSQL refuses that (42501).
CREATE FUNCTION fencepost.act_for(p_part regclass) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('role', pg_get_userbyid(c.relowner), true) FROM pg_class c
    WHERE c.oid = p_part AND pg_get_userbyid(c.relowner) <> current_user
      AND pg_has_role(c.relowner, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END);
  RETURN FOUND;
END $$;
-- next
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
-- next
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
      acting := by_rows AND fencepost.act_for(part);
      IF part = ANY (t.went) THEN
        IF by_rows THEN PERFORM fencepost.let_go(t.root, part, t.named_by, t.lowest); END IF;
        EXECUTE format('DROP TRIGGER zzz_fencepost_trunc ON %s', part);
      ELSE
        IF by_rows THEN PERFORM fencepost.take_in(t.root, part, t.named_by, t.lowest, t.oldest, p_path); END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_trunc ON %s', part);
        EXECUTE format('CREATE TRIGGER zzz_fencepost_trunc BEFORE TRUNCATE ON %s FOR EACH STATEMENT'
          ' EXECUTE FUNCTION fencepost.no_truncate()', part);
      END IF;
      IF acting THEN PERFORM set_config('role', role, true); END IF;
    END LOOP;
    PERFORM fencepost.partitions_known(t.root);
  END LOOP;
END $$;
-- next
-- The tables, of a protected one and its partitions, where a row that is inserted without a word about last_fence_token gets
-- something else than 0: a value in that column is a token. Looks at the expression as it is stored, for pg_get_expr
-- takes the table's lock: a constant 0, maybe of an integer that is made a bigint (function 481).
CREATE FUNCTION fencepost.other_defaults(p_root oid) RETURNS regclass[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(a.attrelid::regclass ORDER BY a.attrelid), '{}')
    FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   WHERE a.attrelid = ANY (array_append(fencepost.partitions_of(p_root)::oid[], p_root))
     AND a.attname = 'last_fence_token' AND NOT a.attisdropped
     AND d.adbin::text !~ ('^(\{FUNCEXPR :funcid 481 [^{}]*:args \()?'
                           '\{CONST [^{}]*:constvalue \d+ \[( 0){8} \]\}(\) :location -?\d+\})?$') $$;
-- next
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
-- next
-- Every CREATE TABLE and ALTER TABLE of the database ends here, whoever's it is: nothing here may fail for those that do not
-- concern us, also for a role that may not look into our schema, or where the schema is no longer whole.
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
-- next
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
-- next
REVOKE EXECUTE ON FUNCTION fencepost.on_dropped() FROM PUBLIC;
-- next
-- Said, and not left to the default, which an owner of the schema may have changed: each CREATE TABLE of anybody gets here.
GRANT EXECUTE ON FUNCTION fencepost.require_no_default(), fencepost.other_defaults(oid),
  fencepost.follow_partitions(text), fencepost.any_filled(regclass[]), fencepost.act_for(regclass),
  fencepost.let_go(regclass, regclass, text, bigint),
  fencepost.take_in(regclass, regclass, text, bigint, bigint, text), fencepost.as_row_of(regclass),
  fencepost.partitions_known(regclass), fencepost.leave_marks(regclass, text[], bigint[]),
  fencepost.altered_marks(regclass), fencepost.altered(), fencepost.partitions_unknown(oid), fencepost.partitions_of(oid),
  fencepost.no_truncate() TO PUBLIC;
-- next
-- Gateways and commands of versions that have this revision can work on the schema, and say that they are behind where it is
-- newer. A migration that leaves all in place that they use leaves this as it is; another one sets it to its own.
CREATE FUNCTION fencepost.compatible_from() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '0008'::text;
-- next
GRANT EXECUTE ON FUNCTION fencepost.compatible_from() TO PUBLIC;
