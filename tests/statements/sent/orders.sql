-- claim of a absent row: 200
--   $1 = 'orders/k6'
--   $2 = 502
--   $3 = '"public"."orders"'
--   $4 = 'orders'
--   $5 = '{"columns": [{"name": "order_id", "type": "text", "number": 1}], "relation" ...
--   $6 = 'strict'
--   $7 = 'builtin'
--   $8 = 'external'
--   $9 = 4611686018427387903
--   $10 = None
SELECT CASE WHEN p.relation IS NULL THEN fencepost.outdated($4) WHEN p.source = $8 THEN CASE WHEN p.max_token IS DISTINCT FROM $9 OR p.max_jump IS DISTINCT FROM $10 THEN fencepost.outdated($4) END WHEN p.source = $7 THEN fencepost.require_issued($1, $2) ELSE fencepost.require_issued($1, $2, p.source) END
  FROM (SELECT pg_catalog.to_regclass($3) AS named) AS t
  LEFT JOIN fencepost.protected p ON p.relation OPERATOR(pg_catalog.=) t.named AND p.name = $4 AND fencepost.key_of(p.relation)::text = $5 AND p.rule = $6 AND p.scope IS NULL

-- PUT, and the connection breaks: 503 | POST, and the connection breaks: 503
--   $1 = '"public"."orders"'
WITH RECURSIVE part(oid) AS (
    SELECT $1::text::regclass::oid
    UNION ALL SELECT i.inhrelid
    FROM part
    JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT EXISTS (SELECT FROM part c WHERE EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid AND w.ev_type <> '1' AND w.ev_enabled <> 'D')) OR EXISTS (SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid WHERE NOT t.tgisinternal AND t.tgtype::int & 7 = 7 AND t.tgenabled <> 'D' AND NOT pg_catalog.starts_with(t.tgname::text, 'zzz_fencepost_'))

-- POST of nothing: 400
--   $1 = 106
--   $2 = 0
INSERT INTO "public"."orders" AS r ("last_fence_token")
  SELECT -$1::bigint
  WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $2::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- PUT of a new row with defaults: 201
--   $1 = 'k5'
--   $2 = 304
--   $3 = 0
INSERT INTO "public"."orders" AS r ("order_id", "last_fence_token")
  SELECT CAST($1::text AS text), -$2::bigint
  WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PUT of a new row: 201 | PUT with an Idempotency-Key: 201 | PUT, and the connection breaks: 503
--   $1 = 'k4'
--   $2 = 303
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
INSERT INTO "public"."orders" AS r ("order_id", "status", "at", "last_fence_token")
  SELECT CAST($1::text AS text), b."status", b."at", -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- POST one, minimal: 201
--   $1 = 108
--   $2 = '[{"order_id": "k3", "status": "x", "at": null}]'
--   $3 = 0
INSERT INTO "public"."orders" AS r ("order_id", "status", "at", "last_fence_token")
  SELECT b."order_id", b."status", b."at", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("order_id" text, "status" text, "at" timestamp with time zone)
  WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."order_id") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, ''::text AS json, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- POST one: 201 | POST one, present: 409 | POST one, stale: 409 | POST with an Idempotency-Key: 201 | POST, and the
-- connection breaks: 503 | POST one, for workers: 201
--   $1 = 101
--   $2 = '[{"order_id": "k0", "status": "x", "at": null}]'
--   $3 = 0
INSERT INTO "public"."orders" AS r ("order_id", "status", "at", "last_fence_token")
  SELECT b."order_id", b."status", b."at", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("order_id" text, "status" text, "at" timestamp with time zone)
  WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."order_id") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- POST one, only values: 400
--   $1 = 104
--   $2 = '[{"status": "x", "at": null}]'
--   $3 = 0
INSERT INTO "public"."orders" AS r ("status", "at", "last_fence_token")
  SELECT b."status", b."at", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("status" text, "at" timestamp with time zone)
  WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- DELETE with an Idempotency-Key: 204 | DELETE, and the connection breaks: 503 | DELETE, stale: 409 | DELETE,
-- minimal: 204
--   $1 = 'k6'
--   $2 = 704
--   $3 = 0
SELECT $3::int AS number, ''::text AS json, $2::bigint AS mark, '' AS resource
  FROM fencepost."orders_<hash>_delete"(CAST($1::text AS text), $2::bigint, CAST(ARRAY[] AS pg_catalog.text[])) AS r
  WHERE EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR UPDATE OF r SKIP LOCKED)

-- DELETE: 200 | DELETE, no row: 404
--   $1 = 'k0'
--   $2 = 901
--   $3 = 0
SELECT $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, $2::bigint AS mark, '' AS resource
  FROM fencepost."orders_<hash>_delete"(CAST($1::text AS text), $2::bigint, NULL) AS r
  WHERE EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR UPDATE OF r SKIP LOCKED)

-- the next row: 201
--   $1 = 1
--   $2 = ['orders/k3']
--   $3 = 'x'
SELECT 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS name, r."last_fence_token" AS mark
  FROM "public"."orders" AS r
  WHERE r."status" OPERATOR(pg_catalog.=) CAST($3::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND ('orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C")) OPERATOR(pg_catalog.<>) ALL ($2::text[]) AND NOT fencepost.is_taken('orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C"))
  ORDER BY r."order_id" LIMIT $1::bigint
  FOR NO KEY UPDATE OF r SKIP LOCKED

-- GET by filter: 206
--   $1 = 'x'
--   $2 = 2
--   $3 = 67108864
--   $4 = 0
SELECT CASE WHEN s.sent OPERATOR(pg_catalog.<=) s.most THEN s.json END AS json, s.sent
  FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json, $3::bigint AS most FROM "public"."orders" AS r WHERE r."status" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL) ORDER BY r."order_id" LIMIT $2::bigint OFFSET $4::bigint) AS p) AS s

-- claim of a absent row: 200
--   $1 = 'k6'
SELECT EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text))

-- POST one, present: 409 | POST one, stale: 409 | POST many, present and stale: 409 | PATCH of an array, stale: 409 |
-- PATCH of an array, no row: 404 | POST, and the connection breaks: 503 | PATCH of an array, and the connection
-- breaks: 503
--   $1 = '[{"order_id": "k0", "status": "x", "at": null}]'
SELECT b."fencepost ordinal" AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) b."order_id") AS live, fencepost.gateway_mark_without_row('orders', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (json_to_recordset($1::json) AS ("order_id" text)) WITH ORDINALITY AS b("order_id", "fencepost ordinal")
  CROSS JOIN LATERAL (SELECT 'orders/' || fencepost.enc((b."order_id")::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'orders') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'orders') AS max_jump) AS c
  ORDER BY b."order_id", b."fencepost ordinal"

-- the next row: 201
--   $1 = [b'\xfc\x04I\x87\xd8 \xd5\x9d\xc3\xe6N_\x8c\x1dj\xfe\xf3=\x0b\xf4\x12\xb8H\x ...
SELECT busy, withdrawn, names, attempt
  FROM fencepost.taken_by($1)

-- GET by filter: 206
--   $1 = 'x'
SELECT count(*)
  FROM "public"."orders" AS r
  WHERE r."status" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL)

-- claim of a absent row: 200
--   $1 = 'orders'
SELECT fencepost.gateway_floor_of($1)

-- PATCH with an Idempotency-Key: 204
--   $1 = ''
--   $2 = 'data/orders-PATCH-orders?status=eq.x&at=is.null'
--   $3 = <what was asked>
--   $4 = '{"verb":"patch","counted":6}'
--   $5 = None
--   $6 = None
SELECT fencepost.gateway_idem_record($1, $2, $3, $4, $5, $6)

-- PATCH with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 201 | DELETE
-- with an Idempotency-Key: 204 | POST with an Idempotency-Key: 201
--   $1 = ['']
--   $2 = ['data/orders-PATCH-orders/k0']
--   $3 = [b'\xde\xd0\x81hY:\xbc\x9e\x072$\x1f\xa5\x83\xb1\xf3\xafD\xcf\x86\x12\xf1\xe ...
--   $4 = ['{"verb":"patch","mark":701,"counted":1}']
--   $5 = ['{"order_id":"k0","status":"x","sku":null,"at":null}']
--   $6 = [None]
SELECT fencepost.gateway_idem_record_each($1, $2, $3, $4, $5, $6)

-- claim of a absent row: 200
--   $1 = 'orders/k6'
--   $2 = 502
--   $3 = 'strict'
SELECT fencepost.gateway_raise_mark($1, $2, $3, true)

-- PATCH with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 201 | DELETE
-- with an Idempotency-Key: 204 | POST with an Idempotency-Key: 201 | PATCH with an Idempotency-Key, again: 200 | PUT
-- with an Idempotency-Key, again: 200 | PUT with an Idempotency-Key, again: 201 | DELETE with an Idempotency-Key,
-- again: 204 | POST with an Idempotency-Key, again: 201
--   $1 = ''
--   $2 = ['data/orders-PATCH-orders/k0']
--   $3 = [b'\xde\xd0\x81hY:\xbc\x9e\x072$\x1f\xa5\x83\xb1\xf3\xafD\xcf\x86\x12\xf1\xe ...
SELECT k.state, k.outcome, k.rows
  FROM fencepost.gateway_idem_begin_each($1::text, $2::text[], $3::bytea[]) AS k
  ORDER BY k.number

-- GET of a mark: 200 | PATCH, and the connection breaks: 503 | PUT, and the connection breaks: 503 | DELETE, and the
-- connection breaks: 503
--   $1 = 'k0'
SELECT n.resource, (SELECT r."last_fence_token" FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text)) AS live, m.last_fence_token AS recorded, m.row_absent, pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{}' AS changed_at
  FROM (SELECT 'orders/' || fencepost.enc((CAST($1::text AS text))::text COLLATE pg_catalog."C") AS resource) AS n
  LEFT JOIN LATERAL fencepost.gateway_mark_record(n.resource) AS m ON true
  WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL)

-- DELETE by filter, stale: 409 | DELETE by filter: 200
--   $1 = 'orders=1'
SELECT pg_catalog.set_config('fencepost.token', $1, true)

-- PATCH with an Idempotency-Key: 204 | PATCH with an Idempotency-Key, again: 204
--   $1 = ''
--   $2 = 'data/orders-PATCH-orders?status=eq.x&at=is.null'
--   $3 = <what was asked>
SELECT state, outcome, rows
  FROM fencepost.gateway_idem_begin($1, $2, $3)

-- the next row: 201
--   $1 = ['orders/k3']
--   $2 = [b'\xfc\x04I\x87\xd8 \xd5\x9d\xc3\xe6N_\x8c\x1dj\xfe\xf3=\x0b\xf4\x12\xb8H\x ...
--   $3 = ['127.0.0.1']
--   $4 = [30000]
--   $5 = [1]
--   $6 = [1001]
--   $7 = []
SELECT verdict, lease_id, owner, claim_token, tokens, ttl_ms, pg_catalog.to_json(granted_at) OPERATOR(pg_catalog.#>>) '{}' AS granted_at, pg_catalog.to_json(expires_at) OPERATOR(pg_catalog.#>>) '{}' AS expires_at, lock, due_ms, first, waiting, busy, attempt
  FROM fencepost.acquire_each($1, $2, $3, $4, $5, $6, $7) WITH ORDINALITY AS e(busy, acquired, attempt, o), LATERAL (SELECT (e.acquired).*) AS a
  ORDER BY o

-- PATCH, stale: 409 | PATCH, no row: 404 | PUT, stale: 409 | PUT of a new row: 201 | PUT of a new row with defaults:
-- 201 | claim of a row, stale: 409 | claim of a absent row: 200 | claim of a absent row, stale: 409 | PUT with an
-- Idempotency-Key: 201 | PUT, and the connection breaks: 503 | DELETE, stale: 409 | DELETE, no row: 404
--   $1 = ['k0']
SELECT x.o AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST(x.k0 AS text)) AS live, fencepost.gateway_mark_without_row('orders', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS x(k0, o)
  CROSS JOIN LATERAL (SELECT 'orders/' || fencepost.enc((CAST(x.k0 AS text))::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'orders') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'orders') AS max_jump) AS c
  ORDER BY x.o

-- GET of a row: 200
--   $1 = ['k0']
SELECT x.o::int4, p.json, p.mark, p.there, (SELECT pg_catalog.row_security_active('"public"."orders"'::text)) AS hides
  FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS x(k0, o)
  LEFT JOIN LATERAL (SELECT CASE WHEN pg_catalog.pg_column_compression(r."order_id") IS NULL AND pg_catalog.pg_column_compression(r."status") IS NULL AND pg_catalog.pg_column_compression(r."sku") IS NULL AND coalesce(pg_catalog.pg_column_size(r."order_id"), 0) + coalesce(pg_catalog.pg_column_size(r."status"), 0) + coalesce(pg_catalog.pg_column_size(r."sku"), 0) <= 8192 THEN (SELECT CASE WHEN octet_length(j.json) <= 16384 THEN j.json END FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json OFFSET 0) AS j) END AS json, r."last_fence_token" AS mark, true AS there FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST(x.k0 AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) OFFSET 0) AS p ON true

-- PATCH of nothing: 200
--   $1 = 'k0'
--   $2 = 204
--   $3 = 0
UPDATE "public"."orders" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- claim of a row: 200 | claim of a row, stale: 409 | claim of a absent row: 200 | claim of a absent row, stale: 409 |
-- the next row: 201
--   $1 = 'k0'
--   $2 = 501
--   $3 = 0
UPDATE "public"."orders" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- claim of a absent row: 200
--   $1 = 'k6'
--   $2 = 502
UPDATE "public"."orders" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- PUT of nothing: 200 | PUT of a new row with defaults: 201
--   $1 = 'k0'
--   $2 = 302
--   $3 = 0
UPDATE "public"."orders" AS r
  SET "status" = DEFAULT, "sku" = DEFAULT, "at" = DEFAULT, "last_fence_token" = -$2::bigint
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR UPDATE OF r SKIP LOCKED)
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, minimal: 204
--   $1 = 'k0'
--   $2 = 203
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
UPDATE "public"."orders" AS r
  SET "status" = b."status", "at" = b."at", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, ''::text AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, select: 200
--   $1 = 'k0'
--   $2 = 202
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
UPDATE "public"."orders" AS r
  SET "status" = b."status", "at" = b."at", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id" AS "order_id") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH: 200 | PATCH with its key: 200 | PATCH with its key, spelled otherwise: 200 | PATCH, stale: 409 | PATCH, no
-- row: 404 | PATCH with an Idempotency-Key: 200 | PATCH, and the connection breaks: 503
--   $1 = 'k0'
--   $2 = 201
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
UPDATE "public"."orders" AS r
  SET "status" = b."status", "at" = b."at", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PUT over a row: 200 | PUT, stale: 409 | PUT of a new row: 201 | PUT with an Idempotency-Key: 200 | PUT with an
-- Idempotency-Key: 201 | PUT, and the connection breaks: 503
--   $1 = 'k0'
--   $2 = 301
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
UPDATE "public"."orders" AS r
  SET "status" = b."status", "at" = b."at", "sku" = DEFAULT, "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."orders" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND r."last_fence_token" < $2::bigint FOR UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH of an array, only keys: 204
--   $1 = 403
--   $2 = '[{"order_id": "k0"}, {"order_id": "k1"}, {"order_id": "k2"}]'
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("order_id" text)) WITH ORDINALITY AS b("order_id", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."order_id" AS k0, r."last_fence_token" AS "fencepost mark", b."fencepost ordinal"
    FROM b
    JOIN "public"."orders" AS r ON r."order_id" OPERATOR(pg_catalog.=) b."order_id" AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."order_id") OPERATOR(pg_catalog.=) <text>::oid) OR fencepost.outdated('orders') IS NULL)
    ORDER BY r."order_id"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE NOT "fencepost mark" < $1::bigint) AS passes),
  w AS (UPDATE "public"."orders" AS r
    SET "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."order_id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('orders'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- PATCH of an array: 204 | PATCH of an array, stale: 409 | PATCH of an array, no row: 404 | PATCH of an array, and
-- the connection breaks: 503
--   $1 = 401
--   $2 = '[{"order_id": "k0", "status": "x", "at": null}, {"order_id": "k1", "status" ...
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("order_id" text, "status" text, "at" timestamp with time zone)) WITH ORDINALITY AS b("order_id", "status", "at", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."order_id" AS k0, r."last_fence_token" AS "fencepost mark", b."status" AS v0, b."at" AS v1, b."fencepost ordinal"
    FROM b
    JOIN "public"."orders" AS r ON r."order_id" OPERATOR(pg_catalog.=) b."order_id" AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."order_id") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL)
    ORDER BY r."order_id"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE NOT "fencepost mark" < $1::bigint) AS passes),
  w AS (UPDATE "public"."orders" AS r
    SET "status" = hit.v0, "at" = hit.v1, "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."order_id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('orders'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- POST of nothing: 400 | POST many of nothing: 400
--   $1 = 106
--   $2 = '[{}]'
WITH
  b AS MATERIALIZED (SELECT b."fencepost ordinal"
    FROM json_array_elements($2::json) WITH ORDINALITY AS b(ignored, "fencepost ordinal")),
  i AS (INSERT INTO "public"."orders" AS r ("last_fence_token")
    SELECT -$1::bigint
    FROM b
    WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource, r."order_id" AS c0, r."status" AS c1, r."sku" AS c2, r."at" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "order_id", w.c1 AS "status", w.c2 AS "sku", w.c3 AS "at") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('orders'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, present: 409 | POST one, stale: 409 | POST many: 201 | POST many, present and stale: 409
--   $1 = 102
--   $2 = '[{"order_id": "k0", "status": "x", "at": null}]'
WITH
  b AS MATERIALIZED (SELECT b."order_id" AS "order_id", b."status" AS "status", b."at" AS "at", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("order_id" text, "status" text, "at" timestamp with time zone)) WITH ORDINALITY AS b("order_id", "status", "at", "fencepost ordinal")),
  i AS (INSERT INTO "public"."orders" AS r ("order_id", "status", "at", "last_fence_token")
    SELECT "order_id", "status", "at", -$1::bigint
    FROM b
    WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."order_id") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
    ORDER BY b."order_id"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource, r."order_id" AS k0, r."order_id" AS c0, r."status" AS c1, r."sku" AS c2, r."at" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."order_id" OPERATOR(pg_catalog.=) i.k0 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "order_id", w.c1 AS "status", w.c2 AS "sku", w.c3 AS "at") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('orders'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, only values: 400 | POST many, only values: 400
--   $1 = 104
--   $2 = '[{"status": "x", "at": null}]'
WITH
  b AS MATERIALIZED (SELECT b."status" AS "status", b."at" AS "at", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("status" text, "at" timestamp with time zone)) WITH ORDINALITY AS b("status", "at", "fencepost ordinal")),
  i AS (INSERT INTO "public"."orders" AS r ("status", "at", "last_fence_token")
    SELECT "status", "at", -$1::bigint
    FROM b
    WHERE (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL) AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('orders') IS NULL)
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'orders/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource, r."order_id" AS c0, r."status" AS c1, r."sku" AS c2, r."at" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "order_id", w.c1 AS "status", w.c2 AS "sku", w.c3 AS "at") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('orders'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- PATCH by filter of nothing: 204
--   $1 = 405
--   $2 = 'x'
WITH
  hit AS MATERIALIZED (SELECT r."order_id" AS k0, r."last_fence_token" AS "fencepost mark"
    FROM "public"."orders" AS r
    WHERE r."status" OPERATOR(pg_catalog.=) CAST($2::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL)
    ORDER BY r."order_id" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."orders" AS r
    SET "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."order_id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit.k0)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'orders/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('orders'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- DELETE by filter, stale: 409
--   $1 = 1
--   $2 = 'x'
WITH
  hit AS MATERIALIZED (SELECT r."order_id" AS k0, r."last_fence_token" AS "fencepost mark"
    FROM "public"."orders" AS r
    WHERE r."status" OPERATOR(pg_catalog.=) CAST($2::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL)
    ORDER BY r."order_id" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."orders" AS r USING hit
    WHERE r."order_id" OPERATOR(pg_catalog.=) hit.k0 AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_del') OR fencepost.unfenced('orders') IS NULL) AND (SELECT passes FROM verdict)
    RETURNING hit.k0)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'orders/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('orders'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- DELETE by filter: 200
--   $1 = 904
--   $2 = 'x'
WITH
  hit AS MATERIALIZED (SELECT r."order_id" AS k0, r."last_fence_token" AS "fencepost mark"
    FROM "public"."orders" AS r
    WHERE r."status" OPERATOR(pg_catalog.=) CAST($2::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token'])) OR fencepost.outdated('orders') IS NULL)
    ORDER BY r."order_id" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."orders" AS r USING hit
    WHERE r."order_id" OPERATOR(pg_catalog.=) hit.k0 AND (fencepost.fires_as_planned(<orders>::oid, 'zzz_fencepost_del') OR fencepost.unfenced('orders') IS NULL) AND (SELECT passes FROM verdict)
    RETURNING hit.k0, r."order_id" AS c0, r."status" AS c1, r."sku" AS c2, r."at" AS c3)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "order_id", w.c1 AS "status", w.c2 AS "sku", w.c3 AS "at") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'orders/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('orders'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter: 204 | PATCH by filter, stale: 409 | PATCH with an Idempotency-Key: 204 | PATCH, and the connection
-- breaks: 503
--   $1 = 402
--   $2 = '{"status": "x", "at": null}'
--   $3 = 'x'
WITH
  hit AS MATERIALIZED (SELECT r."order_id" AS k0, r."last_fence_token" AS "fencepost mark"
    FROM "public"."orders" AS r
    WHERE r."status" OPERATOR(pg_catalog.=) CAST($3::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL)
    ORDER BY r."order_id" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."orders" AS r
    SET "status" = b."status", "at" = b."at", "last_fence_token" = -$1::bigint
    FROM hit, json_to_record($2::json) AS b("status" text, "at" timestamp with time zone)
    WHERE r."order_id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit.k0)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'orders/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('orders'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter, minimal: 204
--   $1 = 406
--   $2 = '{"status": "x", "at": null}'
--   $3 = 'x'
WITH
  hit AS MATERIALIZED (SELECT r."order_id" AS k0, r."last_fence_token" AS "fencepost mark"
    FROM "public"."orders" AS r
    WHERE r."status" OPERATOR(pg_catalog.=) CAST($3::text AS text) AND r."at" IS NULL AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid OR fencepost.outdated('orders') IS NULL) AND (('"public"."orders"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders>::oid AND '"public"."orders_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <orders key>::oid AND fencepost.are_called(<orders>::oid, ARRAY[1, 5], ARRAY['order_id', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."status") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."orders"))."at") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('orders') IS NULL)
    ORDER BY r."order_id" LIMIT 41
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 40 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."orders" AS r
    SET "status" = b."status", "at" = b."at", "last_fence_token" = -$1::bigint
    FROM hit, json_to_record($2::json) AS b("status" text, "at" timestamp with time zone)
    WHERE r."order_id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit.k0)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'orders/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 40
  UNION ALL SELECT 'suppressed', fencepost.suppressed('orders'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)
