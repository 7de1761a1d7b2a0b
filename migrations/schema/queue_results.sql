-- What writes came to: fencepost.idempotency has it, under the caller 'queue', in the transaction of each write's effect. Those that are
-- not there are left out. An id without its last part, 16 hexadecimal digits, is a position: the write of it that was recorded last.
--
-- A message may be in the log at two offsets. Its record has the id under which it was decided first: recorded_id. For one who asks by an id,
-- that is a record of the same partition, with the same last part. p_content, of one who has the message: the record of the same last part and
-- content, wherever it was (idempotency_message_idx).
CREATE FUNCTION fencepost.queue_results(p_ids text[], p_content bytea)
RETURNS TABLE (id text, recorded_id text, outcome json, rows text, state text, letter text, owner text, claimed text, created_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY
    SELECT u.id, i.key, i.outcome, i.rows, i.state, i.letter, i.owner, i.claimed, i.created_at
      FROM unnest(p_ids) AS u(id), LATERAL (
             SELECT r.* FROM fencepost.idempotency r WHERE r.caller || '' = 'queue' AND right(r.key, 16) = right(u.id, 16)
                AND CASE WHEN p_content IS NOT NULL THEN r.payload_hash = p_content
                         ELSE regexp_replace(r.key, '[0-9]+[.].{16}$', '') = regexp_replace(u.id, '[0-9]+[.].{16}$', '') END
              ORDER BY r.key = u.id DESC, r.created_at DESC LIMIT 1) i
     -- Seen is not replicated: see idem_begin.
     WHERE u.id ~ '[.][0-9a-f]{16}$' AND pg_logical_emit_message(true, 'fencepost', '') IS NOT NULL
    UNION ALL
    SELECT u.id, i.key, i.outcome, i.rows, i.state, i.letter, i.owner, i.claimed, i.created_at
      FROM unnest(p_ids) AS u(id), LATERAL (
             SELECT r.* FROM fencepost.idempotency r WHERE r.caller = 'queue' AND r.key >= u.id || '.' AND r.key < u.id || '/'
                AND length(r.key) = length(u.id) + 17
              ORDER BY r.created_at + interval '0' DESC LIMIT 1) i  -- not by that column's index, which has all other records, too
     WHERE u.id !~ '[.][0-9a-f]{16}$' AND pg_logical_emit_message(true, 'fencepost', '') IS NOT NULL;
END $$;

CREATE TABLE fencepost.queue_letters (
  id     text COLLATE "C" PRIMARY KEY,
  source text COLLATE "C" NOT NULL,
  whose  text COLLATE "C" NOT NULL,
  bytes  bigint NOT NULL
);

COMMENT ON TABLE fencepost.queue_letters IS 'How large the dead letters are that an operator has not retried or dropped, of all queues, wherever the letters themselves are: gateways queue no more writes where these are too many. id: that of the write. whose: the role and name of its caller, where proven; empty: of those without a role. A letter that vanished otherwise, with its topic for example, stands here until its row is deleted.';

-- Record what a write came to that had no effect. False: what it came to is recorded already, and stays. p_source, p_bytes: queue and
-- size of the dead letter that is put next; p_bytes null: it becomes none.
CREATE FUNCTION fencepost.queue_record(p_id text, p_content bytea, p_outcome json, p_rows text, p_state text, p_owner text,
  p_claimed text, p_source text, p_bytes bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO fencepost.idempotency (caller, key, payload_hash, outcome, rows, state, owner, claimed)
  VALUES ('queue', p_id, p_content, p_outcome, p_rows, p_state, p_owner, p_claimed) ON CONFLICT DO NOTHING;
  IF FOUND AND p_bytes IS NOT NULL THEN
    INSERT INTO fencepost.queue_letters (id, source, whose, bytes) VALUES (p_id, p_source, coalesce(p_owner, ''), p_bytes)
    ON CONFLICT DO NOTHING;
    RETURN true;
  END IF;
  RETURN FOUND;
END $$;

-- How many bytes the dead letters of a queue have, and those of one caller.
CREATE FUNCTION fencepost.queue_letters_of(p_source text, p_whose text, OUT of_all bigint, OUT of_caller bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(sum(l.bytes), 0)::bigint, coalesce(sum(l.bytes) FILTER (WHERE l.whose = p_whose), 0)::bigint
    FROM fencepost.queue_letters l WHERE l.source = p_source $$;

-- Note in the record of a write what becomes of its dead letter. From then on a message that comes again puts no letter, and once it is
-- dropped or retried it counts no more. False: there is no record of the write.
CREATE FUNCTION fencepost.queue_close(p_id text, p_letter text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fencepost.queue_letters l WHERE l.id = p_id AND p_letter <> 'in hand';
  UPDATE fencepost.idempotency i SET letter = p_letter WHERE i.caller = 'queue' AND i.key = p_id;
  RETURN FOUND;
END $$;

-- From now on this is the record of all messages of its nonce that say this: one that stood where it did not belong is done in its own place.
-- False: there is another record of that.
CREATE FUNCTION fencepost.queue_claim(p_id text, p_content bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.idempotency i SET payload_hash = p_content WHERE i.caller = 'queue' AND i.key = p_id;
  RETURN FOUND;
EXCEPTION WHEN unique_violation THEN
  RETURN false;
END $$;
