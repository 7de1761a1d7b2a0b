-- Locks, leases and tokens (R9): the built-in token source. Statements are separated by a line of "-- next".
--
-- Lock order, one for everybody:  lock rows (by name, COLLATE "C"), lease rows (by id), then protected rows and marks.
-- Order of a grant:  1 lock rows locked   2 lease rows locked   3 a NEW statement compares the clock   4 nextval
-- Invariant: whoever draws a token holds the lease's row lock and has seen, in a later statement, that the lease lives.
--            A lease that another one has superseded has ended_at, so that a clock that steps back revives nothing.
--            What is kept for a while never has more than that while left: more says that the clock has stepped back since
--            it was written. Then it counts from now (a lease, by whoever meets it next), or no more (a kept place).

-- One sequence for all locks: tokens are ordered across locks, and an idle lock needs no row. CACHE 1 is a safety
-- property: with more, sessions would hand out older tokens later.
CREATE SEQUENCE fencepost.tokens AS bigint MINVALUE 1 NO CYCLE CACHE 1;
-- next
COMMENT ON SEQUENCE fencepost.tokens IS 'The tokens of the built-in source, for all locks. CACHE 1, NO CYCLE and the order of statements in fencepost.acquire are what makes them rise.';
-- next
CREATE SEQUENCE fencepost.tickets AS bigint MINVALUE 1 NO CYCLE CACHE 1;
-- next
COMMENT ON SEQUENCE fencepost.tickets IS 'Places in the queues of locks, drawn under the lock rows: ticket order is arrival order.';
-- next
CREATE TABLE fencepost.locks (
  name     text COLLATE "C" PRIMARY KEY CONSTRAINT locks_name_check CHECK (octet_length(name) BETWEEN 1 AND 512),
  lease_id bigint
) WITH (fillfactor = 70);
-- next
COMMENT ON TABLE fencepost.locks IS 'One row per lock that somebody holds, or has tried to get. Those of idle locks are swept.';
-- next
CREATE TABLE fencepost.leases (
  lease_id    bigint PRIMARY KEY,
  secret_hash bytea CONSTRAINT leases_secret_hash_key UNIQUE,
  names       text[] COLLATE "C" NOT NULL,
  owner       text NOT NULL,
  claims      text[] COLLATE "C" NOT NULL,
  ttl_ms      integer NOT NULL CONSTRAINT leases_ttl_check CHECK (ttl_ms > 0),
  last_token  bigint NOT NULL,
  granted_at  timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  ended_at    timestamptz
) WITH (fillfactor = 70);
-- next
COMMENT ON TABLE fencepost.leases IS 'Grants. lease_id is the first token drawn for it, so no live lease has an older one. ended_at: released, or superseded after it expired. Ended leases stay for a while, to tell a refused holder who came after it.';
-- next
CREATE TABLE fencepost.draws (
  first_token bigint PRIMARY KEY,
  tokens      bigint[] NOT NULL,
  lease_id    bigint NOT NULL,
  drawn_at    timestamptz NOT NULL
);
-- next
COMMENT ON TABLE fencepost.draws IS 'Which tokens were drawn together, for which lease. Written with every draw: a transaction that only calls nextval is not flushed at commit, and its tokens could come again after a crash.';
-- next
CREATE TABLE fencepost.gateways (
  gateway uuid PRIMARY KEY,
  seen_at timestamptz NOT NULL
) WITH (fillfactor = 50);
-- next
COMMENT ON TABLE fencepost.gateways IS 'Gateway processes that have waiters, and when they were last heard of. The waiters of a silent one do not block a queue.';
-- next
CREATE TABLE fencepost.waiters (
  ticket      bigint,
  name        text COLLATE "C",
  secret_hash bytea NOT NULL,
  owner       text NOT NULL,
  gateway     uuid,
  visit       uuid NOT NULL,
  queued_at   timestamptz NOT NULL,
  give_up_at  timestamptz NOT NULL,
  kept_ms     integer,
  CONSTRAINT waiters_pkey PRIMARY KEY (name, ticket)
);
-- next
COMMENT ON TABLE fencepost.waiters IS 'Who waits for a lock, one row per lock of the request. visit is the HTTP request that waits; gateway is null between two requests of one waiter that keeps its place, and kept_ms says for how long.';
-- next
CREATE INDEX waiters_visit_idx ON fencepost.waiters (visit);
-- next
CREATE INDEX waiters_secret_hash_idx ON fencepost.waiters (secret_hash);
-- next
-- The highest token ever issued; 0 before the first. For triggers of tables under --source builtin, on the hot path.
-- After a crash it is up to 32 further, since nextval logs ahead: numbers that nobody gets, and that harm nobody.
CREATE FUNCTION fencepost.issued() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN coalesce(pg_catalog.pg_sequence_last_value('fencepost.tokens'::regclass), 0);
-- next
-- A token that no lease was ever given must not raise a mark: nobody bricks a row with 2^63-1 (R12).
CREATE FUNCTION fencepost.require_issued(p_resource text, p_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  issued bigint := fencepost.issued();
BEGIN
  IF p_token > issued THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s was never issued: the built-in source has issued none above %s',
                       p_token, p_resource, issued),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', issued::text)::text,
      HINT = 'Tokens of this table come from leases: POST /v1/leases, or fencepost lock.';
  END IF;
END $$;
-- next
-- Move the sequence past marks that another source left. nextval and this exclude each other until this commits: ALTER
-- SEQUENCE takes a lock that conflicts with nextval's (and issued's, which is kept to the end of the transaction: two
-- that asked it first could not both go on to the stronger one, so the first look is a plain read).
CREATE FUNCTION fencepost.issue_beyond(p_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_token <= (SELECT CASE WHEN t.is_called THEN t.last_value ELSE 0 END FROM fencepost.tokens t) THEN RETURN; END IF;
  ALTER SEQUENCE fencepost.tokens CACHE 1;
  IF p_token > fencepost.issued() THEN PERFORM setval('fencepost.tokens', p_token); END IF;
END $$;
-- next
-- Waiters that count: they have not given up, and their gateway has been heard of (a time in the future is one from
-- before the clock was set back, and so is the end of a kept place that is further off than it was kept for). `sweep`
-- removes the others.
CREATE VIEW fencepost.live_waiters AS
  SELECT w.* FROM fencepost.waiters w LEFT JOIN fencepost.gateways g ON g.gateway = w.gateway
   WHERE w.give_up_at > clock_timestamp()
     AND (w.kept_ms IS NULL OR w.give_up_at <= clock_timestamp() + w.kept_ms * interval '1 ms')
     AND (w.gateway IS NULL
          OR g.seen_at BETWEEN clock_timestamp() - interval '3 s' AND clock_timestamp() + interval '3 s');
-- next
-- The first in a lock's queue, NULL when nobody waits.
CREATE FUNCTION fencepost.head(p_name text) RETURNS bigint LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT w.ticket FROM fencepost.live_waiters w WHERE w.name = p_name ORDER BY w.ticket LIMIT 1 $$;
-- next
-- Wake the first of each of these locks' queues, and nobody else. Those that wait at p_gateway are returned, for it to
-- wake them itself; others are notified. NOTIFY takes a database-wide lock at commit: only when somebody waits.
CREATE FUNCTION fencepost.wake(p_names text[], p_gateway uuid) RETURNS uuid[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n text;
  w record;
  here uuid[] := '{}';
BEGIN
  FOREACH n IN ARRAY p_names LOOP
    SELECT x.gateway, x.visit INTO w FROM fencepost.live_waiters x WHERE x.name = n ORDER BY x.ticket LIMIT 1;
    IF w.gateway = p_gateway THEN
      here := here || w.visit;
    ELSIF w.gateway IS NOT NULL THEN
      PERFORM pg_notify('fencepost_' || replace(w.gateway::text, '-', ''), w.visit::text);
    END IF;
  END LOOP;
  RETURN here;
END $$;
-- next
-- When a lease is over: after its TTL at the latest, whatever is written in its row (see the invariant above).
CREATE FUNCTION fencepost.within_ttl(p_expires_at timestamptz, p_ttl_ms integer) RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN least(p_expires_at, clock_timestamp() + p_ttl_ms * interval '1 ms');
-- next
CREATE TYPE fencepost.acquired AS (
  verdict text, lease_id bigint, owner text, claim_token bigint, tokens bigint[], ttl_ms integer,
  granted_at timestamptz, expires_at timestamptz, lock text, due_ms bigint, ticket bigint, first boolean, waiting integer
);
-- next
COMMENT ON TYPE fencepost.acquired IS 'verdict: granted or repeated (the lease is in lease_id … expires_at), held or queued (these are the holder''s, null when the lock is free and others wait for it; lock is which, first whether nobody is before us, waiting how many wait). due_ms: until the lease expires; mismatch (the secret belongs to a live lease of other locks or claims).';
-- next
-- Acquire one or many locks: all, or none, or a place in the queue of all. p_gateway, p_visit: who waits; p_wait_ms 0
-- does not queue. The caller may go on in the same transaction, raising marks under claim_token.
CREATE FUNCTION fencepost.acquire(p_names text[], p_hash bytea, p_owner text, p_ttl_ms integer, p_count integer,
                                  p_claims text[], p_gateway uuid, p_visit uuid, p_wait_ms integer)
RETURNS fencepost.acquired LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Plans are kept from when the tables were small; a scan that was cheap then is not when they have grown. A lock row is
-- held for long only by a grant whose claims wait for a row: do not queue up behind it with a connection each.
SET enable_seqscan = off SET lock_timeout = '1s' AS $$
DECLARE
  wanted text[] := p_names;
  claimed text[] := p_claims;
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
    r.verdict := CASE WHEN l.names = wanted AND l.claims = claimed THEN 'repeated' ELSE 'mismatch' END;
    SELECT d.tokens INTO STRICT drawn FROM fencepost.draws d WHERE d.first_token = l.lease_id;
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
    IF r.lock IS NULL THEN  -- free; but nobody passes those who wait already
      SELECT u INTO r.lock FROM unnest(wanted) u WHERE fencepost.head(u) < coalesce(r.ticket, 9223372036854775807)
        ORDER BY u LIMIT 1;
    END IF;
    IF p_wait_ms <= 1 THEN  -- somebody's last try, who will be told
      r.waiting := (SELECT count(*) FROM fencepost.live_waiters w WHERE w.name = r.lock);
    END IF;
  END IF;
  IF r.lock IS NOT NULL AND p_wait_ms = 0 THEN
    r.verdict := 'held';
    IF r.ticket IS NOT NULL THEN  -- a waiter's last try; unless a repeat of its request has taken the place over
      DELETE FROM fencepost.waiters w WHERE w.name = ANY (wanted) AND w.ticket = r.ticket AND w.visit = p_visit;
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
    r.first := (SELECT bool_and(fencepost.head(u) >= r.ticket) FROM unnest(wanted) u);
    RETURN r;
  END IF;
  -- Ours. Whoever had expired here is over for good, and so is the secret's earlier use.
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
  r.lease_id := drawn[1]; r.owner := p_owner; r.ttl_ms := p_ttl_ms;
  r.claim_token := CASE WHEN claiming THEN drawn[1] END;
  r.tokens := CASE WHEN claiming THEN drawn[2:] ELSE drawn END;
  r.granted_at := clock_timestamp();
  r.expires_at := r.granted_at + p_ttl_ms * interval '1 ms';
  r.due_ms := p_ttl_ms;
  INSERT INTO fencepost.leases (lease_id, secret_hash, names, owner, claims, ttl_ms, last_token, granted_at, expires_at)
  VALUES (r.lease_id, p_hash, wanted, p_owner, claimed, p_ttl_ms, drawn[cardinality(drawn)], r.granted_at, r.expires_at);
  INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at) VALUES (drawn[1], drawn, drawn[1], r.granted_at);
  UPDATE fencepost.locks k SET lease_id = r.lease_id WHERE k.name = ANY (wanted);
  IF r.ticket IS NOT NULL THEN
    DELETE FROM fencepost.waiters w WHERE w.name = ANY (wanted) AND w.ticket = r.ticket;
  END IF;
  RETURN r;
END $$;
-- next
-- A grant whose claims had to wait begins when they are done. Only for the transaction that made it.
CREATE FUNCTION fencepost.begin_now(p_lease_id bigint, OUT granted_at timestamptz, OUT expires_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE fencepost.leases x SET granted_at = n.now, expires_at = n.now + x.ttl_ms * interval '1 ms'
    FROM (SELECT clock_timestamp() AS now) n
   WHERE x.lease_id = p_lease_id AND x.xmin = pg_current_xact_id()::xid
  RETURNING x.granted_at, x.expires_at $$;
-- next
-- Renew (p_ttl_ms > 0; 0 keeps the expiry) and mint (p_count > 0) in one. No row: the lease is lost, or not the caller's.
CREATE FUNCTION fencepost.extend(p_lease_id bigint, p_hash bytea, p_ttl_ms integer, p_count integer)
RETURNS TABLE (lease_id bigint, names text[], owner text, claims text[], ttl_ms integer, tokens bigint[],
               last_token bigint, granted_at timestamptz, expires_at timestamptz, remaining_ms bigint)
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
            floor(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000)::bigint;
END $$;
-- next
-- Release: the first waiter of each lock is woken; returns those of p_gateway, which it wakes itself. The lock's row stays
-- until `sweep`; it points to a lease that has ended. Whoever tries for the lock holds the lease's row, so its ticket is
-- there to be seen once we have it. NULL: the lease is held, and the secret is not its holder's. A lease that is gone
-- already is no error.
CREATE FUNCTION fencepost.release(p_lease_id bigint, p_hash bytea, p_gateway uuid) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
  released text[];
BEGIN
  UPDATE fencepost.leases x SET ended_at = clock_timestamp(), secret_hash = NULL
    WHERE x.lease_id = p_lease_id AND x.secret_hash = p_hash AND x.ended_at IS NULL RETURNING x.names INTO released;
  IF FOUND THEN RETURN fencepost.wake(released, p_gateway); END IF;
  PERFORM FROM fencepost.leases x WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL AND x.expires_at > clock_timestamp();
  RETURN CASE WHEN NOT FOUND THEN '{}'::uuid[] END;
END $$;
-- next
-- A waiter leaves. p_keep_ms > 0 keeps its place for that long, for a next request with the same secret.
CREATE FUNCTION fencepost.leave(p_visit uuid, p_keep_ms integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
  left_behind text[];
BEGIN
  IF p_keep_ms > 0 THEN
    UPDATE fencepost.waiters w SET gateway = NULL, kept_ms = p_keep_ms,
           give_up_at = clock_timestamp() + p_keep_ms * interval '1 ms'
     WHERE w.visit = p_visit;
    RETURN;
  END IF;
  WITH gone AS (DELETE FROM fencepost.waiters w WHERE w.visit = p_visit RETURNING w.name)
  SELECT array_agg(n.name) INTO left_behind FROM gone n;
  -- Its successor may be first now, and the lock may be free.
  IF left_behind IS NOT NULL THEN PERFORM fencepost.wake(left_behind, NULL); END IF;
END $$;
-- next
-- A gateway's heartbeat, which keeps its waiters, p_visits, in their queues. p_left: visits that have left, where saying
-- so may have failed. Returns what it must try now or soon although nobody told it: its waiters that are first in a queue, and
-- in how many ms the lock that they wait for expires (0: try now, also where its lease has to be counted anew because the
-- clock has stepped back: a try does that); and those without a place, whom nobody would wake.
CREATE FUNCTION fencepost.beat(p_gateway uuid, p_visits uuid[], p_left uuid[]) RETURNS TABLE (visit uuid, due_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  left_behind text[];
BEGIN
  INSERT INTO fencepost.gateways AS g (gateway, seen_at) VALUES (p_gateway, clock_timestamp())
  ON CONFLICT (gateway) DO UPDATE SET seen_at = clock_timestamp();
  IF cardinality(p_left) > 0 THEN
    WITH gone AS (DELETE FROM fencepost.waiters w WHERE w.visit = ANY (p_left) RETURNING w.name)
    SELECT array_agg(n.name) INTO left_behind FROM gone n;
  END IF;
  IF left_behind IS NOT NULL THEN PERFORM fencepost.wake(left_behind, NULL); END IF;
  RETURN QUERY
  WITH heads AS (SELECT DISTINCT ON (w.name) w.name, w.ticket, w.visit, w.gateway FROM fencepost.live_waiters w
                  WHERE w.name IN (SELECT m.name FROM fencepost.waiters m WHERE m.gateway = p_gateway)
                  ORDER BY w.name, w.ticket)
  SELECT h.visit, max(CASE WHEN x.expires_at <= fencepost.within_ttl(x.expires_at, x.ttl_ms)
                           THEN greatest(ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000), 0)
                           ELSE 0 END)::bigint
    FROM heads h LEFT JOIN fencepost.locks k ON k.name = h.name
    LEFT JOIN fencepost.leases x ON x.lease_id = k.lease_id AND x.ended_at IS NULL
   WHERE h.gateway = p_gateway GROUP BY h.visit, h.ticket
  HAVING count(*) = (SELECT count(*) FROM fencepost.live_waiters a WHERE a.visit = h.visit)
  UNION ALL
  SELECT v, 0::bigint FROM unnest(p_visits) v WHERE NOT EXISTS (SELECT FROM fencepost.live_waiters a WHERE a.visit = v);
END $$;
-- next
-- A gateway that stops: its waiters are gone at once, not after three silent seconds.
CREATE FUNCTION fencepost.retire(p_gateway uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  left_behind text[];
BEGIN
  DELETE FROM fencepost.gateways g WHERE g.gateway = p_gateway;
  WITH gone AS (DELETE FROM fencepost.waiters w WHERE w.gateway = p_gateway RETURNING w.name)
  SELECT array_agg(DISTINCT n.name) INTO left_behind FROM gone n;
  IF left_behind IS NOT NULL THEN PERFORM fencepost.wake(left_behind, NULL); END IF;
END $$;
-- next
-- Remove what no lock needs: rows of idle locks, 200 at a time so as not to keep them for long; waiters that gave up;
-- silent gateways. A lease that expired and whose lock is swept has ended, for good. Leases of which nobody wants anything
-- are counted anew after the clock has stepped back. Returns how many rows were removed.
CREATE FUNCTION fencepost.sweep() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n text;
  swept bigint;
  total bigint := 0;
BEGIN
  FOR n IN SELECT k.name FROM fencepost.locks k LEFT JOIN fencepost.leases x
               ON x.lease_id = k.lease_id AND x.ended_at IS NULL
            WHERE coalesce(x.expires_at, '-infinity') < clock_timestamp() - interval '10 s' ORDER BY k.name LIMIT 200 LOOP
    -- Seen idle before it was locked: look again, in a new statement.
    PERFORM FROM fencepost.locks k WHERE k.name = n FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    UPDATE fencepost.leases x SET ended_at = clock_timestamp(), secret_hash = NULL FROM fencepost.locks k
     WHERE k.name = n AND x.lease_id = k.lease_id AND x.ended_at IS NULL
       AND x.expires_at < clock_timestamp() - interval '10 s';
    DELETE FROM fencepost.locks k WHERE k.name = n
       AND NOT EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = k.lease_id AND x.ended_at IS NULL);
    IF FOUND THEN total := total + 1; END IF;
  END LOOP;
  WITH dead AS (SELECT w.name, w.ticket FROM fencepost.waiters w
                 WHERE w.give_up_at < clock_timestamp() - interval '10 s'
                    OR w.give_up_at > clock_timestamp() + w.kept_ms * interval '1 ms' FOR UPDATE SKIP LOCKED)
  DELETE FROM fencepost.waiters w USING dead WHERE w.name = dead.name AND w.ticket = dead.ticket;
  GET DIAGNOSTICS swept = ROW_COUNT; total := total + swept;
  WITH silent AS (SELECT g.gateway FROM fencepost.gateways g
                   WHERE g.seen_at < clock_timestamp() - interval '1 min' FOR UPDATE SKIP LOCKED)
  DELETE FROM fencepost.gateways g USING silent WHERE g.gateway = silent.gateway;
  GET DIAGNOSTICS swept = ROW_COUNT;
  -- Last: whoever has a lease's row waits for no other from here on.
  WITH ahead AS (SELECT x.lease_id FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
                  WHERE x.ended_at IS NULL AND x.expires_at > fencepost.within_ttl(x.expires_at, x.ttl_ms)
                    FOR UPDATE OF x SKIP LOCKED)
  UPDATE fencepost.leases x SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)
    FROM ahead WHERE x.lease_id = ahead.lease_id;
  RETURN total + swept;
END $$;
-- next
-- Forget leases that ended more than p_keep_s ago, with their draws; and of leases that live on, draws of more than 24
-- times p_keep_s ago, but for the first, from which a repeated acquire is answered. Looks at 10000 draws after p_after
-- (every lease has one of its own number), and returns where to go on: NULL when what follows is too young.
CREATE FUNCTION fencepost.forget(p_keep_s double precision, p_after bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
  cutoff timestamptz := clock_timestamp() - p_keep_s * interval '1 s';
  upto bigint;
  young boolean;
BEGIN
  SELECT max(c.first_token), max(c.drawn_at) >= cutoff INTO upto, young
    FROM (SELECT d.first_token, d.drawn_at FROM fencepost.draws d WHERE d.first_token > p_after
           ORDER BY d.first_token LIMIT 10000) c;
  IF upto IS NULL THEN RETURN NULL; END IF;
  DELETE FROM fencepost.leases x WHERE x.lease_id > p_after AND x.lease_id <= upto AND x.ended_at < cutoff;
  DELETE FROM fencepost.draws d WHERE d.first_token > p_after AND d.first_token <= upto
     AND NOT EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = d.lease_id
                        AND (d.first_token = d.lease_id OR d.drawn_at > clock_timestamp() - 24 * p_keep_s * interval '1 s'));
  RETURN CASE WHEN NOT young THEN upto END;
END $$;
-- next
-- A live lease, without its secret; no row once it is lost.
CREATE FUNCTION fencepost.lease(p_lease_id bigint)
RETURNS TABLE (lease_id bigint, names text[], owner text, claims text[], ttl_ms integer, last_token bigint,
               granted_at timestamptz, expires_at timestamptz, remaining_ms bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, x.names, x.owner, x.claims, x.ttl_ms, x.last_token, x.granted_at, w.expires_at,
         ceil(extract(epoch FROM w.expires_at - clock_timestamp()) * 1000)::bigint
    FROM fencepost.leases x, LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) w(expires_at)
   WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL AND x.expires_at > clock_timestamp() $$;
-- next
-- Whose token this is (R18), as long as it is remembered. Draws overlap where many draw at once: look at a few.
CREATE FUNCTION fencepost.issued_to(p_token bigint)
RETURNS TABLE (lease_id bigint, names text[], owner text, granted_at timestamptz, drawn_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, x.names, x.owner, x.granted_at, d.drawn_at
    FROM (SELECT * FROM fencepost.draws f WHERE f.first_token <= p_token ORDER BY f.first_token DESC LIMIT 64) d
    JOIN fencepost.leases x ON x.lease_id = d.lease_id
   WHERE p_token = ANY (d.tokens) $$;
-- next
-- What is still known of a lease that was lost, and of whoever holds one of its locks now.
CREATE FUNCTION fencepost.lost(p_lease_id bigint)
RETURNS TABLE (names text[], owner text, ended_at timestamptz, released boolean, superseded_by json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.names, x.owner, least(x.ended_at, x.expires_at), coalesce(x.ended_at < x.expires_at, false),
         (SELECT json_build_object('holder', y.owner, 'lease_id', y.lease_id::text, 'locks', y.names,
                                   'token', y.last_token::text, 'granted_at', y.granted_at, 'issued_at',
                                   (SELECT i.drawn_at FROM fencepost.issued_to(y.last_token) i), 'source', 'builtin')
            FROM fencepost.locks k JOIN fencepost.leases y ON y.lease_id = k.lease_id
           WHERE k.name = ANY (x.names) AND y.lease_id > x.lease_id AND y.ended_at IS NULL
             AND y.expires_at > clock_timestamp() ORDER BY y.lease_id LIMIT 1)
    FROM fencepost.leases x
   WHERE x.lease_id = p_lease_id AND (x.ended_at IS NOT NULL OR x.expires_at <= clock_timestamp()) $$;
-- next
-- Locks that are held or waited for, by name; p_name null: all, after p_after. Never a secret's hash.
CREATE FUNCTION fencepost.lock_states(p_name text, p_after text, p_limit integer)
RETURNS TABLE (name text, lease_id bigint, owner text, last_token bigint, granted_at timestamptz,
               expires_at timestamptz, remaining_ms bigint, waiters json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH busy AS (
    SELECT k.name FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
     WHERE x.ended_at IS NULL AND x.expires_at > clock_timestamp()
       AND (p_name IS NULL OR k.name = p_name) AND (p_after IS NULL OR k.name > p_after)
    UNION SELECT w.name FROM fencepost.live_waiters w
     WHERE (p_name IS NULL OR w.name = p_name) AND (p_after IS NULL OR w.name > p_after)
    ORDER BY 1 LIMIT p_limit)
  SELECT b.name, x.lease_id, x.owner, x.last_token, x.granted_at, t.expires_at,
         ceil(extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::bigint,
         (SELECT coalesce(json_agg(json_build_object('owner', w.owner, 'since', w.queued_at, 'until', w.give_up_at)
                                   ORDER BY w.ticket), '[]') FROM fencepost.live_waiters w WHERE w.name = b.name)
    FROM busy b LEFT JOIN fencepost.locks k ON k.name = b.name
    LEFT JOIN fencepost.leases x ON x.lease_id = k.lease_id AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
    LEFT JOIN LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) t(expires_at) ON true
   ORDER BY b.name $$;
-- next
-- For /metrics: locks held, and requests that wait.
CREATE FUNCTION fencepost.lock_counts(OUT held bigint, OUT waiting bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT (SELECT count(*) FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
           WHERE x.ended_at IS NULL AND x.expires_at > clock_timestamp()),
         (SELECT count(DISTINCT w.ticket) FROM fencepost.live_waiters w) $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.issue_beyond(bigint), fencepost.within_ttl(timestamptz, integer), fencepost.head(text), fencepost.wake(text[], uuid),
  fencepost.acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer),
  fencepost.extend(bigint, bytea, integer, integer), fencepost.release(bigint, bytea, uuid),
  fencepost.leave(uuid, integer), fencepost.beat(uuid, uuid[], uuid[]), fencepost.retire(uuid), fencepost.sweep(),
  fencepost.forget(double precision, bigint), fencepost.begin_now(bigint), fencepost.lease(bigint),
  fencepost.lost(bigint), fencepost.issued_to(bigint),
  fencepost.lock_states(text, text, integer), fencepost.lock_counts() FROM PUBLIC;
-- next
-- Triggers compare with it in the writer's own name. Reading is not drawing: nextval needs USAGE.
GRANT SELECT ON SEQUENCE fencepost.tokens TO PUBLIC;
