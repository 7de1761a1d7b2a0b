-- 3 are those of orders

-- claim of a absent row: 200
--   $1 = 'pinned/k6'
--   $2 = 502
--   $3 = '"public"."pinned"'
--   $4 = 'pinned'
--   $5 = '{"columns": [{"name": "order_id", "type": "text", "number": 1}], "relation" ...
--   $6 = 'strict'
--   $7 = 'builtin'
--   $8 = 'external'
--   $9 = None
--   $10 = None
-- as for orders

-- POST of nothing: 400
--   $1 = 106
--   $2 = 0
INSERT INTO "public"."pinned" AS r ("last_fence_token")
  SELECT -$1::bigint
  WHERE (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid) OR fencepost.outdated('pinned') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $2::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- POST one, minimal: 201
--   $1 = 108
--   $2 = '[{"order_id": "k3", "status": "x", "at": null}]'
--   $3 = 0
INSERT INTO "public"."pinned" AS r ("order_id", "status", "at", "last_fence_token")
  SELECT b."order_id", b."status", b."at", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("order_id" text, "status" text, "at" timestamp with time zone)
  WHERE (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."order_id") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, ''::text AS json, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- POST one: 201 | POST one, present: 409 | POST one, stale: 409
--   $1 = 101
--   $2 = '[{"order_id": "k0", "status": "x", "at": null}]'
--   $3 = 0
INSERT INTO "public"."pinned" AS r ("order_id", "status", "at", "last_fence_token")
  SELECT b."order_id", b."status", b."at", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("order_id" text, "status" text, "at" timestamp with time zone)
  WHERE (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."order_id") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- POST one, only values: 400
--   $1 = 104
--   $2 = '[{"status": "x", "at": null}]'
--   $3 = 0
INSERT INTO "public"."pinned" AS r ("status", "at", "last_fence_token")
  SELECT b."status", b."at", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("status" text, "at" timestamp with time zone)
  WHERE (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- POST one, present: 409 | POST one, stale: 409 | POST many, present and stale: 409
--   $1 = '[{"order_id": "k0", "status": "x", "at": null}]'
SELECT b."fencepost ordinal" AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."pinned" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) b."order_id") AS live, fencepost.gateway_mark_without_row('pinned', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (json_to_recordset($1::json) AS ("order_id" text)) WITH ORDINALITY AS b("order_id", "fencepost ordinal")
  CROSS JOIN LATERAL (SELECT 'pinned/' || fencepost.enc((b."order_id")::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT fencepost.issued() AS issued, NULL::bigint AS max_jump) AS c
  ORDER BY b."order_id", b."fencepost ordinal"

-- POST one, stale: 409 | POST many, present and stale: 409 | PATCH, stale: 409 | claim of a row, stale: 409 | claim
-- of a absent row, stale: 409
--   $1 = 101
SELECT lease_id, names, owner, pg_catalog.to_json(granted_at) OPERATOR(pg_catalog.#>>) '{}' AS granted_at, pg_catalog.to_json(drawn_at) OPERATOR(pg_catalog.#>>) '{}' AS issued_at
  FROM fencepost.issued_to($1)

-- PATCH, stale: 409 | PATCH, no row: 404 | claim of a row, stale: 409 | claim of a absent row: 200 | claim of a
-- absent row, stale: 409
--   $1 = ['k0']
SELECT x.o AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."pinned" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST(x.k0 AS text)) AS live, fencepost.gateway_mark_without_row('pinned', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS x(k0, o)
  CROSS JOIN LATERAL (SELECT 'pinned/' || fencepost.enc((CAST(x.k0 AS text))::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT fencepost.issued() AS issued, NULL::bigint AS max_jump) AS c
  ORDER BY x.o

-- PATCH of nothing: 200
--   $1 = 'k0'
--   $2 = 204
--   $3 = 0
UPDATE "public"."pinned" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."pinned" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- claim of a row: 200 | claim of a row, stale: 409 | claim of a absent row: 200 | claim of a absent row, stale: 409
--   $1 = 'k0'
--   $2 = 501
UPDATE "public"."pinned" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource

-- PATCH, minimal: 204
--   $1 = 'k0'
--   $2 = 203
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
UPDATE "public"."pinned" AS r
  SET "status" = b."status", "at" = b."at", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."pinned" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, ''::text AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, select: 200
--   $1 = 'k0'
--   $2 = 202
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
UPDATE "public"."pinned" AS r
  SET "status" = b."status", "at" = b."at", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."pinned" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id" AS "order_id") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH: 200 | PATCH with its key: 200 | PATCH with its key, spelled otherwise: 200 | PATCH, stale: 409 | PATCH, no
-- row: 404
--   $1 = 'k0'
--   $2 = 201
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
UPDATE "public"."pinned" AS r
  SET "status" = b."status", "at" = b."at", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text, "at" timestamp with time zone)
  WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."pinned" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- POST of nothing: 400 | POST many of nothing: 400
--   $1 = 106
--   $2 = '[{}]'
WITH
  b AS MATERIALIZED (SELECT b."fencepost ordinal"
    FROM json_array_elements($2::json) WITH ORDINALITY AS b(ignored, "fencepost ordinal")),
  i AS (INSERT INTO "public"."pinned" AS r ("last_fence_token")
    SELECT -$1::bigint
    FROM b
    WHERE (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid) OR fencepost.outdated('pinned') IS NULL)
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource, r."order_id" AS c0, r."status" AS c1, r."sku" AS c2, r."at" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "order_id", w.c1 AS "status", w.c2 AS "sku", w.c3 AS "at") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('pinned'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, present: 409 | POST one, stale: 409 | POST many: 201 | POST many, present and stale: 409
--   $1 = 102
--   $2 = '[{"order_id": "k0", "status": "x", "at": null}]'
WITH
  b AS MATERIALIZED (SELECT b."order_id" AS "order_id", b."status" AS "status", b."at" AS "at", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("order_id" text, "status" text, "at" timestamp with time zone)) WITH ORDINALITY AS b("order_id", "status", "at", "fencepost ordinal")),
  i AS (INSERT INTO "public"."pinned" AS r ("order_id", "status", "at", "last_fence_token")
    SELECT "order_id", "status", "at", -$1::bigint
    FROM b
    WHERE (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."order_id") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL)
    ORDER BY b."order_id"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource, r."order_id" AS k0, r."order_id" AS c0, r."status" AS c1, r."sku" AS c2, r."at" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."order_id" OPERATOR(pg_catalog.=) i.k0 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "order_id", w.c1 AS "status", w.c2 AS "sku", w.c3 AS "at") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('pinned'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, only values: 400 | POST many, only values: 400
--   $1 = 104
--   $2 = '[{"status": "x", "at": null}]'
WITH
  b AS MATERIALIZED (SELECT b."status" AS "status", b."at" AS "at", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("status" text, "at" timestamp with time zone)) WITH ORDINALITY AS b("status", "at", "fencepost ordinal")),
  i AS (INSERT INTO "public"."pinned" AS r ("status", "at", "last_fence_token")
    SELECT "status", "at", -$1::bigint
    FROM b
    WHERE (('"public"."pinned"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned>::oid AND '"public"."pinned_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <pinned key>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."status") OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype AND pg_catalog.pg_typeof((CAST(NULL AS "public"."pinned"))."at") OPERATOR(pg_catalog.=) 'timestamp with time zone'::pg_catalog.regtype) OR fencepost.outdated('pinned') IS NULL)
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'pinned/' || fencepost.enc((r."order_id")::text COLLATE pg_catalog."C") AS resource, r."order_id" AS c0, r."status" AS c1, r."sku" AS c2, r."at" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."order_id", r."status", r."sku", r."at") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "order_id", w.c1 AS "status", w.c2 AS "sku", w.c3 AS "at") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('pinned'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)
