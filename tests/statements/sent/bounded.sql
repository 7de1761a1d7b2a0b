-- claim of a absent row: 200
--   $1 = 'bounded/7'
--   $2 = 117
--   $3 = '"public"."bounded"'
--   $4 = 'bounded'
--   $5 = '{"columns": [{"name": "id", "type": "integer", "number": 1}], "relation": < ...
--   $6 = 'strict'
--   $7 = 'builtin'
--   $8 = 'external'
--   $9 = 10000
--   $10 = None
SELECT CASE WHEN p.relation IS NULL THEN fencepost.outdated($4) WHEN p.source = $8 THEN CASE WHEN p.max_token IS DISTINCT FROM $9 OR p.max_jump IS DISTINCT FROM $10 THEN fencepost.outdated($4) END WHEN p.source = $7 THEN fencepost.require_issued($1, $2) ELSE fencepost.require_issued($1, $2, p.source) END
  FROM (SELECT pg_catalog.to_regclass($3) AS named) AS t
  LEFT JOIN fencepost.protected p ON p.relation OPERATOR(pg_catalog.=) t.named AND p.name = $4 AND fencepost.key_of(p.relation)::text = $5 AND p.rule = $6 AND p.scope IS NULL

-- POST one, minimal: 201
--   $1 = 108
--   $2 = '[{"id": 4, "status": "x"}]'
--   $3 = 0
INSERT INTO "public"."bounded" AS r ("id", "status", "last_fence_token")
  SELECT "id", "status", -$1::bigint
  FROM json_to_recordset($2::json) AS b("id" integer, "status" text)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, ''::text AS json, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- POST one: 201
-- POST one, present: 409
-- POST one, stale: 409
--   $1 = 101
--   $2 = '[{"id": 1, "status": "x"}]'
--   $3 = 0
INSERT INTO "public"."bounded" AS r ("id", "status", "last_fence_token")
  SELECT "id", "status", -$1::bigint
  FROM json_to_recordset($2::json) AS b("id" integer, "status" text)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- POST of nothing: 400
--   $1 = 106
--   $2 = '[{}]'
--   $3 = 0
INSERT INTO "public"."bounded" AS r ("last_fence_token")
  SELECT -$1::bigint
  FROM json_array_elements($2::json) AS b("fencepost ordinal")
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- POST one, only values: 400
--   $1 = 104
--   $2 = '[{"status": "x"}]'
--   $3 = 0
INSERT INTO "public"."bounded" AS r ("status", "last_fence_token")
  SELECT "status", -$1::bigint
  FROM json_to_recordset($2::json) AS b("status" text)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- PATCH with its key, spelled otherwise: 200
--   $1 = '{"id": " 1", "status": "x"}'
--   $2 = '1'
SELECT (b."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer)) IS TRUE
  FROM json_to_record($1::json) AS b("id" integer)

-- claim of a absent row: 200
--   $1 = '7'
SELECT EXISTS (SELECT FROM "public"."bounded" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer))

-- POST one, present: 409
-- POST one, stale: 409
-- POST many, present and stale: 409
--   $1 = '[{"id": 1, "status": "x"}]'
SELECT b."fencepost ordinal" AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."bounded" AS r WHERE r."id" OPERATOR(pg_catalog.=) b."id") AS live, fencepost.gateway_mark_without_row('bounded', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (json_to_recordset($1::json) AS ("id" integer)) WITH ORDINALITY AS b("id", "fencepost ordinal")
  CROSS JOIN LATERAL (SELECT 'bounded/' || fencepost.enc((b."id")::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'bounded') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'bounded') AS max_jump) AS c
  ORDER BY b."id", b."fencepost ordinal"

-- claim of a absent row: 200
--   $1 = 'bounded'
SELECT fencepost.gateway_floor_of($1)

-- claim of a absent row: 200
--   $1 = 'bounded/7'
--   $2 = 117
--   $3 = 'strict'
SELECT fencepost.gateway_raise_mark($1, $2, $3, true)

-- PATCH, stale: 409
-- PATCH, no row: 404
-- claim of a row, stale: 409
-- claim of a absent row: 200
-- claim of a absent row, stale: 409
--   $1 = ['1']
SELECT x.o AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."bounded" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST(x.k0 AS integer)) AS live, fencepost.gateway_mark_without_row('bounded', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS x(k0, o)
  CROSS JOIN LATERAL (SELECT 'bounded/' || fencepost.enc((CAST(x.k0 AS integer))::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'bounded') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'bounded') AS max_jump) AS c
  ORDER BY x.o

-- PATCH of nothing: 200
--   $1 = '1'
--   $2 = 112
--   $3 = 0
UPDATE "public"."bounded" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."bounded" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- claim of a row: 200
-- claim of a row, stale: 409
-- claim of a absent row: 200
-- claim of a absent row, stale: 409
--   $1 = '1'
--   $2 = 116
UPDATE "public"."bounded" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- PATCH, minimal: 204
--   $1 = '1'
--   $2 = 111
--   $3 = '{"status": "x"}'
--   $4 = 0
UPDATE "public"."bounded" AS r
  SET "status" = b."status", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text)
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."bounded" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, ''::text AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, select: 200
--   $1 = '1'
--   $2 = 110
--   $3 = '{"status": "x"}'
--   $4 = 0
UPDATE "public"."bounded" AS r
  SET "status" = b."status", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text)
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."bounded" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id" AS "id") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH: 200
-- PATCH with its key: 200
-- PATCH, stale: 409
-- PATCH, no row: 404
--   $1 = '1'
--   $2 = 109
--   $3 = '{"status": "x"}'
--   $4 = 0
UPDATE "public"."bounded" AS r
  SET "status" = b."status", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text)
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint AND EXISTS (SELECT FROM "public"."bounded" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH with its key, spelled otherwise: 200
--   $1 = '1'
--   $2 = 114
--   $3 = '{"id": " 1", "status": "x"}'
UPDATE "public"."bounded" AS r
  SET "status" = b."status", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text)
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- POST of nothing: 400
-- POST many of nothing: 400
--   $1 = 106
--   $2 = '[{}]'
WITH
  b AS MATERIALIZED (SELECT "fencepost ordinal"
    FROM json_array_elements($2::json) WITH ORDINALITY AS b(ignored, "fencepost ordinal")),
  i AS (INSERT INTO "public"."bounded" AS r ("last_fence_token")
    SELECT -$1::bigint
    FROM b
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS c0, r."status" AS c1)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."status") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "status") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('bounded'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, present: 409
-- POST one, stale: 409
-- POST many: 201
-- POST many, present and stale: 409
--   $1 = 102
--   $2 = '[{"id": 1, "status": "x"}]'
WITH
  b AS MATERIALIZED (SELECT "id", "status", "fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("id" integer, "status" text)) WITH ORDINALITY AS b("id", "status", "fencepost ordinal")),
  i AS (INSERT INTO "public"."bounded" AS r ("id", "status", "last_fence_token")
    SELECT "id", "status", -$1::bigint
    FROM b
    ORDER BY b."id"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS k0, r."id" AS c0, r."status" AS c1)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."status") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."id" OPERATOR(pg_catalog.=) i.k0 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "status") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('bounded'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, only values: 400
-- POST many, only values: 400
--   $1 = 104
--   $2 = '[{"status": "x"}]'
WITH
  b AS MATERIALIZED (SELECT "status", "fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("status" text)) WITH ORDINALITY AS b("status", "fencepost ordinal")),
  i AS (INSERT INTO "public"."bounded" AS r ("status", "last_fence_token")
    SELECT "status", -$1::bigint
    FROM b
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'bounded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS c0, r."status" AS c1)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."status") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "status") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('bounded'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)
