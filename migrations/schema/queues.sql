-- Queues: logs of writes whose positions are tokens (R12). How far each got, and how far its writes are decided.
--
-- A token is generation * 2^48 + offset + 1, with the generation of the queue's source. A log that was made again, got other
-- partitions or lost messages would give an offset, and so a token, twice. So a consumer asks the log what it is after each batch
-- that it took, and has it compared here before anything of the batch is written:
--
--   1  the generation is known, from the check before    2  take    3  ask the log    4  queue_check
--
-- Two consumers ask at different times, and the later answer may be recorded first. What is below the record is therefore no fault
-- yet: the log is asked once more (`again`), and then compared with the record as it was read BEFORE it was asked.
--
-- Lock order:  sources (by name)  ->  its sequence  ->  queues  ->  queue_partitions (by number).

CREATE TABLE fencepost.queues (
  source        text COLLATE "C" PRIMARY KEY REFERENCES fencepost.sources,
  kind          text NOT NULL,
  incarnation   text,
  ends          bigint[] NOT NULL DEFAULT '{}',
  leader_epochs bigint[] NOT NULL DEFAULT '{}',
  paused_member  text,
  paused_because text,
  paused_at      timestamptz,
  looked_at      timestamptz,
  looked_ends    bigint[],
  applied_to     timestamptz,
  forget_to      timestamptz,
  forgotten_to   timestamptz
) WITH (fillfactor = 50);

COMMENT ON TABLE fencepost.queues IS 'Queues, and what their logs were when they were last looked at. incarnation: null until the log is looked at in the present generation of its source. ends: by partition, what the offset of the next message was, at least. paused_member, paused_because: a consumer that decides or takes nothing, and why; paused_at: when it last said so, which it does once a second. Null: none is paused. looked_at, looked_ends: a moment, and where the log ended after it; applied_to: such a moment, and all that came into the log before it is decided; forget_to: what applied_to was before. Null: not known in the present generation. forgotten_to: when the newest record of a caller''s message was made that was forgotten; it stays when the source is raised. Null: none was.';

CREATE TABLE fencepost.queue_partitions (
  source      text COLLATE "C" NOT NULL REFERENCES fencepost.queues,
  partition   integer NOT NULL,
  decided     bigint,
  committed   bigint,
  oldest_at   timestamptz,
  blocked_resource text,
  blocked_because  text,
  blocked_since    timestamptz,
  applied     bigint NOT NULL DEFAULT 0,
  refused     bigint NOT NULL DEFAULT 0,
  failed      bigint NOT NULL DEFAULT 0,
  redelivered bigint NOT NULL DEFAULT 0,
  noted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT queue_partitions_pkey PRIMARY KEY (source, partition)
) WITH (fillfactor = 50);

COMMENT ON TABLE fencepost.queue_partitions IS 'How far consumers say they are, once a second: for status and metrics, never for a decision, but for committed. decided: the offset below which all is decided. oldest_at: when the oldest message that is not decided was appended. committed: the offset below which the log itself, asked in the present generation of its source, gives no message again; null: not known. blocked_resource, blocked_because, blocked_since: the message that is tried in vain for longest, while others go on; null: none is.';

CREATE TABLE fencepost.queue_stopped (
  source   text COLLATE "C" NOT NULL REFERENCES fencepost.queues,
  resource text COLLATE "C" NOT NULL,
  write_id text NOT NULL,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT queue_stopped_pkey PRIMARY KEY (source, resource)
);

COMMENT ON TABLE fencepost.queue_stopped IS 'Resources of which a write is a dead letter, under --stop-resources: later writes of them become dead letters too, until it is retried or dropped.';

-- A gateway or a consumer has this queue. Numbers of PostgreSQL's own log are forgotten with the database's: 'database' has
-- raise_generation raise its source, too (R19).
CREATE FUNCTION fencepost.queue_register(p_source text, p_kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_kind NOT IN ('postgres', 'kafka', 'redis') OR NOT starts_with(p_source, p_kind || ':') THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s is no name of a queue of %s', p_source, p_kind),
      HINT = 'postgres:default, kafka:TOPIC or redis:STREAM.';
  END IF;
  PERFORM FROM fencepost.queues q WHERE q.source = p_source;
  IF FOUND THEN RETURN; END IF;
  PERFORM fencepost.source_register(p_source, p_kind, CASE p_kind WHEN 'postgres' THEN 'database' ELSE 'lock' END, false);
  INSERT INTO fencepost.queues (source, kind) VALUES (p_source, p_kind) ON CONFLICT (source) DO NOTHING;
END $$;

-- A sentence where a log as it is now cannot be the one that was recorded with these ends and epochs; null where it can.
CREATE FUNCTION fencepost.queue_fault(p_was text, p_incarnation text, p_recorded bigint[], p_ends bigint[],
                                      p_recorded_epochs bigint[], p_epochs bigint[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n integer;
BEGIN
  IF p_was <> p_incarnation THEN
    RETURN format('it was deleted and made again: it is %s now, and was %s', p_incarnation, p_was);
  END IF;
  IF cardinality(p_recorded) <> cardinality(p_ends) THEN
    RETURN format('it has %s partitions now, and had %s: its keys are in other partitions than before',
                  cardinality(p_ends), cardinality(p_recorded));
  END IF;
  SELECT u.o INTO n FROM ROWS FROM (unnest(p_recorded), unnest(p_ends)) WITH ORDINALITY AS u(was, is_now, o)
   WHERE u.is_now < u.was ORDER BY u.o LIMIT 1;
  IF FOUND THEN
    RETURN format('it has lost messages: partition %s ends at offset %s, and had reached %s', n - 1, p_ends[n], p_recorded[n]);
  END IF;
  SELECT u.o INTO n FROM ROWS FROM (unnest(p_recorded_epochs), unnest(p_epochs)) WITH ORDINALITY AS u(was, is_now, o)
   WHERE u.is_now < u.was ORDER BY u.o LIMIT 1;
  IF FOUND THEN
    RETURN format('the leader epoch of partition %s is %s, and had been %s', n - 1, p_epochs[n], p_recorded_epochs[n]);
  END IF;
  RETURN NULL;
END $$;

-- Compare a log as it is now with what was recorded, and record how far it got: tokens up to there count as issued.
--
-- p_generation   what the check before gave. Null: there was none, and nothing was taken yet
-- p_before, p_before_epochs   what `again` gave, empty where nothing was recorded. Null: the first look
--
--   ok            messages that were taken before the log was asked may be written, under tokens of `generation`
--   again         ask the log anew, and then check with the generation and what is in `recorded` and `recorded_epochs`
--   raised        the generation is another: what was taken is void, and has to be taken anew
--   quarantined   `because` says why
CREATE FUNCTION fencepost.queue_check(p_source text, p_incarnation text, p_ends bigint[], p_epochs bigint[], p_generation bigint,
  p_before bigint[], p_before_epochs bigint[],
  OUT verdict text, OUT generation bigint, OUT because text, OUT stopped text[], OUT recorded bigint[], OUT recorded_epochs bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  q fencepost.queues;
  issued bigint;
  new_ends bigint[];
  new_epochs bigint[];
BEGIN
  IF coalesce(cardinality(p_ends), 0) = 0 OR (SELECT max(u.x) >= (1::bigint << 48) - 1 OR min(u.x) < 0 FROM unnest(p_ends) AS u(x)) THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('no tokens can be made of the ends of %s: %s', p_source, p_ends);
  END IF;
  FOR locked IN 0..1 LOOP  -- most often nothing has to be recorded, and no lock is needed
    IF locked = 1 THEN PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR NO KEY UPDATE; END IF;
    SELECT s.quarantined_because INTO because FROM fencepost.sources s WHERE s.name = p_source;
    SELECT x.* INTO q FROM fencepost.queues x WHERE x.source = p_source;
    IF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('the queue %s is not registered', p_source);
    END IF;
    SELECT b.generation, b.issued INTO generation, issued FROM fencepost.source_bounds(p_source) b;
    IF because IS NOT NULL THEN verdict := 'quarantined'; RETURN; END IF;
    IF generation <> p_generation THEN verdict := 'raised'; RETURN; END IF;
    recorded := q.ends; recorded_epochs := q.leader_epochs;
    IF q.incarnation IS NULL THEN
      IF p_generation IS NULL THEN verdict := 'again'; RETURN; END IF;
      new_ends := p_ends; new_epochs := p_epochs;
    ELSE
      because := fencepost.queue_fault(q.incarnation, p_incarnation, q.ends, p_ends, q.leader_epochs, p_epochs);
      IF because IS NOT NULL THEN
        -- Nothing was recorded before: another consumer made the first look of the generation meanwhile.
        IF p_before IS NULL OR cardinality(p_before) = 0 THEN verdict := 'again'; because := NULL; RETURN; END IF;
        because := fencepost.queue_fault(q.incarnation, p_incarnation, p_before, p_ends, p_before_epochs, p_epochs);
        IF because IS NOT NULL THEN
          IF locked = 0 THEN CONTINUE; END IF;
          PERFORM fencepost.source_quarantine(p_source, because);
          verdict := 'quarantined';
          RETURN;
        END IF;
      END IF;
      new_ends := ARRAY(SELECT greatest(u.was, u.is_now) FROM ROWS FROM (unnest(q.ends), unnest(p_ends)) WITH ORDINALITY AS u(was, is_now, o)
                     ORDER BY u.o);
      new_epochs := ARRAY(SELECT greatest(u.was, u.is_now)
                        FROM ROWS FROM (unnest(q.leader_epochs), unnest(p_epochs)) WITH ORDINALITY AS u(was, is_now, o) ORDER BY u.o);
    END IF;
    IF locked = 1 THEN
      UPDATE fencepost.queues x SET incarnation = p_incarnation, ends = new_ends, leader_epochs = new_epochs
       WHERE x.source = p_source;
      PERFORM fencepost.source_reaches(p_source, (generation << 48) + (SELECT max(u.x) FROM unnest(new_ends) AS u(x)));
    ELSIF q.incarnation IS NULL OR new_ends <> q.ends OR new_epochs IS DISTINCT FROM q.leader_epochs
          OR issued < (generation << 48) + (SELECT max(u.x) FROM unnest(new_ends) AS u(x)) THEN
      CONTINUE;
    END IF;
    stopped := ARRAY(SELECT x.resource FROM fencepost.queue_stopped x WHERE x.source = p_source ORDER BY 1);
    verdict := 'ok';
    RETURN;
  END LOOP;
END $$;

-- The log's own client has noticed that it lost messages, before it was asked what it is. A loss that was found in an earlier generation
-- is over: p_generation, null if that is not known.
CREATE FUNCTION fencepost.queue_quarantine(p_source text, p_because text, p_generation bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fencepost.queues q JOIN fencepost.sources s ON s.name = q.source WHERE q.source = p_source FOR NO KEY UPDATE OF s;
  IF FOUND AND (SELECT b.generation <= coalesce(p_generation, b.generation) FROM fencepost.source_bounds(p_source) b) THEN
    PERFORM fencepost.source_quarantine(p_source, p_because);
  END IF;
END $$;

-- A new generation begins: offsets of the log may be others than before.
CREATE FUNCTION fencepost.queue_forget(p_source text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.queues q SET incarnation = NULL, ends = '{}', leader_epochs = '{}', looked_at = NULL, looked_ends = NULL,
         applied_to = NULL, forget_to = NULL
   WHERE q.source = p_source;
  UPDATE fencepost.queue_partitions p SET decided = NULL, oldest_at = NULL, committed = NULL, blocked_resource = NULL, blocked_because = NULL,
         blocked_since = NULL
   WHERE p.source = p_source;
END $$;

-- A consumer has asked the log, in the generation p_generation, below which offset of each partition it gives no message again. Its
-- source is locked first: a raise that is under way is waited for, and then what was said of the generation before counts for nothing.
-- A group's position may still be one of the log before the raise, beyond the end of this one: the recorded end bounds it. Within a
-- generation it rises only: positions that are set back do not bring forgotten records back.
CREATE FUNCTION fencepost.queue_committed(p_source text, p_generation bigint, p_offsets bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR SHARE;
  IF (SELECT b.generation FROM fencepost.source_bounds(p_source) b) IS DISTINCT FROM p_generation THEN RETURN; END IF;
  INSERT INTO fencepost.queue_partitions AS p (source, partition, committed)
  SELECT p_source, u.o - 1, least(u.below, q.ends[u.o::integer])
    FROM unnest(p_offsets) WITH ORDINALITY AS u(below, o), fencepost.queues q WHERE q.source = p_source AND u.o <= cardinality(q.ends)
   ORDER BY u.o
  ON CONFLICT (source, partition) DO UPDATE SET committed = greatest(p.committed, excluded.committed);
END $$;

-- Whether the log gives the message at this offset no more: it is decided, and its record may have been forgotten.
CREATE FUNCTION fencepost.queue_is_committed(p_source text, p_generation bigint, p_partition integer, p_offset bigint) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM fencepost.queue_partitions p, fencepost.source_bounds(p_source) b
                  WHERE p.source = p_source AND p.partition = p_partition AND p.committed > p_offset AND b.generation = p_generation) $$;

-- A consumer notes how far its partitions are, and what it counted since it last did. p_oldest: seconds since the epoch; p_blocked_s: for
-- how many seconds the message is tried in vain.
-- What it knows of an earlier generation's offsets is left out.
CREATE FUNCTION fencepost.queue_note_progress(p_source text, p_generation bigint, p_partitions integer[], p_decided bigint[],
  p_oldest double precision[], p_applied bigint[], p_refused bigint[], p_failed bigint[], p_redelivered bigint[],
  p_blocked text[], p_because text[], p_blocked_s double precision[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  current boolean := (SELECT b.generation = p_generation FROM fencepost.source_bounds(p_source) b);
BEGIN
  INSERT INTO fencepost.queue_partitions AS p (source, partition, decided, oldest_at, applied, refused, failed, redelivered,
                                               blocked_resource, blocked_because, blocked_since)
  SELECT p_source, u.partition, CASE WHEN current THEN u.decided END, CASE WHEN current THEN to_timestamp(u.oldest) END,
         u.applied, u.refused, u.failed, u.redelivered, u.blocked, u.because, clock_timestamp() - u.blocked_s * interval '1 s'
    FROM ROWS FROM (unnest(p_partitions), unnest(p_decided), unnest(p_oldest), unnest(p_applied), unnest(p_refused),
                    unnest(p_failed), unnest(p_redelivered), unnest(p_blocked), unnest(p_because), unnest(p_blocked_s))
      AS u(partition, decided, oldest, applied, refused, failed, redelivered, blocked, because, blocked_s)
   ORDER BY u.partition
  ON CONFLICT (source, partition) DO UPDATE
     SET decided = CASE WHEN current THEN greatest(p.decided, excluded.decided) ELSE p.decided END,
         oldest_at = CASE WHEN current THEN excluded.oldest_at ELSE p.oldest_at END,
         applied = p.applied + excluded.applied, refused = p.refused + excluded.refused, failed = p.failed + excluded.failed,
         redelivered = p.redelivered + excluded.redelivered, blocked_resource = excluded.blocked_resource,
         blocked_because = excluded.blocked_because, blocked_since = excluded.blocked_since, noted_at = clock_timestamp();
END $$;

-- A consumer decides or takes nothing, and says why; p_because null: it goes on. Where several are paused, the last one to say so is shown.
CREATE FUNCTION fencepost.queue_note_pause(p_source text, p_member text, p_because text) RETURNS void LANGUAGE sql
VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE fencepost.queues q SET paused_member = CASE WHEN p_because IS NOT NULL THEN p_member END, paused_because = p_because,
         paused_at = CASE WHEN p_because IS NOT NULL THEN clock_timestamp() END
   WHERE q.source = p_source AND (p_because IS NOT NULL OR q.paused_member = p_member) $$;

-- All queues that were ever registered, a row for each partition that is known of; partition null: none is.
CREATE FUNCTION fencepost.queue_known()
RETURNS TABLE (source text, kind text, generation bigint, quarantined text, incarnation text, partition integer, end_offset bigint,
               decided bigint, oldest_s double precision, applied bigint, refused bigint, failed bigint, redelivered bigint,
               noted_s double precision, stopped bigint, blocked_resource text, blocked_because text, blocked_s double precision,
               paused_member text, paused_because text, paused_s double precision)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT q.source, q.kind, b.generation, s.quarantined_because, q.incarnation, n.partition, q.ends[n.partition + 1], p.decided,
         extract(epoch FROM clock_timestamp() - p.oldest_at)::double precision, coalesce(p.applied, 0), coalesce(p.refused, 0),
         coalesce(p.failed, 0), coalesce(p.redelivered, 0), extract(epoch FROM clock_timestamp() - p.noted_at)::double precision,
         (SELECT count(*) FROM fencepost.queue_stopped x WHERE x.source = q.source), p.blocked_resource, p.blocked_because,
         extract(epoch FROM clock_timestamp() - p.blocked_since)::double precision, q.paused_member, q.paused_because,
         extract(epoch FROM clock_timestamp() - q.paused_at)::double precision
    FROM fencepost.queues q JOIN fencepost.sources s ON s.name = q.source CROSS JOIN LATERAL fencepost.source_bounds(q.source) b
    LEFT JOIN LATERAL (SELECT generate_series(0, cardinality(q.ends) - 1) UNION
                       SELECT y.partition FROM fencepost.queue_partitions y WHERE y.source = q.source) AS n(partition) ON true
    LEFT JOIN fencepost.queue_partitions p ON p.source = q.source AND p.partition = n.partition
   ORDER BY q.source, n.partition $$;

-- Later writes of the resource are not applied until the write p_write_id is cleared. The first one stays.
CREATE FUNCTION fencepost.queue_stop(p_source text, p_resource text, p_write_id text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  because_of text;
BEGIN
  INSERT INTO fencepost.queue_stopped AS x (source, resource, write_id) VALUES (p_source, p_resource, p_write_id)
  ON CONFLICT (source, resource) DO UPDATE SET at = x.at RETURNING x.write_id INTO because_of;
  RETURN because_of;
END $$;

-- Let the resource go on, if it is this write that stopped it.
CREATE FUNCTION fencepost.queue_clear(p_source text, p_resource text, p_write_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fencepost.queue_stopped x WHERE x.source = p_source AND x.resource = p_resource AND x.write_id = p_write_id;
  RETURN FOUND;
END $$;

CREATE FUNCTION fencepost.queue_stopped_by(p_source text) RETURNS TABLE (resource text, write_id text, at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.resource, x.write_id, x.at FROM fencepost.queue_stopped x WHERE x.source = p_source ORDER BY 1 $$;

-- Whether the record of a message may be forgotten (prune_idempotency): the message does not come again, because the log has committed
-- it, or has no such place any more. While no consumer has said what is committed in the present generation, it may come.
CREATE FUNCTION fencepost.queue_forgettable(p_id text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT NOT EXISTS (
    SELECT FROM regexp_match(p_id, '^(.+)[.]([0-9]+)[.]([0-9]+)[.][0-9a-f]{16}$') AS m(at)
      JOIN fencepost.queues q ON q.source = m.at[1]
      LEFT JOIN fencepost.queue_partitions p ON p.source = m.at[1] AND p.partition = m.at[2]::integer
     WHERE CASE WHEN m.at[2]::integer >= cardinality(q.ends) THEN cardinality(q.ends) = 0
                ELSE p.committed IS NULL OR m.at[3]::bigint BETWEEN p.committed AND q.ends[m.at[2]::integer + 1] - 1 END) $$;
