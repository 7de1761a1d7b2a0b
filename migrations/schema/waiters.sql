-- The queue of a lock: one row in fencepost.waiters for each lock of a waiting request, in the order of their tickets. The request
-- sleeps in its gateway, without a connection (locks/builtin.py). A release wakes the first waiter: the gateway
-- that released wakes its own, another gateway is notified. There is no event for an expiry, a lost notification or a dead
-- gateway: once a second each gateway that has waiters calls beat, and learns which of them to try.
--
-- No function here grants anything: a waiter that is woken calls acquire again.

CREATE SEQUENCE fencepost.tickets AS bigint MINVALUE 1 NO CYCLE CACHE 1;

COMMENT ON SEQUENCE fencepost.tickets IS 'Places in the queues of locks, drawn under the lock rows: ticket order is arrival order.';

CREATE TABLE fencepost.gateways (
  gateway uuid PRIMARY KEY,
  seen_at timestamptz NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE fencepost.gateways IS 'Gateway processes that have waiters, and when they last sent a beat. The waiters of a silent one do not block a queue.';

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

COMMENT ON TABLE fencepost.waiters IS 'Who waits for a lock, one row per lock of the request. visit is the HTTP request that waits; gateway is null between two requests of one waiter that keeps its place, and kept_ms is how long.';

CREATE INDEX waiters_visit_idx ON fencepost.waiters (visit);

CREATE INDEX waiters_secret_hash_idx ON fencepost.waiters (secret_hash);

-- Waiters that count: they have not given up, and their gateway has sent a beat (a time in the future is one from
-- before the clock was set back, and so is the end of a kept place that is further off than it was kept for). `sweep`
-- removes the others. Gateways are few, and read once a query: no waiter is joined with them.
CREATE VIEW fencepost.live_waiters AS
  SELECT w.* FROM fencepost.waiters w
   WHERE w.give_up_at > clock_timestamp()
     AND (w.kept_ms IS NULL OR w.give_up_at <= clock_timestamp() + w.kept_ms * interval '1 ms')
     AND (w.gateway IS NULL
          OR w.gateway = ANY (ARRAY(SELECT g.gateway FROM fencepost.gateways g
                WHERE g.seen_at BETWEEN clock_timestamp() - interval '3 s' AND clock_timestamp() + interval '3 s')));

-- The first in a lock's queue, NULL when there is no waiter. Here, and wherever the first of a queue is looked for, the index gives
-- it: a bitmap would have all waiters of the lock read and sorted, for each of them that comes or goes.
CREATE FUNCTION fencepost.first_waiter(p_name text) RETURNS bigint LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
  SELECT w.ticket FROM fencepost.live_waiters w WHERE w.name = p_name ORDER BY w.ticket LIMIT 1 $$;

-- Wake the first of each of these locks' queues, and no other. Those that wait at p_gateway are returned, for it to
-- wake them itself; others are notified. NOTIFY takes a database-wide lock at commit: only when there is a waiter.
CREATE FUNCTION fencepost.wake(p_names text[], p_gateway uuid) RETURNS uuid[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
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

-- A waiter leaves. p_keep_ms > 0 keeps its place for that long, for a next request with the same secret. A request that tries for a lock
-- has the lock's row, and may get in line behind us: we wait until its ticket is there to be seen, so as to wake it. But not for long: a
-- grant has that row for as long as its claims wait, and renewals need our connection. Then the next beat finds who is first.
-- A crash may bring the place back: its gateway takes it out again (Queue._beat).
CREATE FUNCTION fencepost.leave(p_visit uuid, p_keep_ms integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET lock_timeout = '50ms' AS $$
DECLARE
  left_behind text[] := ARRAY(SELECT w.name FROM fencepost.waiters w WHERE w.visit = p_visit);
BEGIN
  IF p_keep_ms > 0 THEN
    UPDATE fencepost.waiters w SET gateway = NULL, kept_ms = p_keep_ms,
           give_up_at = clock_timestamp() + p_keep_ms * interval '1 ms'
     WHERE w.visit = p_visit;
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  BEGIN
    PERFORM FROM fencepost.locks k WHERE k.name = ANY (left_behind) ORDER BY k.name FOR UPDATE;
  EXCEPTION WHEN lock_not_available THEN NULL;
  END;
  DELETE FROM fencepost.waiters w WHERE w.visit = p_visit;
  -- Its successor may be first now, and the lock may be free.
  IF FOUND THEN PERFORM fencepost.wake(left_behind, NULL); END IF;
END $$;

-- A gateway's heartbeat, which keeps its waiters, p_visits, in their queues. p_left: visits that have left, where saying
-- so may have failed. Returns what it must try now or soon although it was not notified: its waiters that are first in a queue, and
-- in how many ms the lock that they wait for expires (0: try now, also where its lease has to be counted anew because the
-- clock has stepped back: a try does that); and those without a place, which would not be woken. So are places of this gateway whose
-- requests it does not name: all at once, for behind each of them a free lock stays free.
CREATE FUNCTION fencepost.beat(p_gateway uuid, p_visits uuid[], p_left uuid[]) RETURNS TABLE (visit uuid, due_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
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
  WITH heads AS (SELECT f.* FROM (SELECT DISTINCT m.name FROM fencepost.waiters m WHERE m.gateway = p_gateway) n
                  CROSS JOIN LATERAL (SELECT w.name, w.ticket, w.visit, w.gateway FROM fencepost.live_waiters w
                                       WHERE w.name = n.name ORDER BY w.ticket LIMIT 1) f)
  SELECT h.visit, max(CASE WHEN x.expires_at <= fencepost.within_ttl(x.expires_at, x.ttl_ms)
                           THEN greatest(ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000), 0)
                           ELSE 0 END)::bigint
    FROM heads h LEFT JOIN fencepost.locks k ON k.name = h.name
    LEFT JOIN fencepost.leases x ON x.lease_id = k.lease_id AND x.ended_at IS NULL
   WHERE h.gateway = p_gateway GROUP BY h.visit, h.ticket
  HAVING count(*) = (SELECT count(*) FROM fencepost.live_waiters a WHERE a.visit = h.visit)
  UNION ALL
  SELECT v, 0::bigint FROM unnest(p_visits) v WHERE NOT EXISTS (SELECT FROM fencepost.live_waiters a WHERE a.visit = v)
  UNION ALL
  SELECT m.visit, 0 FROM fencepost.waiters m WHERE m.gateway = p_gateway AND m.visit NOT IN (SELECT unnest(p_visits));
END $$;

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
