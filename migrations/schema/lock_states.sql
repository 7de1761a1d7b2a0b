-- What is known of locks, leases and tokens: read, and never changed, by these. No secret's hash leaves the tables.

-- A live lease, without its secret; no row once it is lost.
CREATE FUNCTION fencepost.lease(p_lease_id bigint)
RETURNS TABLE (lease_id bigint, names text[], owner text, claims text[], ttl_ms integer, last_token bigint,
               granted_at timestamptz, expires_at timestamptz, remaining_ms bigint, writes text[])
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, x.names, x.owner, x.claims, x.ttl_ms, x.last_token, x.granted_at, w.expires_at,
         ceil(extract(epoch FROM w.expires_at - clock_timestamp()) * 1000)::bigint, x.writes
    FROM fencepost.leases x, LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) w(expires_at)
   WHERE x.lease_id = p_lease_id AND x.ended_at IS NULL AND x.expires_at > clock_timestamp() $$;

-- Whose token this is (R18), as long as it is remembered. Draws overlap where many draw at once: look at a few.
CREATE FUNCTION fencepost.issued_to(p_token bigint)
RETURNS TABLE (lease_id bigint, names text[], owner text, granted_at timestamptz, drawn_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.lease_id, x.names, x.owner, x.granted_at, d.drawn_at
    FROM (SELECT * FROM fencepost.draws f WHERE f.first_token <= p_token ORDER BY f.first_token DESC LIMIT 64) d
    JOIN fencepost.leases x ON x.lease_id = d.lease_id
   WHERE p_token = ANY (d.tokens) $$;

-- What is still known of a lease that was lost, and of the holders of its locks now.
CREATE FUNCTION fencepost.lost(p_lease_id bigint)
RETURNS TABLE (names text[], owner text, ended_at timestamptz, ended_by text, superseded_by json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.names, x.owner, least(x.ended_at, x.expires_at), CASE WHEN x.ended_at < x.expires_at THEN x.ended_by END,
         (SELECT json_build_object('holder', y.owner, 'lease_id', y.lease_id::text, 'locks', y.names,
                                   'granted_at', y.granted_at, 'issued_at',
                                   (SELECT i.drawn_at FROM fencepost.issued_to(y.last_token) i), 'source', 'builtin')
            FROM fencepost.locks k JOIN fencepost.leases y ON y.lease_id = k.lease_id
           WHERE k.name = ANY (x.names) AND y.lease_id > x.lease_id AND y.ended_at IS NULL
             AND y.expires_at > clock_timestamp() ORDER BY y.lease_id LIMIT 1)
    FROM fencepost.leases x
   WHERE x.lease_id = p_lease_id AND (x.ended_at IS NOT NULL OR x.expires_at <= clock_timestamp()) $$;

-- Locks that are held or waited for, by name: those of p_names; null: all, after p_after, whose name is LIKE one of p_like (null:
-- any). Never a secret's hash.
CREATE FUNCTION fencepost.lock_states(p_names text[], p_after text, p_limit integer, p_like text[])
RETURNS TABLE (name text, lease_id bigint, owner text, last_token bigint, granted_at timestamptz,
               expires_at timestamptz, remaining_ms bigint, waiters json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH busy AS (
    (SELECT k.name FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
      WHERE p_names IS NULL AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
        AND (p_after IS NULL OR k.name > p_after) AND (p_like IS NULL OR k.name LIKE ANY (p_like))
     UNION SELECT w.name FROM fencepost.live_waiters w
      WHERE p_names IS NULL AND (p_after IS NULL OR w.name > p_after) AND (p_like IS NULL OR w.name LIKE ANY (p_like))
     ORDER BY 1 LIMIT p_limit)
    UNION ALL
    SELECT DISTINCT u.name COLLATE "C" FROM unnest(p_names) u(name)
     WHERE EXISTS (SELECT FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
                    WHERE k.name = u.name AND x.ended_at IS NULL AND x.expires_at > clock_timestamp())
        OR EXISTS (SELECT FROM fencepost.live_waiters w WHERE w.name = u.name))
  SELECT b.name, x.lease_id, x.owner, x.last_token, x.granted_at, t.expires_at,
         ceil(extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::bigint,
         (SELECT coalesce(json_agg(json_build_object('owner', w.owner, 'since', w.queued_at, 'until', w.give_up_at)
                                   ORDER BY w.ticket), '[]') FROM fencepost.live_waiters w WHERE w.name = b.name)
    FROM busy b LEFT JOIN fencepost.locks k ON k.name = b.name
    LEFT JOIN fencepost.leases x ON x.lease_id = k.lease_id AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()
    LEFT JOIN LATERAL fencepost.within_ttl(x.expires_at, x.ttl_ms) t(expires_at) ON true
   ORDER BY b.name $$;

-- For /metrics: locks held, and requests that wait.
CREATE FUNCTION fencepost.lock_counts(OUT held bigint, OUT waiting bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT (SELECT count(*) FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
           WHERE x.ended_at IS NULL AND x.expires_at > clock_timestamp()),
         (SELECT count(DISTINCT w.ticket) FROM fencepost.live_waiters w) $$;
