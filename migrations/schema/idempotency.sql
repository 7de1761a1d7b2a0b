-- Idempotency keys and what the writes under them came to (R16).
--
-- A write with a key is one transaction:  1 look the key up   2 try its lock, without waiting   3 look it up again, in a NEW
-- statement   4 the write   5 its record, last.  Without 3, a record that commits between 1 and 2 is missed, and the
-- write happens twice: the lock is free as soon as that commit is.
--
-- The functions ending in _each do it for many keys of one transaction (group commit). Their query plans are made once and kept. One that
-- reads a whole table, made while that was small, would stay when it has grown: so each row is looked up by itself
-- (LATERAL), and other joins are switched off.

CREATE TABLE fencepost.idempotency (
  caller       text COLLATE "C" NOT NULL,
  key          text COLLATE "C" NOT NULL,
  payload_hash bytea NOT NULL,
  outcome      json NOT NULL,
  rows         text,
  state        text CHECK (state IN ('applied', 'refused', 'failed')),
  letter       text,
  owner        text COLLATE "C",
  claimed      text COLLATE "C",
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT idempotency_pkey PRIMARY KEY (caller, key),
  CONSTRAINT idempotency_of_queue_check CHECK ((state IS NOT NULL) = (caller = 'queue')),
  CONSTRAINT idempotency_owner_check CHECK (owner IS NULL OR claimed IS NULL)
);

COMMENT ON TABLE fencepost.idempotency IS 'What writes with an Idempotency-Key came to, made in the transaction of the write (R16): a record is there if, and only if, its write landed. Refusals are not stored. caller is whose key it is: a role, under row level security a role and a caller, or queue, of messages; empty for callers without a role.';
COMMENT ON COLUMN fencepost.idempotency.outcome IS 'What the write came to, but for its rows, and what of its request says how that is answered (gateway/idempotency.py); or, of a queued write that was refused or failed, the problem.';
COMMENT ON COLUMN fencepost.idempotency.rows IS 'The rows that were answered, as PostgreSQL wrote them, with commas between them; null: the answer had none, or they were too large to be kept.';
COMMENT ON COLUMN fencepost.idempotency.state IS 'What a queued write came to; null: the record is of a request.';
COMMENT ON COLUMN fencepost.idempotency.letter IS 'What an operator has made of the dead letter of a write that failed: in hand (a retry has begun, and the letter is there still), dropped, or retried as and the id of the write that it was appended as; null: nothing yet.';
COMMENT ON COLUMN fencepost.idempotency.owner IS 'Role and name of the caller whose queued write it was, proven by a signature; null: it had no role, or was not proven, or the record is of a request.';
COMMENT ON COLUMN fencepost.idempotency.claimed IS 'Role and name of the caller that a message names, where that was not proven, or not looked at; null: it names none, or owner has it.';

CREATE INDEX idempotency_created_at_idx ON fencepost.idempotency (created_at);

-- One message of a queue may be in its log twice, at two offsets, and so under two ids: the last part of the id, 16 hexadecimal digits, and
-- what the message says are the same then (queues/message.py). The second effect is undone by this (23505). The condition is written so that
-- the primary key cannot serve it: where statistics are of one row, that one seems to be as good.
CREATE UNIQUE INDEX idempotency_message_idx ON fencepost.idempotency (right(key, 16), payload_hash) WHERE caller || '' = 'queue';

-- The first statement of a write with a key. state: new (the key's lock is ours until the transaction ends), in flight, reused
-- (with another payload), replay (with what the write came to).
CREATE FUNCTION fencepost.idem_begin(p_caller text, p_key text, p_hash bytea,
                                     OUT state text, OUT outcome json, OUT rows text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r fencepost.idempotency;
BEGIN
  SELECT * INTO r FROM fencepost.idempotency i WHERE i.caller = p_caller AND i.key = p_key;
  IF NOT FOUND THEN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(length(p_caller) || ':' || p_caller || p_key, 7234)) THEN
      state := 'in flight';
      RETURN;
    END IF;
    SELECT * INTO r FROM fencepost.idempotency i WHERE i.caller = p_caller AND i.key = p_key;
    IF NOT FOUND THEN
      state := 'new';
      RETURN;
    END IF;
  END IF;
  IF r.payload_hash <> p_hash THEN
    state := 'reused';
    RETURN;
  END IF;
  -- Seen is not replicated: an operator may have cancelled the wait for the standby. Something of our own in the log, and
  -- our commit waits for all before it.
  PERFORM pg_logical_emit_message(true, 'fencepost', '');
  state := 'replay'; outcome := r.outcome; rows := r.rows;
END $$;

-- The last statement of a write with a key. A 23505 means that another write has landed under this key after all. p_owner: of a
-- message whose caller has a role.
CREATE FUNCTION fencepost.idem_record(p_caller text, p_key text, p_hash bytea, p_outcome json, p_rows text,
                                      p_owner text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO fencepost.idempotency (caller, key, payload_hash, outcome, rows, owner, state)
  SELECT p_caller, p_key, p_hash, p_outcome, p_rows, p_owner, CASE WHEN p_caller = 'queue' THEN 'applied' END $$;

-- fencepost.idem_begin for many keys, none of them twice: its lock would let the second one pass as well. The look-up that
-- idem_begin makes before it tries the lock is only there to spare replays the lock.
CREATE FUNCTION fencepost.idem_begin_each(p_caller text, p_keys text[], p_hashes bytea[])
RETURNS TABLE (number integer, state text, outcome json, rows text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  ours boolean[];
BEGIN
  ours := ARRAY(SELECT pg_try_advisory_xact_lock(hashtextextended(length(p_caller) || ':' || p_caller || u.key, 7234))
                  FROM unnest(p_keys) WITH ORDINALITY AS u(key, o) ORDER BY u.o);
  -- A statement of its own, after the locks: it sees whatever landed before they were ours.
  RETURN QUERY
    SELECT k.number, k.state, k.outcome, k.rows
      FROM (SELECT u.o::integer - 1 AS number,
                   CASE WHEN i.key IS NULL THEN CASE WHEN u.ours THEN 'new' ELSE 'in flight' END
                        WHEN i.payload_hash <> u.hash THEN 'reused'
                        ELSE 'replay' END AS state,
                   i.outcome, i.rows
              FROM ROWS FROM (unnest(p_keys), unnest(p_hashes), unnest(ours)) WITH ORDINALITY AS u(key, hash, ours, o)
              LEFT JOIN LATERAL (SELECT * FROM fencepost.idempotency r WHERE r.caller = p_caller AND r.key = u.key LIMIT 1) i
                     ON true) k
     -- Seen is not replicated, as in idem_begin.
     WHERE k.state <> 'replay' OR pg_logical_emit_message(true, 'fencepost', '') IS NOT NULL;
END $$;

-- fencepost.idem_record for many keys.
CREATE FUNCTION fencepost.idem_record_each(p_callers text[], p_keys text[], p_hashes bytea[], p_outcomes json[],
                                           p_rows text[], p_owners text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO fencepost.idempotency (caller, key, payload_hash, outcome, rows, owner, state)
  SELECT u.caller, u.key, u.hash, u.outcome, u.rows, u.owner, CASE WHEN u.caller = 'queue' THEN 'applied' END
    FROM ROWS FROM (unnest(p_callers), unnest(p_keys), unnest(p_hashes), unnest(p_outcomes), unnest(p_rows), unnest(p_owners))
      AS u(caller, key, hash, outcome, rows, owner) $$;

-- Forget records older than p_keep_s, oldest first, p_limit at most. Returns how many. That of a queue's message stays for as long as
-- the message may come again, however old it is: it says what became of it. Where a message has a caller, it may be copied for so long
-- after it was signed: then its record stays until each copy of that time is decided, and for as long as its dead letter is there.
CREATE FUNCTION fencepost.prune_idempotency(p_keep_s double precision, p_limit integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
  pruned bigint;
BEGIN
  WITH old AS (SELECT i.caller, i.key FROM fencepost.idempotency i
                WHERE i.created_at < clock_timestamp() - p_keep_s * interval '1 s'
                  AND (i.caller <> 'queue' OR fencepost.queue_forgettable(i.key))
                  AND (coalesce(i.owner, i.claimed) IS NULL
                       OR (fencepost.queue_no_copy_waits(i.key, i.created_at + p_keep_s * interval '1 s')
                           AND NOT (i.state = 'failed' AND coalesce(i.letter, 'in hand') = 'in hand')))
                ORDER BY i.created_at LIMIT p_limit FOR UPDATE SKIP LOCKED),
       gone AS (DELETE FROM fencepost.idempotency i USING old WHERE i.caller = old.caller AND i.key = old.key RETURNING i.*),
       newest AS (SELECT (regexp_match(g.key, '^(.+)[.][0-9]+[.][0-9]+[.][0-9a-f]{16}$'))[1] AS source, max(g.created_at) AS at
                    FROM gone g WHERE coalesce(g.owner, g.claimed) IS NOT NULL GROUP BY 1),
       noted AS (UPDATE fencepost.queues q SET forgotten_to = greatest(q.forgotten_to, n.at) FROM newest n WHERE q.source = n.source)
  SELECT count(*) INTO pruned FROM gone;
  RETURN pruned;
END $$;
