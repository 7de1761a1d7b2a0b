-- Idempotency keys and what was answered under them (R16). Statements are separated by a line of "-- next".
--
-- A keyed write is one transaction:  1 look the key up   2 try its lock, without waiting   3 look it up again, in a NEW
-- statement   4 the write   5 its record, last.  Without 3, a record that commits between 1 and 2 is missed, and the
-- write happens twice: the lock is free as soon as that commit is.

CREATE TABLE fencepost.idempotency (
  caller       text COLLATE "C" NOT NULL,
  key          text COLLATE "C" NOT NULL,
  payload_hash bytea NOT NULL,
  status       integer NOT NULL,
  headers      text[] NOT NULL,
  answer       bytea NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT idempotency_pkey PRIMARY KEY (caller, key)
);
-- next
COMMENT ON TABLE fencepost.idempotency IS 'What was answered to writes with an Idempotency-Key, in the transaction of the write (R16): a record is there if, and only if, its write landed. Refusals are not stored. caller is empty as long as callers are not told apart.';
-- next
CREATE INDEX idempotency_created_at_idx ON fencepost.idempotency (created_at);
-- next
-- The first statement of a keyed write. state: new (the key's lock is ours until the transaction ends), in flight, reused
-- (with another payload), replay (with what was answered).
CREATE FUNCTION fencepost.idem_begin(p_caller text, p_key text, p_hash bytea,
                                     OUT state text, OUT status integer, OUT headers text[], OUT answer bytea)
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
  -- Seen is not replicated: somebody may have cancelled the wait for the standby. Something of our own in the log, and
  -- our commit waits for all before it.
  PERFORM pg_logical_emit_message(true, 'fencepost', '');
  state := 'replay'; status := r.status; headers := r.headers; answer := r.answer;
END $$;
-- next
-- The last statement of a keyed write. A 23505 means that somebody else has landed under this key after all.
CREATE FUNCTION fencepost.idem_record(p_caller text, p_key text, p_hash bytea, p_status integer, p_headers text[],
                                      p_answer bytea) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO fencepost.idempotency (caller, key, payload_hash, status, headers, answer)
  VALUES (p_caller, p_key, p_hash, p_status, p_headers, p_answer) $$;
-- next
-- Forget records older than p_keep_s, oldest first, p_limit at most. Returns how many.
CREATE FUNCTION fencepost.prune_idempotency(p_keep_s double precision, p_limit integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
  pruned bigint;
BEGIN
  WITH old AS (SELECT i.caller, i.key FROM fencepost.idempotency i
                WHERE i.created_at < clock_timestamp() - p_keep_s * interval '1 s'
                ORDER BY i.created_at LIMIT p_limit FOR UPDATE SKIP LOCKED)
  DELETE FROM fencepost.idempotency i USING old WHERE i.caller = old.caller AND i.key = old.key;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.idem_begin(text, text, bytea),
  fencepost.idem_record(text, text, bytea, integer, text[], bytea),
  fencepost.prune_idempotency(double precision, integer) FROM PUBLIC;
