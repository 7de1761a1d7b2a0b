-- Which database this is, and since when (R19).
--
-- A generation is a span of time in which one database has known every token that it issued. It ends when writes that
-- were acknowledged may be gone: a standby without them was promoted, a backup was restored. Its tokens are void then.
-- Token = generation * 2^48 + what was drawn since: MINVALUE of fencepost.tokens is where the generation begins.
--
-- Lock order:  fencepost.locks and leases, as a grant does  ->  the sequence (ALTER SEQUENCE)  ->  floors.

CREATE TABLE fencepost.generations (
  generation        bigint PRIMARY KEY CONSTRAINT generations_generation_check CHECK (generation BETWEEN 0 AND 32767),
  identity          uuid NOT NULL DEFAULT gen_random_uuid(),
  system_identifier bigint NOT NULL,
  timeline          integer NOT NULL,
  database_oid      oid NOT NULL,
  relation_oid      oid NOT NULL,
  above             bigint CONSTRAINT generations_above_check CHECK (above >= 0 AND above >> 48 < generation),
  raised_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  raised_by         text NOT NULL DEFAULT session_user,
  reason            text NOT NULL CONSTRAINT generations_reason_check CHECK (reason ~ '[^[:space:]]')
);

COMMENT ON TABLE fencepost.generations IS 'On which system, timeline and database fenced writes were allowed, and since when (R19). The newest counts: gateways refuse to write anywhere else until an operator raises the generation.';

COMMENT ON COLUMN fencepost.generations.identity IS 'Random: two histories of one database may both raise a generation, even of one number, and the tokens of one are worth nothing in the other.';

COMMENT ON COLUMN fencepost.generations.relation_oid IS 'The oid of this very table when the row was made: a restored dump brings the row, and makes the table anew.';

COMMENT ON COLUMN fencepost.generations.above IS 'generation raise --above: the generations up to that of this token are over, in every history of this database.';

-- The timeline of the WAL that is being written. pg_control_checkpoint() would lag behind a promotion.
CREATE FUNCTION fencepost.current_timeline() RETURNS integer LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer $$;

-- Which database this is. What distinguishes a copy from the original, by how the copy was made:
--   system_identifier   initdb: a dump restored in another cluster, pg_upgrade, a logical replica
--   timeline            a promoted standby, a point-in-time restore. Null in recovery
--   database_oid        a dump restored in another database of the cluster, a clone by CREATE DATABASE … TEMPLATE, also
--                       after ALTER DATABASE … RENAME. ALTER DATABASE … RENAME of the original itself keeps it
--   relation_oid        a dump restored into the same database. VACUUM FULL, CLUSTER, TRUNCATE, SET TABLESPACE keep it
CREATE FUNCTION fencepost.location(OUT system_identifier bigint, OUT timeline integer, OUT database_oid oid,
                               OUT relation_oid oid)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.system_identifier, CASE WHEN NOT pg_is_in_recovery() THEN fencepost.current_timeline() END,
         (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), 'fencepost.generations'::regclass::oid
    FROM pg_control_system() s $$;

INSERT INTO fencepost.generations (generation, system_identifier, timeline, database_oid, relation_oid, reason)
SELECT 0, h.system_identifier, h.timeline, h.database_oid, h.relation_oid, 'migrated' FROM fencepost.location() h;

-- Marks that gateways leave while the database is written to, at most about two a second, each of them random: a copy of the data
-- directory that was taken before a mark does not have it, however far its own writes have carried its WAL.
CREATE TABLE fencepost.moments (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  nonce  uuid NOT NULL DEFAULT gen_random_uuid(),
  xid    xid8 NOT NULL DEFAULT pg_current_xact_id(),
  at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE fencepost.moments IS 'Random marks, the newest 10,000: a gateway that has met one refuses a copy of this database that does not have it (R19).';

-- Whether something was written since the newest moment. Reads, and the moment itself, are nothing.
CREATE FUNCTION fencepost.moment_due() RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT m.at < clock_timestamp() - interval '0.5 s'
                          AND pg_snapshot_xmax(pg_current_snapshot())::text::numeric > m.xid::text::numeric + 1
                     FROM fencepost.moments m ORDER BY m.number DESC LIMIT 1), true) $$;

-- Leaves a moment, and forgets the oldest one.
CREATE FUNCTION fencepost.leave_moment() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  left_now bigint;
BEGIN
  IF NOT fencepost.moment_due() THEN RETURN; END IF;
  INSERT INTO fencepost.moments DEFAULT VALUES RETURNING moments.number INTO left_now;
  DELETE FROM fencepost.moments m WHERE m.number <= left_now - 10000;
END $$;

-- What a connection is connected to, and what is stored there. timeline and flushed are null in recovery; generation and
-- what follows it are null when nothing is stored.
--   flushed    the position up to which WAL is safe on disk, in bytes: on one timeline it never goes back, not by a crash
--   history    all generations that are stored, as number/identity
--   above      the highest token that --above was ever given
--   moment     the newest moment, and nonce, what it is known by
--   forgot     whether a moment that was met, p_moment and p_nonce, is not there. Of one that is older than all that are
--              kept nobody knows
--   due        whether a moment is to be left
CREATE FUNCTION fencepost.origin(p_moment bigint DEFAULT NULL, p_nonce uuid DEFAULT NULL, OUT in_recovery boolean, OUT system_identifier bigint, OUT timeline integer,
                                 OUT database_oid oid, OUT relation_oid oid, OUT flushed bigint,
                                 OUT generation bigint, OUT identity uuid, OUT known_system bigint,
                                 OUT known_timeline integer, OUT known_database oid, OUT known_relation oid,
                                 OUT history text[], OUT above bigint,
                                 OUT moment bigint, OUT nonce uuid, OUT forgot boolean, OUT due boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  in_recovery := pg_is_in_recovery();
  SELECT h.* INTO system_identifier, timeline, database_oid, relation_oid FROM fencepost.location() h;
  IF NOT in_recovery THEN flushed := pg_current_wal_flush_lsn() - '0/0'; END IF;
  SELECT g.generation, g.identity, g.system_identifier, g.timeline, g.database_oid, g.relation_oid
    INTO generation, identity, known_system, known_timeline, known_database, known_relation
    FROM fencepost.generations g ORDER BY g.generation DESC LIMIT 1;
  SELECT array_agg(g.generation || '/' || g.identity), max(g.above) INTO history, above FROM fencepost.generations g;
  SELECT m.number, m.nonce INTO moment, nonce FROM fencepost.moments m ORDER BY m.number DESC LIMIT 1;
  forgot := p_moment IS NOT NULL
            AND NOT EXISTS (SELECT FROM fencepost.moments m WHERE m.number = p_moment AND m.nonce = p_nonce)
            AND coalesce((SELECT min(m.number) FROM fencepost.moments m) <= p_moment, true);
  due := NOT in_recovery AND fencepost.moment_due();
END $$;

-- An operator vouches for this database: from now on it is the one to write to. Every token that was drawn before is
-- void, every lease over. Returns the new generation.
--
-- p_above: a token of another history of this database, of which nothing is stored here (another standby was promoted from
-- for example the same primary, and its generation raised): the new generation is above that of the token, and gateways that
-- know the other history accept this one as its end.
--
-- The number: two histories that know nothing of one another would both take the next one, and a token of one would be
-- good in the other. So there is a gap before it, by chance up to a 64th of the numbers that are left, so that they
-- last: the token of the other history is then below the oldest here, or above all that were issued.
CREATE FUNCTION fencepost.raise_generation(p_reason text, p_above bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  raised bigint;
  first bigint;
  waiting text[];
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'this server is a standby: its generation cannot be raised',
      HINT = 'Promote it first, or connect to the primary.';
  END IF;
  IF p_reason IS NULL OR p_reason !~ '[^[:space:]]' THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = 'a generation is raised for a reason, and none was given';
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('fencepost.generations', 0));
  -- Grants and mints that are under way end first, and their leases are seen below; later ones wait for us.
  LOCK TABLE fencepost.locks, fencepost.leases IN EXCLUSIVE MODE;
  -- So do writes that have compared their token: issued() keeps a lock on the sequence until they end.
  ALTER SEQUENCE fencepost.tokens CACHE 1;
  raised := greatest((SELECT max(g.generation) FROM fencepost.generations g), fencepost.issued() >> 48, p_above >> 48) + 1;
  raised := raised + floor(random() * ((32767 - raised) / 64))::bigint;
  IF raised > 32767 THEN
    RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = format('there is no generation %s: tokens end at 2^63', raised);
  END IF;
  first := raised << 48;
  EXECUTE format('ALTER SEQUENCE fencepost.tokens MINVALUE %s START %s RESTART', first, first);
  -- Leases that the other database has granted since have numbers, too: an election's next term is above theirs.
  EXECUTE format('ALTER SEQUENCE fencepost.lease_ids START %s RESTART', first + 140737488355329);
  INSERT INTO fencepost.generations (generation, system_identifier, timeline, database_oid, relation_oid, above, reason)
  SELECT raised, h.system_identifier, h.timeline, h.database_oid, h.relation_oid, p_above, p_reason FROM fencepost.location() h;
  UPDATE fencepost.leases x SET ended_at = clock_timestamp(), ended_by = 'generation', secret_hash = NULL WHERE x.ended_at IS NULL;
  -- For keys without a row, which no trigger sees.
  UPDATE fencepost.floors f SET floor = greatest(f.floor, first - 1)
   WHERE f.name IN (SELECT unnest(ARRAY[p.name, left(p.scope, strpos(p.scope, '/{') - 1)]) FROM fencepost.protected p
                     WHERE p.source = 'builtin');
  SELECT array_agg(DISTINCT w.name) INTO waiting FROM fencepost.waiters w;
  IF waiting IS NOT NULL THEN PERFORM fencepost.wake(waiting, NULL); END IF;
  PERFORM pg_notify('fencepost', 'reload');
  RETURN raised;
END $$;
