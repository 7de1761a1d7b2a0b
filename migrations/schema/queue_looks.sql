-- How far queues are applied in time, and which records of callers' messages may be forgotten for that (R16).

-- A consumer has read the clock (p_at), then asked the log below which offsets all is decided (p_decided), then where it ends. What came
-- before looked_at is below looked_ends: once all of that is decided, all that came before looked_at is. No time that a message has is
-- needed for that: its producer may choose it. A position beyond the end is one of another log, from before a raise.
-- applied_to rises at most once a minute, and forget_to one step after it: who has read applied_to has a minute to use it, before a
-- record is forgotten that it did not count on.
CREATE FUNCTION fencepost.queue_looked(p_source text, p_generation bigint, p_incarnation text, p_at double precision,
  p_decided bigint[], p_ends bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR SHARE;
  IF (SELECT b.generation FROM fencepost.source_bounds(p_source) b) IS DISTINCT FROM p_generation THEN RETURN; END IF;
  UPDATE fencepost.queues q SET looked_at = NULL, applied_to = NULL, forget_to = NULL  -- the clock was set back
   WHERE q.source = p_source AND q.looked_at > to_timestamp(p_at) + interval '10 minutes';
  UPDATE fencepost.queues q SET forget_to = q.applied_to, applied_to = q.looked_at, looked_at = to_timestamp(p_at), looked_ends = p_ends
   WHERE q.source = p_source AND q.incarnation = p_incarnation
     AND (q.looked_at IS NULL OR q.looked_at < to_timestamp(p_at) - interval '1 minute' AND NOT EXISTS (
           SELECT FROM ROWS FROM (unnest(q.looked_ends), unnest(p_decided), unnest(p_ends)) AS u(wanted, below, upto)
            WHERE (u.below BETWEEN u.wanted AND u.upto) IS NOT TRUE));
END $$;

-- All that came into the log before this is decided, in seconds since the epoch; null: not known.
CREATE FUNCTION fencepost.queue_applied_to(p_source text) RETURNS double precision
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT extract(epoch FROM q.applied_to)::double precision FROM fencepost.queues q WHERE q.source = p_source $$;

-- When the newest record of a caller's message was made that was forgotten (prune_idempotency), in seconds since the epoch; null: none was.
-- A message that was signed before that may have had one: however long records are kept now, and in whichever generation.
CREATE FUNCTION fencepost.queue_forgotten_to(p_source text) RETURNS double precision
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT extract(epoch FROM q.forgotten_to)::double precision FROM fencepost.queues q WHERE q.source = p_source $$;

-- Whether no copy of a caller's message can wait in its log that came before p_came: one that came then is applied, and would have its
-- effect again if its record were gone (queues/message.py). Ten minutes are for clocks that differ, and for appends under way.
CREATE FUNCTION fencepost.queue_no_copy_waits(p_id text, p_came timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT NOT EXISTS (
    SELECT FROM regexp_match(p_id, '^(.+)[.]([0-9]+)[.]([0-9]+)[.][0-9a-f]{16}$') AS m(at)
      JOIN fencepost.queues q ON q.source = m.at[1]
     WHERE q.forget_to IS NULL OR q.forget_to <= p_came + interval '10 minutes') $$;
