-- Which database this is, and since when (R19); pruning of marks (R6). Statements are separated by a line of "-- next".
--
-- A generation is a span of time in which one database has known every token that it issued. It ends when writes that
-- were acknowledged may be gone: a standby without them was promoted, a backup was restored. Its tokens are void then.
-- Token = generation * 2^48 + what was drawn since: MINVALUE of fencepost.tokens is where the generation begins.
--
-- Lock order:  the sequence (by issued() or ALTER SEQUENCE)  ->  floors  ->  marks that nobody holds (SKIP LOCKED).
--              raise_generation takes fencepost.locks and leases before all that, as a grant does.

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
-- next
COMMENT ON TABLE fencepost.generations IS 'On which system, timeline and database fenced writes were allowed, and since when (R19). The newest counts: gateways refuse to write anywhere else until an operator raises the generation.';
-- next
COMMENT ON COLUMN fencepost.generations.identity IS 'Random: two histories of one database may both raise a generation, even of one number, and the tokens of one are worth nothing in the other.';
-- next
COMMENT ON COLUMN fencepost.generations.relation_oid IS 'The oid of this very table when the row was made: a restored dump brings the row, and makes the table anew.';
-- next
COMMENT ON COLUMN fencepost.generations.above IS 'generation raise --above: the generations up to that of this token are over, in every history of this database.';
-- next
-- The timeline of the WAL that is being written. pg_control_checkpoint() would lag behind a promotion.
CREATE FUNCTION fencepost.current_timeline() RETURNS integer LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer $$;
-- next
-- Which database this is. What tells a copy from the original, by how the copy was made:
--   system_identifier   initdb: a dump restored in another cluster, pg_upgrade, a logical replica
--   timeline            a promoted standby, a point-in-time restore. Null in recovery
--   database_oid        a dump restored in another database of the cluster, a clone by CREATE DATABASE … TEMPLATE, also
--                       after ALTER DATABASE … RENAME. ALTER DATABASE … RENAME of the original itself keeps it
--   relation_oid        a dump restored into the same database. VACUUM FULL, CLUSTER, TRUNCATE, SET TABLESPACE keep it
CREATE FUNCTION fencepost.here(OUT system_identifier bigint, OUT timeline integer, OUT database_oid oid,
                               OUT relation_oid oid)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.system_identifier, CASE WHEN NOT pg_is_in_recovery() THEN fencepost.current_timeline() END,
         (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), 'fencepost.generations'::regclass::oid
    FROM pg_control_system() s $$;
-- next
INSERT INTO fencepost.generations (generation, system_identifier, timeline, database_oid, relation_oid, reason)
SELECT 0, h.system_identifier, h.timeline, h.database_oid, h.relation_oid, 'migrated' FROM fencepost.here() h;
-- next
-- What a connection is connected to, and what is stored there. timeline and flushed are null in recovery; generation and
-- what follows it are null when nothing is stored.
--   flushed    the position up to which WAL is safe on disk, in bytes: on one timeline it never goes back, not by a crash
--   history    all generations that are stored, as number/identity
--   above      the highest token that --above was ever given
CREATE FUNCTION fencepost.origin(OUT in_recovery boolean, OUT system_identifier bigint, OUT timeline integer,
                                 OUT database_oid oid, OUT relation_oid oid, OUT flushed bigint,
                                 OUT generation bigint, OUT identity uuid, OUT known_system bigint,
                                 OUT known_timeline integer, OUT known_database oid, OUT known_relation oid,
                                 OUT history text[], OUT above bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  in_recovery := pg_is_in_recovery();
  SELECT h.* INTO system_identifier, timeline, database_oid, relation_oid FROM fencepost.here() h;
  IF NOT in_recovery THEN flushed := pg_current_wal_flush_lsn() - '0/0'; END IF;
  SELECT g.generation, g.identity, g.system_identifier, g.timeline, g.database_oid, g.relation_oid
    INTO generation, identity, known_system, known_timeline, known_database, known_relation
    FROM fencepost.generations g ORDER BY g.generation DESC LIMIT 1;
  SELECT array_agg(g.generation || '/' || g.identity), max(g.above) INTO history, above FROM fencepost.generations g;
END $$;
-- next
-- The oldest token of this generation; 1 in the first. On the hot path, after issued() in the same expression: that one
-- locks the sequence for the transaction, so a generation that is being raised is waited for and then seen.
CREATE FUNCTION fencepost.oldest() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (pg_catalog.pg_sequence_parameters('fencepost.tokens'::regclass)).minimum_value;
-- next
-- As in 0002; but before the first token of a generation it is the last one that an earlier generation may have had.
CREATE OR REPLACE FUNCTION fencepost.issued() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN coalesce(pg_catalog.pg_sequence_last_value('fencepost.tokens'::regclass), fencepost.oldest() - 1);
-- next
-- A token that no lease was ever given must not raise a mark (R12), nor one that an earlier generation gave: whoever
-- holds it may not know of writes that were lost, and others may hold the same number (R19).
CREATE OR REPLACE FUNCTION fencepost.require_issued(p_resource text, p_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  issued bigint := fencepost.issued();
  oldest bigint := fencepost.oldest();  -- after issued(), see there
BEGIN
  IF p_token > issued THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s was never issued: the built-in source has issued none above %s',
                       p_token, p_resource, issued),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', issued::text)::text,
      HINT = 'Tokens of this table come from leases: POST /v1/leases, or fencepost lock.';
  END IF;
  IF p_token < oldest AND NOT fencepost.break_glass() THEN  -- that one keeps a row's mark, however old
    RAISE EXCEPTION USING ERRCODE = 'FP409',
      MESSAGE = format('stale token %s for %s: a token of an earlier generation, all of which are void up to %s',
                       p_token, p_resource, oldest - 1),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'mark', (oldest - 1)::text)::text,
      HINT = 'The database was failed over or restored since this token was drawn. Do not retry: acquire the lock anew and read again.';
  END IF;
END $$;
-- next
-- An operator vouches for this database: from now on it is the one to write to. Every token that was drawn before is
-- void, every lease over. Returns the new generation.
--
-- p_above: a token of another history of this database, of which nothing is stored here (another standby was promoted from
-- the same primary, say, and its generation raised): the new generation is above that of the token, and gateways that
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
  INSERT INTO fencepost.generations (generation, system_identifier, timeline, database_oid, relation_oid, above, reason)
  SELECT raised, h.system_identifier, h.timeline, h.database_oid, h.relation_oid, p_above, p_reason FROM fencepost.here() h;
  UPDATE fencepost.leases x SET ended_at = clock_timestamp(), secret_hash = NULL WHERE x.ended_at IS NULL;
  -- For keys without a row, which no trigger sees.
  UPDATE fencepost.floors f SET floor = greatest(f.floor, first - 1)
   WHERE f.name IN (SELECT unnest(ARRAY[p.name, left(p.scope, strpos(p.scope, '/{') - 1)]) FROM fencepost.protected p
                     WHERE p.source = 'builtin');
  SELECT array_agg(DISTINCT w.name) INTO waiting FROM fencepost.waiters w;
  IF waiting IS NOT NULL THEN PERFORM fencepost.wake(waiting, NULL); END IF;
  PERFORM pg_notify('fencepost', 'reload');
  RETURN raised;
END $$;
-- next
-- What marks may be pruned later: those up to `issued`, once every transaction before `before` has ended. Whoever draws
-- a token has a transaction number before it draws (it locks a row first), so whoever drew one up to `issued` is before
-- `before`; when it has ended, its lease can be seen. Not the snapshot's xmax: that is one past the newest transaction
-- that has ENDED, and there may be older and newer ones under way. Null in a transaction that has a number already: it
-- would have been given too early.
CREATE FUNCTION fencepost.prune_horizon(OUT issued bigint, OUT before xid8)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN RETURN; END IF;
  issued := fencepost.issued();
  before := pg_current_xact_id();  -- after issued(), in a statement of its own
END $$;
-- next
-- Forget marks of keys without a row that are older than p_keep_s and that no live lease can meet: the table's floor
-- rises with them, and refuses whatever they would have refused (R6). Only of tables and scopes of the built-in source:
-- its tokens are ordered across all resources.
--
-- p_issued, p_before: of fencepost.prune_horizon, some time ago. Looks at p_limit marks after p_after, of one table or
-- scope. Returns where to go on (null: nowhere) and how many marks went. idle: nothing was looked at, because others
-- prune, or transactions from before the horizon are still under way.
CREATE FUNCTION fencepost.prune_marks(p_issued bigint, p_before xid8, p_keep_s double precision, p_after text,
                                      p_limit integer, OUT reached text, OUT pruned bigint, OUT idle boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
  cutoff timestamptz := clock_timestamp() - p_keep_s * interval '1 s';
  cap bigint;
  raised_to bigint;
  tab text;
  prefix text;
  candidates text[];
  looked_at bigint;
BEGIN
  pruned := 0;
  idle := NOT pg_try_advisory_xact_lock(hashtextextended('fencepost.prune', 0))
          OR coalesce(pg_snapshot_xmin(pg_current_snapshot()) < p_before, true);
  IF idle THEN RETURN; END IF;
  PERFORM fencepost.issued();  -- the sequence before the floors: see the lock order above
  -- A statement of its own: its snapshot is not older than the one that was asked above. Expired leases count as long as
  -- they have not ended: nobody has superseded their holders.
  cap := least(p_issued, (SELECT min(x.lease_id) FROM fencepost.leases x WHERE x.ended_at IS NULL) - 1);
  SELECT n.name, fencepost.enc(n.name) COLLATE "C" INTO tab, prefix
    FROM (SELECT p.name FROM fencepost.protected p WHERE p.source = 'builtin' AND p.scope IS NULL UNION
          SELECT left(p.scope, strpos(p.scope, '/{') - 1) FROM fencepost.protected p
           WHERE p.source = 'builtin' AND p.scope IS NOT NULL) n
   WHERE fencepost.enc(n.name) || '0' COLLATE "C" > p_after COLLATE "C"  -- '0' comes right after '/'
   ORDER BY fencepost.enc(n.name) || '/' COLLATE "C" LIMIT 1;  -- as their resources: 'a%2Fb/' comes before 'a/'
  IF NOT FOUND THEN RETURN; END IF;
  -- Whoever makes this a table of another source waits for us, or is seen.
  PERFORM FROM fencepost.protected p WHERE p.name = tab OR left(p.scope, strpos(p.scope, '/{') - 1) = tab
    ORDER BY p.relation::oid FOR SHARE;
  IF EXISTS (SELECT FROM fencepost.protected p WHERE p.source <> 'builtin'
                AND (p.name = tab OR left(p.scope, strpos(p.scope, '/{') - 1) = tab)) THEN
    reached := prefix || '0';
    RETURN;
  END IF;
  SELECT max(m.resource), count(*), max(m.last_fence_token) FILTER (WHERE m.prunable),
         array_agg(m.resource) FILTER (WHERE m.prunable)
    INTO reached, looked_at, raised_to, candidates
    FROM (SELECT k.resource, k.last_fence_token,
                 k.row_absent AND k.last_fence_token <= cap AND k.changed_at <= cutoff AS prunable
            FROM fencepost.marks k
           WHERE k.resource > greatest(p_after COLLATE "C", prefix || '/' COLLATE "C") AND k.resource < prefix || '0'
           ORDER BY k.resource LIMIT p_limit) m;
  IF looked_at < p_limit THEN reached := prefix || '0'; END IF;
  IF candidates IS NULL THEN RETURN; END IF;
  UPDATE fencepost.floors f SET floor = greatest(f.floor, raised_to) WHERE f.name = tab;
  IF NOT FOUND THEN RAISE EXCEPTION 'no table or scope % was ever protected', tab; END IF;
  -- Never waits for a mark, so it is in nobody's way: somebody is writing it, or the other order was right. What they
  -- raised meanwhile, or gave a row, stays.
  WITH free AS (SELECT k.resource FROM fencepost.marks k
                 WHERE k.resource = ANY (candidates) AND k.row_absent AND k.last_fence_token <= raised_to
                   FOR UPDATE SKIP LOCKED)
  DELETE FROM fencepost.marks k USING free
   WHERE k.resource = free.resource AND k.row_absent AND k.last_fence_token <= raised_to;
  GET DIAGNOSTICS pruned = ROW_COUNT;
END $$;
-- next
-- How much there is to remember, estimated by the planner's statistics: for /metrics. Null: never analyzed, or no such
-- table.
CREATE FUNCTION fencepost.sizes()
RETURNS TABLE (what text, records bigint, bytes bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.relname::text, CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint END, pg_total_relation_size(c.oid)
    FROM pg_class c WHERE c.oid IN (to_regclass('fencepost.marks'), to_regclass('fencepost.idempotency')) $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.current_timeline(), fencepost.here(), fencepost.origin(),
  fencepost.raise_generation(text, bigint),
  fencepost.prune_horizon(), fencepost.prune_marks(bigint, xid8, double precision, text, integer),
  fencepost.sizes() FROM PUBLIC;
-- next
-- What runs in the writer's own name, where default privileges do not give it to everybody.
GRANT EXECUTE ON FUNCTION fencepost.enc(text), fencepost.key_of(oid), fencepost.is_builtin(oid), fencepost.canon(date), fencepost.canon(timestamp),
  fencepost.canon(timestamptz), fencepost.canon(numeric), fencepost.canon(bytea), fencepost.given(text),
  fencepost.malformed(text), fencepost.beyond(text, bigint, bigint, bigint, bigint, bigint),
  fencepost.held_mark(text, bigint), fencepost.held_floor(text), fencepost.highest_below(text, text, bigint),
  fencepost.reset_mark(text, text, bigint, bigint), fencepost.is_reset(text, bigint, bigint),
  fencepost.require_reach(text, text, bigint, bigint, bigint, bigint),
  fencepost.require_reach_of_row(text, text, bigint, bigint, bigint, bigint), fencepost.note_said(text, bigint),
  fencepost.was_said(text, bigint), fencepost.ours(xid), fencepost.refuse(text, bigint, bigint),
  fencepost.judge_update(text, text, text, bigint, bigint, boolean, xid), fencepost.suppressed(text),
  fencepost.outdated(text), fencepost.break_glass(), fencepost.record_break_glass(text, text, text),
  fencepost.mark_behind_glass(text, text, bigint), fencepost.issued(), fencepost.oldest(),
  fencepost.require_issued(text, bigint) TO PUBLIC;
