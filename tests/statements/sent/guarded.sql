-- PATCH with its key, spelled otherwise: 200
--   $1 = '{"id": " 1", "status": "x"}'
--   $2 = '1'
SELECT (b."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer)) IS TRUE
  FROM json_to_record($1::json) AS b("id" integer)

-- POST one, present: 409
-- POST one, stale: 409
-- POST many, present and stale: 409
--   $1 = '[{"id": 1, "status": "x"}]'
SELECT b."fencepost ordinal" AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."guarded" AS r WHERE r."id" OPERATOR(pg_catalog.=) b."id") AS live, fencepost.gateway_mark_without_row('guarded', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (json_to_recordset($1::json) AS ("id" integer)) WITH ORDINALITY AS b("id", "fencepost ordinal")
  CROSS JOIN LATERAL (SELECT 'guarded/' || fencepost.enc((b."id")::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'guarded') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'guarded') AS max_jump) AS c
  ORDER BY b."id", b."fencepost ordinal"

-- PATCH, stale: 409
-- PATCH, no row: 404
-- claim of a row, stale: 409
-- claim of a absent row: 404
-- claim of a absent row, stale: 404
--   $1 = ['1']
SELECT x.o AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."guarded" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST(x.k0 AS integer)) AS live, fencepost.gateway_mark_without_row('guarded', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS x(k0, o)
  CROSS JOIN LATERAL (SELECT 'guarded/' || fencepost.enc((CAST(x.k0 AS integer))::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'guarded') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'guarded') AS max_jump) AS c
  ORDER BY x.o

-- PATCH of nothing: 200
--   $1 = '1'
--   $2 = 112
UPDATE "public"."guarded" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- claim of a row: 200
-- claim of a row, stale: 409
-- claim of a absent row: 404
-- claim of a absent row, stale: 404
--   $1 = '1'
--   $2 = 116
UPDATE "public"."guarded" AS r
  SET "last_fence_token" = -$2::bigint
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."status") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'guarded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- PATCH, minimal: 204
--   $1 = '1'
--   $2 = 111
--   $3 = '{"status": "x"}'
UPDATE "public"."guarded" AS r
  SET "status" = b."status", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text)
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, ''::text AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, select: 200
--   $1 = '1'
--   $2 = 110
--   $3 = '{"status": "x"}'
UPDATE "public"."guarded" AS r
  SET "status" = b."status", "last_fence_token" = -$2::bigint
  FROM json_to_record($3::json) AS b("status" text)
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND r."last_fence_token" < $2::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id" AS "id") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH: 200
-- PATCH with its key: 200
-- PATCH with its key, spelled otherwise: 200
-- PATCH, stale: 409
-- PATCH, no row: 404
--   $1 = '1'
--   $2 = 109
--   $3 = '{"status": "x"}'
UPDATE "public"."guarded" AS r
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
  i AS (INSERT INTO "public"."guarded" AS r ("last_fence_token")
    SELECT -$1::bigint
    FROM b
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'guarded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS c0, r."status" AS c1)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."status") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "status") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('guarded'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, minimal: 201
--   $1 = 108
--   $2 = '[{"id": 4, "status": "x"}]'
WITH
  b AS MATERIALIZED (SELECT "id", "status", "fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("id" integer, "status" text)) WITH ORDINALITY AS b("id", "status", "fencepost ordinal")),
  i AS (INSERT INTO "public"."guarded" AS r ("id", "status", "last_fence_token")
    SELECT "id", "status", -$1::bigint
    FROM b
    ORDER BY b."id"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'guarded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS k0)
  SELECT *
  FROM (SELECT w.number, ''::text AS json, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."id" OPERATOR(pg_catalog.=) i.k0 ORDER BY b."fencepost ordinal") AS w) AS a
  UNION ALL SELECT 0, fencepost.suppressed('guarded'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one: 201
-- POST one, present: 409
-- POST one, stale: 409
-- POST many: 201
-- POST many, present and stale: 409
--   $1 = 101
--   $2 = '[{"id": 1, "status": "x"}]'
WITH
  b AS MATERIALIZED (SELECT "id", "status", "fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("id" integer, "status" text)) WITH ORDINALITY AS b("id", "status", "fencepost ordinal")),
  i AS (INSERT INTO "public"."guarded" AS r ("id", "status", "last_fence_token")
    SELECT "id", "status", -$1::bigint
    FROM b
    ORDER BY b."id"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'guarded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS k0, r."id" AS c0, r."status" AS c1)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."status") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."id" OPERATOR(pg_catalog.=) i.k0 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "status") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('guarded'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, only values: 400
-- POST many, only values: 400
--   $1 = 104
--   $2 = '[{"status": "x"}]'
WITH
  b AS MATERIALIZED (SELECT "status", "fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("status" text)) WITH ORDINALITY AS b("status", "fencepost ordinal")),
  i AS (INSERT INTO "public"."guarded" AS r ("status", "last_fence_token")
    SELECT "status", -$1::bigint
    FROM b
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'guarded/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS c0, r."status" AS c1)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."status") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "status") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('guarded'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)
