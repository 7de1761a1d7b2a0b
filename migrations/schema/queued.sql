-- The log of the queue postgres:default: writes that wait, in the protected database itself.
--
-- A partition's offsets are drawn from its sequence, fencepost.queue_N. A message is deleted when it is decided; its offset never comes
-- again. Of two messages of one resource the later one has the higher offset, and is never seen without the earlier one: an append
-- locks the key until its transaction ends, and only then draws. Offsets of different resources may be seen in any order: so a
-- partition is read from its beginning each time, leaving out what was taken and is not decided yet.
--
-- Lock order, its own (R20):  keys (advisory, in the order of their hashes)  ->  queue_members  ->  queue_owners (by number)  ->  queued.

CREATE SEQUENCE fencepost.queue_0 AS bigint MINVALUE 0 NO CYCLE CACHE 1;
CREATE SEQUENCE fencepost.queue_1 AS bigint MINVALUE 0 NO CYCLE CACHE 1;
CREATE SEQUENCE fencepost.queue_2 AS bigint MINVALUE 0 NO CYCLE CACHE 1;
CREATE SEQUENCE fencepost.queue_3 AS bigint MINVALUE 0 NO CYCLE CACHE 1;
CREATE SEQUENCE fencepost.queue_4 AS bigint MINVALUE 0 NO CYCLE CACHE 1;
CREATE SEQUENCE fencepost.queue_5 AS bigint MINVALUE 0 NO CYCLE CACHE 1;
CREATE SEQUENCE fencepost.queue_6 AS bigint MINVALUE 0 NO CYCLE CACHE 1;
CREATE SEQUENCE fencepost.queue_7 AS bigint MINVALUE 0 NO CYCLE CACHE 1;

CREATE TABLE fencepost.queued (
  partition    integer NOT NULL CONSTRAINT queued_partition_check CHECK (partition BETWEEN 0 AND 7),
  position     bigint NOT NULL,
  key          bytea NOT NULL,
  header_names text[] NOT NULL,
  header_values bytea[] NOT NULL,
  value        bytea,
  appended_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT queued_pkey PRIMARY KEY (partition, position)
);

COMMENT ON TABLE fencepost.queued IS 'Writes of the queue postgres:default that are not decided yet. position: the offset in the partition.';

CREATE TABLE fencepost.queue_dead (
  id           text COLLATE "C" PRIMARY KEY,
  reason       text NOT NULL,
  partition    integer NOT NULL,
  position     bigint NOT NULL,
  key          bytea NOT NULL,
  header_names text[] NOT NULL,
  header_values bytea[] NOT NULL,
  value        bytea,
  at           timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE fencepost.queue_dead IS 'Writes of the queue postgres:default that could not be applied. id: that of the write.';

CREATE INDEX queue_dead_at_idx ON fencepost.queue_dead (at, id);

CREATE TABLE fencepost.queue_members (
  member  text COLLATE "C" PRIMARY KEY,
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  process text COLLATE "C"
);

COMMENT ON TABLE fencepost.queue_members IS 'Consumers of the queue postgres:default: the partitions are shared among those that were seen in the last ten seconds.';

COMMENT ON COLUMN fencepost.queue_members.process IS 'Made up anew by each process, so that two that have one name are noticed. Null: none has said it.';

CREATE TABLE fencepost.queue_owners (
  partition integer PRIMARY KEY CONSTRAINT queue_owners_partition_check CHECK (partition BETWEEN 0 AND 7),
  member    text COLLATE "C",
  until     timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

COMMENT ON TABLE fencepost.queue_owners IS 'Which consumer takes from a partition of the queue postgres:default, and until when if it does not say so again. For speed, and for order between resources; it is the fence that keeps a consumer from writing that was paused.';

INSERT INTO fencepost.queue_owners (partition) SELECT generate_series(0, 7);

-- Append messages, in this order, and return their offsets.
CREATE FUNCTION fencepost.queue_append(p_partitions integer[], p_keys bytea[], p_header_names text[], p_header_values bytea[],
  p_headers_each integer[], p_values bytea[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  offsets bigint[] := '{}';
  upto integer := 0;
  drawn bigint;
BEGIN
  -- In one order in every transaction. The next statements' offsets are drawn after that: a lower one of the key is committed.
  PERFORM pg_advisory_xact_lock(k.lock) FROM (SELECT DISTINCT hashtextextended(encode(u.key, 'hex'), 7235) AS lock
                                                FROM unnest(p_keys) AS u(key) ORDER BY 1) k;
  FOR n IN 1..cardinality(p_keys) LOOP
    drawn := nextval(format('fencepost.queue_%s', p_partitions[n])::regclass);
    INSERT INTO fencepost.queued (partition, position, key, header_names, header_values, value)
    VALUES (p_partitions[n], drawn, p_keys[n], coalesce(p_header_names[upto + 1 : upto + p_headers_each[n]], '{}'),
            coalesce(p_header_values[upto + 1 : upto + p_headers_each[n]], '{}'), p_values[n]);
    upto := upto + p_headers_each[n];
    offsets := offsets || drawn;
  END LOOP;
  RETURN offsets;
END $$;

-- What the log is. incarnation: the table's oid, another one where a dump was restored.
CREATE FUNCTION fencepost.queue_state(OUT incarnation text, OUT ends bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  incarnation := 'fencepost.queued'::regclass::oid::text;
  ends := ARRAY(SELECT coalesce(pg_sequence_last_value(format('fencepost.queue_%s', o.partition)::regclass) + 1, 0)
                  FROM fencepost.queue_owners o ORDER BY o.partition);
END $$;

-- By partition, the offset below which all is decided. The ends are read first: what is appended meanwhile lies above.
CREATE FUNCTION fencepost.queue_decided() RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ends bigint[] := (SELECT s.ends FROM fencepost.queue_state() s);
BEGIN
  RETURN ARRAY(SELECT least(ends[n + 1], (SELECT q.position FROM fencepost.queued q WHERE q.partition = n ORDER BY q.position LIMIT 1))
                 FROM generate_series(0, cardinality(ends) - 1) n);
END $$;

-- By partition, when the first message that is not decided was appended, in seconds since the epoch; null: there is none.
CREATE FUNCTION fencepost.queue_oldest() RETURNS double precision[]
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY(SELECT (SELECT extract(epoch FROM q.appended_at)::double precision FROM fencepost.queued q
                        WHERE q.partition = o.partition ORDER BY q.position LIMIT 1)
                 FROM fencepost.queue_owners o ORDER BY o.partition) $$;

-- Whether a member is this process. A process that comes takes the name over, as one does that was started again; the one before
-- is refused then, until the other has left or was not seen for its TTL.
CREATE FUNCTION fencepost.queue_join(p_member text, p_process text, p_ttl_ms integer, p_comes boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO fencepost.queue_members AS m (member, process) VALUES (p_member, p_process)
  ON CONFLICT (member) DO UPDATE SET process = p_process
   WHERE p_comes OR m.process IS NULL OR m.process = p_process
      OR m.seen_at NOT BETWEEN clock_timestamp() - p_ttl_ms * interval '1 ms' AND clock_timestamp() + p_ttl_ms * interval '1 ms';
  RETURN FOUND;
END $$;

-- A consumer is there. It keeps the partitions that it has, gives up what is more than its share, but for p_busy, and takes free ones
-- up to its share. Returns those that it has now, and how many are its share.
CREATE FUNCTION fencepost.queue_own(p_member text, p_ttl_ms integer, p_busy integer[], OUT owned integer[], OUT share integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ttl interval := p_ttl_ms * interval '1 ms';
  others integer;
  has bigint;
BEGIN
  INSERT INTO fencepost.queue_members AS m (member) VALUES (p_member)
  ON CONFLICT (member) DO UPDATE SET seen_at = clock_timestamp();
  WITH gone AS (SELECT x.member FROM fencepost.queue_members x WHERE x.seen_at < clock_timestamp() - 60 * ttl FOR UPDATE SKIP LOCKED)
  DELETE FROM fencepost.queue_members m USING gone g WHERE m.member = g.member;
  SELECT count(*) INTO others FROM fencepost.queue_members m
   WHERE m.member <> p_member AND m.seen_at > clock_timestamp() - ttl AND m.seen_at <= clock_timestamp() + ttl;
  share := ceil((SELECT count(*) FROM fencepost.queue_owners) / (others + 1.0));
  -- Each in its own statement: what is locked, and by how many this has too many or too few, is read anew.
  WITH mine AS (SELECT x.partition FROM fencepost.queue_owners x WHERE x.member = p_member ORDER BY 1 FOR UPDATE)
  UPDATE fencepost.queue_owners o SET until = clock_timestamp() + ttl FROM mine WHERE o.partition = mine.partition;
  has := (SELECT count(*) FROM fencepost.queue_owners y WHERE y.member = p_member);
  WITH surplus AS (SELECT x.partition FROM fencepost.queue_owners x WHERE x.member = p_member AND x.partition <> ALL (p_busy)
                    ORDER BY x.partition DESC LIMIT greatest(has - share, 0) FOR UPDATE)
  UPDATE fencepost.queue_owners o SET member = NULL, until = '-infinity' FROM surplus s WHERE o.partition = s.partition;
  IF FOUND THEN PERFORM pg_notify('fencepost_queue', 'left'); END IF;
  WITH free AS (
    SELECT x.partition FROM fencepost.queue_owners x
     -- Further ahead than its TTL: from before the clock stepped back.
     WHERE x.member IS DISTINCT FROM p_member AND (x.member IS NULL OR x.until < clock_timestamp() OR x.until > clock_timestamp() + ttl)
     ORDER BY x.partition LIMIT greatest(share - has, 0) FOR UPDATE SKIP LOCKED)
  UPDATE fencepost.queue_owners o SET member = p_member, until = clock_timestamp() + ttl FROM free f WHERE o.partition = f.partition;
  owned := ARRAY(SELECT x.partition FROM fencepost.queue_owners x WHERE x.member = p_member ORDER BY 1);
END $$;

-- The oldest messages of partitions that the consumer has, in their order, but for those that it took before: p_most of them, and none
-- after those that come to p_bytes.
CREATE FUNCTION fencepost.queue_take(p_member text, p_partitions integer[], p_taken_partitions integer[], p_taken bigint[], p_most integer,
  p_bytes bigint)
RETURNS TABLE (partition integer, "position" bigint, key bytea, header_names text[], header_values bytea[], value bytea,
               at double precision)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY
    SELECT s.partition, s.position, s.key, s.header_names, s.header_values, s.value, extract(epoch FROM s.appended_at)::double precision
      FROM (SELECT q.*, coalesce(sum(octet_length(q.value)) OVER (ORDER BY q.position, q.partition
                                                                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
              FROM fencepost.queue_owners o, LATERAL (
                     SELECT x.* FROM fencepost.queued x WHERE x.partition = o.partition
                        AND (x.partition, x.position)
                            NOT IN (SELECT * FROM ROWS FROM (unnest(p_taken_partitions), unnest(p_taken)) AS u(of, taken))
                      ORDER BY x.position LIMIT p_most) q
             WHERE o.partition = ANY (p_partitions) AND o.member = p_member AND o.until > clock_timestamp()
             ORDER BY q.position, q.partition LIMIT p_most) s
     WHERE s.before < p_bytes ORDER BY s.position, s.partition;
END $$;

-- The message at a position, if it is not decided.
CREATE FUNCTION fencepost.queue_at(p_partition integer, p_position bigint)
RETURNS TABLE (partition integer, "position" bigint, key bytea, header_names text[], header_values bytea[], value bytea,
               at double precision)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT q.partition, q.position, q.key, q.header_names, q.header_values, q.value, extract(epoch FROM q.appended_at)::double precision
    FROM fencepost.queued q WHERE q.partition = p_partition AND q.position = p_position $$;

-- These are decided. Exactly these: a lower offset of another resource may have been committed since they were read.
CREATE FUNCTION fencepost.queue_done(p_partitions integer[], p_positions bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  gone bigint;
BEGIN
  WITH these AS (SELECT q.partition, q.position
                   FROM ROWS FROM (unnest(p_partitions), unnest(p_positions)) AS u(partition, position)
                   JOIN fencepost.queued q ON q.partition = u.partition AND q.position = u.position
                  ORDER BY 1, 2 FOR UPDATE OF q)
  DELETE FROM fencepost.queued q USING these t WHERE q.partition = t.partition AND q.position = t.position;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- The consumer is gone: others take its partitions at once.
CREATE FUNCTION fencepost.queue_leave(p_member text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fencepost.queue_members m WHERE m.member = p_member;
  UPDATE fencepost.queue_owners o SET member = NULL, until = '-infinity' WHERE o.partition IN (
    SELECT x.partition FROM fencepost.queue_owners x WHERE x.member = p_member ORDER BY 1 FOR UPDATE);
  PERFORM pg_notify('fencepost_queue', 'left');
END $$;

CREATE FUNCTION fencepost.queue_bury(p_id text, p_reason text, p_partition integer, p_position bigint, p_key bytea, p_header_names text[],
  p_header_values bytea[], p_value bytea, p_at double precision) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO fencepost.queue_dead (id, reason, partition, position, key, header_names, header_values, value, at)
  VALUES (p_id, p_reason, p_partition, p_position, p_key, p_header_names, p_header_values, p_value, to_timestamp(p_at))
  ON CONFLICT (id) DO NOTHING $$;

-- The oldest, or the one with this id.
CREATE FUNCTION fencepost.queue_buried(p_id text, p_most integer)
RETURNS TABLE (id text, reason text, partition integer, "position" bigint, key bytea, header_names text[], header_values bytea[],
               value bytea, at double precision)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT d.id, d.reason, d.partition, d.position, d.key, d.header_names, d.header_values, d.value,
         extract(epoch FROM d.at)::double precision
    FROM fencepost.queue_dead d WHERE p_id IS NULL OR d.id = p_id ORDER BY d.at, d.id LIMIT p_most $$;

CREATE FUNCTION fencepost.queue_exhume(p_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fencepost.queue_dead d WHERE d.id = p_id;
  RETURN FOUND;
END $$;

CREATE FUNCTION fencepost.queue_dead_count() RETURNS TABLE (partition integer, letters bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT d.partition, count(*) FROM fencepost.queue_dead d GROUP BY d.partition $$;
