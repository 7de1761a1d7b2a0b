-- Locks and leases (R9): the tables of the built-in token source, and how they stay small. The functions are in acquire.sql, those
-- that wait in waiters.sql, the tokens in bounds.sql.
--
-- Lock order, one for all (R20):  lock rows (by name, COLLATE "C"), lease rows (by id), then protected rows and marks.
-- Order of a grant:  1 lock rows locked   2 lease rows locked   3 a NEW statement compares the clock   4 nextval
-- Invariant: a transaction that draws a token holds the lease's row lock and has seen, in a later statement, that the lease
--            lives. A lease that another one has superseded has ended_at, so that a clock that steps back revives nothing.
--            What is kept for a while never has more than that while left: more means that the clock has stepped back since
--            it was written. Then it counts from now (a lease, by the next that reads it), or no more (a kept place).

CREATE TABLE fencepost.locks (
  name     text COLLATE "C" PRIMARY KEY CONSTRAINT locks_name_check CHECK (octet_length(name) BETWEEN 1 AND 512),
  lease_id bigint
) WITH (fillfactor = 70);

COMMENT ON TABLE fencepost.locks IS 'One row per lock that is held, or that a client has tried to get. Those of idle locks are swept.';

-- The numbers of leases, of all sources. They rise with the grants of a lock, and are no tokens, for all may see them: they begin at 2^47 of
-- their generation, so that they are above all tokens that it has issued, and are refused as such.
CREATE SEQUENCE fencepost.lease_ids AS bigint START 140737488355329 NO CYCLE CACHE 1;

COMMENT ON SEQUENCE fencepost.lease_ids IS 'The numbers of leases, of all sources: drawn under the lock''s row, so a later holder''s is larger. Not tokens, which others must not see.';

CREATE TABLE fencepost.leases (
  lease_id    bigint PRIMARY KEY,
  first_token bigint NOT NULL,
  secret_hash bytea CONSTRAINT leases_secret_hash_key UNIQUE,
  names       text[] COLLATE "C" NOT NULL,
  owner       text NOT NULL,
  claims      text[] COLLATE "C" NOT NULL,
  ttl_ms      integer NOT NULL CONSTRAINT leases_ttl_check CHECK (ttl_ms > 0),
  last_token  bigint NOT NULL,
  granted_at  timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  ended_at    timestamptz,
  ended_by    text CONSTRAINT leases_ended_by_check CHECK (ended_by IN ('holder', 'operator', 'generation')),
  writes      text[] COLLATE "C" NOT NULL DEFAULT '{}',
  attempt     integer
) WITH (fillfactor = 70);

COMMENT ON COLUMN fencepost.leases.attempt IS 'Of a lease of the next row of a table: how often the row was taken, with this time, since another than its takers wrote to it. Null: of a lock that the request named, or of a row that was put aside.';

COMMENT ON COLUMN fencepost.leases.writes IS 'What its tokens may be used for where they are sealed, beside what its locks are named after and what it claims: names of resources, or how names begin, with * at the end.';

COMMENT ON COLUMN fencepost.leases.ended_by IS 'Who ended it before its time ran out: its holder, an operator (release --force), or all were ended when the generation was raised. Null: it lives, or its time ran out.';

COMMENT ON TABLE fencepost.leases IS 'Grants. first_token: the first that was drawn for it, so it has no older one. ended_at: released, or superseded after it expired. Ended leases stay for a while, so that a refused holder learns who came after it.';

CREATE TABLE fencepost.draws (
  first_token bigint PRIMARY KEY,
  tokens      bigint[] NOT NULL,
  lease_id    bigint NOT NULL,
  drawn_at    timestamptz NOT NULL
);

COMMENT ON TABLE fencepost.draws IS 'Which tokens were drawn together, for which lease. Written with every draw: a transaction that only calls nextval is not flushed at commit, and its tokens could come again after a crash.';

-- When a lease is over: after its TTL at the latest, whatever is written in its row (see the invariant above).
CREATE FUNCTION fencepost.within_ttl(p_expires_at timestamptz, p_ttl_ms integer) RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN least(p_expires_at, clock_timestamp() + p_ttl_ms * interval '1 ms');

-- Remove what no lock needs: rows of idle locks, 200 at a time so as not to keep them for long; waiters that gave up;
-- silent gateways, and those that wait for rows no more. A lease that expired and whose lock is swept has ended, for good. Leases whose end lies further ahead than their TTL
-- are shortened to it: the clock has stepped back. Returns how many rows were removed.
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
  -- Later than watch() makes it: the clock has stepped back.
  WITH over AS (SELECT w.relation, w.line FROM fencepost.watched w WHERE w.until NOT BETWEEN clock_timestamp() - interval '10 s'
                    AND clock_timestamp() + interval '30 s' FOR UPDATE SKIP LOCKED)
  DELETE FROM fencepost.watched w USING over WHERE (w.relation, w.line) = (over.relation, over.line);
  DELETE FROM fencepost.questions q WHERE q.asked_at < clock_timestamp() - interval '7 days';
  DELETE FROM fencepost.withdrawn w WHERE w.withdrawn_at < clock_timestamp() - interval '1 hour';
  -- Last: a transaction that has a lease's row waits for no other from here on.
  WITH ahead AS (SELECT x.lease_id FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
                  WHERE x.ended_at IS NULL AND x.expires_at > fencepost.within_ttl(x.expires_at, x.ttl_ms)
                    FOR UPDATE OF x SKIP LOCKED)
  UPDATE fencepost.leases x SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)
    FROM ahead WHERE x.lease_id = ahead.lease_id;
  RETURN total + swept;
END $$;

-- Forget leases that ended more than p_keep_s ago, with their draws; and of leases that live on, draws of more than 24
-- times p_keep_s ago, but for the first, from which a repeated acquire is answered. Looks at 10000 draws after p_after
-- (every lease has one), and returns where to go on: NULL when what follows is too young.
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
  DELETE FROM fencepost.leases x USING fencepost.draws d
   WHERE d.first_token > p_after AND d.first_token <= upto AND x.lease_id = d.lease_id AND x.ended_at < cutoff;
  DELETE FROM fencepost.draws d WHERE d.first_token > p_after AND d.first_token <= upto
     AND NOT EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = d.lease_id
                        AND (d.first_token = x.first_token OR d.drawn_at > clock_timestamp() - 24 * p_keep_s * interval '1 s'));
  RETURN CASE WHEN NOT young THEN upto END;
END $$;
