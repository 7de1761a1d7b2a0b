-- Token sources beside the built-in one (R12): lock services and queues, and how far their numbers got. Leases of lock services:
-- source_leases.sql. Queues: queues.sql.
--
-- A token is generation * 2^48 + the service's own number. The generation is read BEFORE the service is asked; a grant
-- that comes back after it was raised is void. A grant that was requested after `issued` was recorded, and whose number is
-- not higher, shows that the service forgot what it handed out: a backup was restored, a failover lost writes, a counter
-- was evicted. Then the source is quarantined until an operator raises its generation.
--
-- Each source has a sequence, fencepost.tokens_NAME, which no token is drawn from: MINVALUE is where its generation begins
-- (1 in generation 0), and its last value the highest token known to have been handed out. A sequence, because a statement
-- with an old snapshot must see both as they are now, and because a transaction that compares a token with them keeps a lock on
-- the sequence until it ends, which `raise` waits for. Only a transaction that has the source's row locked sets it.
--
-- Lock order:  sources (by name)  ->  its sequence  ->  source_leases (by lease_id). Writers lock rows and marks, and then the
-- sequence, and none of the others.

CREATE TABLE fencepost.sources (
  name           text COLLATE "C" PRIMARY KEY CONSTRAINT sources_name_check
                 CHECK (name ~ '^([a-z][a-z0-9_]{0,31}|postgres:default|(kafka|redis):[A-Za-z0-9._-]{1,48})$'
                        AND name NOT IN ('builtin', 'external')),
  scheme         text NOT NULL,
  ordering       text NOT NULL CONSTRAINT sources_ordering_check CHECK (ordering IN ('source', 'lock', 'database')),
  verifies       boolean,
  quarantined_at timestamptz,
  quarantined_because text
);

COMMENT ON TABLE fencepost.sources IS 'Lock services whose tokens tables may be pinned to; how far these got is in a sequence for each, tokens_NAME. ordering: how far its numbers can be compared. scheme: what kind of service it is.';

CREATE TABLE fencepost.source_log (
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  source     text COLLATE "C" NOT NULL,
  event      text NOT NULL CONSTRAINT source_log_event_check CHECK (event IN ('registered', 'quarantined', 'raised')),
  generation bigint NOT NULL,
  detail     text NOT NULL,
  by         text NOT NULL DEFAULT session_user
);

COMMENT ON TABLE fencepost.source_log IS 'What befell the sources, in order: rows are only ever added.';

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

-- What has to be known before a service is asked: where its tokens are now. For a service whose numbers rise within one
-- lock only, `issued` is that lock's.
CREATE FUNCTION fencepost.source_state(p_name text, p_lock text, OUT generation bigint, OUT issued bigint, OUT quarantined text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_ordering text;
BEGIN
  SELECT s.quarantined_because, s.ordering INTO quarantined, found_ordering FROM fencepost.sources s WHERE s.name = p_name;
  IF NOT FOUND THEN RETURN; END IF;
  source_state.issued := fencepost.issued(p_name);
  source_state.generation := fencepost.oldest(p_name) >> 48;
  IF found_ordering = 'lock' THEN
    source_state.issued := coalesce((SELECT x.last_token FROM fencepost.source_leases x
                                      WHERE x.source = p_name AND x.lock = p_lock ORDER BY x.last_token DESC LIMIT 1), 0);
  END IF;
END $$;

-- Both without that lock, and so maybe of a moment ago: to list them, and for a caller that takes a stronger lock next.
CREATE FUNCTION fencepost.source_bounds(p_source text, OUT generation bigint, OUT issued bigint) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('SELECT q.seqmin >> 48, CASE WHEN t.is_called THEN t.last_value ELSE q.seqmin - 1 END'
                 ' FROM fencepost.%I t, pg_sequence q WHERE q.seqrelid = %L::regclass',
                 'tokens_' || p_source, format('fencepost.%I', 'tokens_' || p_source)) INTO generation, issued;
END $$;

-- Note that tokens up to p_token have been handed out. With the source's row locked; it never falls, and it stays when the
-- transaction does not commit: the service has handed them out all the same.
CREATE FUNCTION fencepost.source_reaches(p_source text, p_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_token > fencepost.issued(p_source) THEN PERFORM setval(format('fencepost.%I', 'tokens_' || p_source)::regclass, p_token); END IF;
END $$;

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
  PERFORM setval(format('fencepost.%I', 'tokens_' || p_source)::regclass, p_issued);
END $$;

-- Tokens of a source that has no number of its own. A gateway that draws asks the service afterwards whether the lock is still
-- his: if so it was his when this drew. NULL: the generation is another by now.
CREATE FUNCTION fencepost.source_draw(p_source text, p_generation bigint, p_count integer) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  last bigint;
BEGIN
  PERFORM FROM fencepost.sources s WHERE s.name = p_source AND s.ordering = 'database' AND s.quarantined_at IS NULL FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN NULL; END IF;
  last := fencepost.issued(p_source);
  IF fencepost.oldest(p_source) >> 48 <> p_generation THEN RETURN NULL; END IF;
  PERFORM fencepost.source_reaches(p_source, last + p_count);
  RETURN ARRAY(SELECT generate_series(last + 1, last + p_count));
END $$;

-- The service confirmed that it has handed out p_token (--verify).
CREATE FUNCTION fencepost.source_verified(p_source text, p_token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fencepost.sources s WHERE s.name = p_source AND s.quarantined_at IS NULL FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  PERFORM fencepost.issued(p_source);  -- before oldest(), see there
  IF fencepost.oldest(p_source) >> 48 = p_token >> 48 THEN PERFORM fencepost.source_reaches(p_source, p_token); END IF;
END $$;

CREATE FUNCTION fencepost.source_quarantine(p_source text, p_because text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE fencepost.sources s SET quarantined_at = clock_timestamp(), quarantined_because = p_because
   WHERE s.name = p_source AND s.quarantined_at IS NULL;
  IF FOUND THEN
    INSERT INTO fencepost.source_log (source, event, generation, detail)
    VALUES (p_source, 'quarantined', fencepost.oldest(p_source) >> 48, p_because);
    PERFORM pg_notify('fencepost', 'reload');
  END IF;
END $$;

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
  UPDATE fencepost.sources s SET quarantined_at = NULL, quarantined_because = NULL WHERE s.name = p_source;
  UPDATE fencepost.source_leases x SET ended_at = clock_timestamp(), ended_by = 'generation'
   WHERE x.source = p_source AND x.ended_at IS NULL;
  PERFORM fencepost.queue_forget(p_source);
  INSERT INTO fencepost.source_log (source, event, generation, detail) VALUES (p_source, 'raised', raised, p_reason);
  PERFORM pg_notify('fencepost', 'reload');
  RETURN raised;
END $$;

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

-- The sources whose tokens are drawn in this database have forgotten theirs when it was failed over (R19).
CREATE TRIGGER raise_sources AFTER INSERT ON fencepost.generations FOR EACH ROW EXECUTE FUNCTION fencepost.raise_sources_of_ours();

-- A table, or scope, becomes the source's that has marks up to p_token. A source that has given no token yet goes on from
-- there: above them in a new generation where they are known to be another source's (p_of_another), else by counting them as
-- its own. One that is in use is not touched: its other tables' holders would be refused, or its next grant be called a step back.
-- Of a queue's tokens the next one of a partition may be far below the highest that is issued: the lowest that may come counts.
CREATE FUNCTION fencepost.source_beyond(p_source text, p_token bigint, p_of_another boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  first bigint := (p_token >> 48) + p_of_another::int;
  queued boolean := strpos(p_source, ':') > 0;
  issued bigint;
  reached bigint;
BEGIN
  FOR locked IN 0..1 LOOP  -- without a lock first: what is compared never falls
    IF locked = 1 THEN PERFORM FROM fencepost.sources x WHERE x.name = p_source FOR NO KEY UPDATE; END IF;
    SELECT b.issued, CASE WHEN queued AND p_of_another
             THEN (b.generation << 48) + coalesce((SELECT min(u.x) FROM fencepost.queues q, unnest(q.ends) AS u(x) WHERE q.source = p_source), 0)
             ELSE b.issued END
      INTO STRICT issued, reached FROM fencepost.source_bounds(p_source) b;
    IF coalesce(p_token, 0) <= reached THEN RETURN; END IF;
  END LOOP;
  IF issued > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = CASE WHEN queued
        THEN format('there is a mark of %s, and the queue %s, which is in use, has positions whose tokens are no higher', p_token, p_source)
        ELSE format('there is a mark of %s, and the source %s, which is in use, has issued none above %s', p_token, p_source, issued) END,
      HINT = format('fencepost source raise %s --above %s --reason … %s its tokens begin above the mark. Then protect the table.',
                    p_source, p_token, CASE WHEN queued THEN 'lets' ELSE 'ends its leases, and lets' END);
  END IF;
  PERFORM fencepost.source_begins(p_source, first, CASE WHEN p_of_another THEN first << 48 ELSE p_token END);
  IF first > 0 THEN
    INSERT INTO fencepost.source_log (source, event, generation, detail)
    VALUES (p_source, 'raised', first, format('a table with the mark %s was pinned to it', p_token));
  END IF;
END $$;
