-- Pruning of marks (R6): marks of keys without a row are forgotten, once a floor refuses whatever they would have refused.
--
-- Lock order (R20):  the sequence (by issued())  ->  floors  ->  marks that no transaction holds (SKIP LOCKED).

-- Forget marks of deleted rows, safely: the floor rises with it and refuses what they would have refused. The operator who
-- runs this vouches that no live holder has a token at or below the floor, and that tokens are ordered across all
-- resources of the table (R6).
CREATE FUNCTION fencepost.prune(tab text, p_floor bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  pruned bigint;
BEGIN
  UPDATE fencepost.floors f SET floor = greatest(f.floor, p_floor) WHERE f.name = tab;
  IF NOT FOUND THEN RAISE EXCEPTION 'no table % was ever protected', tab; END IF;
  DELETE FROM fencepost.marks k
   WHERE starts_with(k.resource, fencepost.enc(tab) || '/') AND k.row_absent AND k.last_fence_token <= p_floor;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END $$;

-- What marks may be pruned later: those up to `issued`, once every transaction before `before` has ended. A session that draws
-- a token has a transaction number before it draws (it locks a row first), so one that drew a token up to `issued` is before
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
  -- they have not ended: their holders were not superseded.
  cap := least(p_issued, (SELECT d.first_token FROM fencepost.draws d JOIN fencepost.leases x ON x.lease_id = d.lease_id
                           WHERE x.ended_at IS NULL ORDER BY d.first_token LIMIT 1) - 1);
  SELECT n.name, fencepost.enc(n.name) COLLATE "C" INTO tab, prefix
    FROM (SELECT p.name FROM fencepost.protected p WHERE p.source = 'builtin' AND p.scope IS NULL UNION
          SELECT left(p.scope, strpos(p.scope, '/{') - 1) FROM fencepost.protected p
           WHERE p.source = 'builtin' AND p.scope IS NOT NULL) n
   WHERE fencepost.enc(n.name) || '0' COLLATE "C" > p_after COLLATE "C"  -- '0' comes right after '/'
   ORDER BY fencepost.enc(n.name) || '/' COLLATE "C" LIMIT 1;  -- as their resources: 'a%2Fb/' comes before 'a/'
  IF NOT FOUND THEN RETURN; END IF;
  -- A session that makes this a table of another source waits for us, or is seen.
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
  -- Never waits for a mark, so it delays no writer: another transaction is writing it, or the other order was right. What they
  -- raised meanwhile, or gave a row, stays.
  WITH free AS (SELECT k.resource FROM fencepost.marks k
                 WHERE k.resource = ANY (candidates) AND k.row_absent AND k.last_fence_token <= raised_to
                   FOR UPDATE SKIP LOCKED)
  DELETE FROM fencepost.marks k USING free
   WHERE k.resource = free.resource AND k.row_absent AND k.last_fence_token <= raised_to;
  GET DIAGNOSTICS pruned = ROW_COUNT;
END $$;

-- How much there is to remember, estimated by the planner's statistics: for /metrics. Null: never analyzed, or no such
-- table.
CREATE FUNCTION fencepost.sizes()
RETURNS TABLE (what text, records bigint, bytes bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.relname::text, CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint END, pg_total_relation_size(c.oid)
    FROM pg_class c WHERE c.oid IN (to_regclass('fencepost.marks'), to_regclass('fencepost.idempotency')) $$;
