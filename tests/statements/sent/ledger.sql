-- 0 are those of orders

-- claim of a scope: 200 | claim of a scope, stale: 409 | GET of a scope's mark: 200
--   $1 = ['b']
--   $2 = ['ok']
SELECT 'books/' || fencepost.enc((CAST(x.k0 AS pg_catalog.text))::text COLLATE pg_catalog."C") || ',' || fencepost.enc((CAST(x.k1 AS text))::text COLLATE pg_catalog."C") AS scope
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) WITH ORDINALITY AS x(k0, k1, o)
  ORDER BY x.o

-- PUT over a row: 200 | PUT of nothing: 200 | PUT, stale: 409 | PUT of a new row: 201 | PUT of a new row with
-- defaults: 201
--   $1 = '{"book": "b", "part": "ok", "n": 1}'
SELECT 'books/' || fencepost.enc((b."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((b."part")::text COLLATE pg_catalog."C")
  FROM json_to_record($1::json) AS b("book" character varying(10), "part" text)

-- PATCH: 200 | PATCH, select: 200 | PATCH, minimal: 204 | PATCH of nothing: 200 | PATCH with its key: 200 | PATCH
-- with its key, spelled otherwise: 200 | PATCH, stale: 409 | PATCH, no row: 404 | PUT of a new row: 201 | PUT of a
-- new row with defaults: 201 | GET of a mark: 200 | GET of a mark: 400 | DELETE, stale: 409 | DELETE: 200 | DELETE,
-- no row: 404 | DELETE, minimal: 204
--   $1 = '1'
SELECT 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C")
  FROM "public"."ledger" AS r
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL)

-- PATCH with its key, spelled otherwise: 200
--   $1 = '{"id": " 1", "n": 1}'
--   $2 = '1'
SELECT (b."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer)) IS TRUE
  FROM json_to_record($1::json) AS b("id" integer)

-- PATCH of nothing: 200
--   $1 = '1'
--   $2 = 'books/b,ok'
SELECT 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."book", r."part", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource
  FROM "public"."ledger" AS r
  WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
  FOR NO KEY UPDATE OF r

-- GET by filter: 206
--   $1 = ['1', '2']
--   $2 = 2
--   $3 = 67108864
--   $4 = 0
SELECT CASE WHEN s.sent OPERATOR(pg_catalog.<=) s.most THEN s.json END AS json, s.sent
  FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."book", r."part", r."n") AS x)::text AS json, $3::bigint AS most FROM "public"."ledger" AS r WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($1::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL) ORDER BY r."id" LIMIT $2::bigint OFFSET $4::bigint) AS p) AS s

-- POST one: 201 | POST one, present: 409 | POST one, stale: 409 | POST many: 201 | POST many, present and stale: 409
-- | POST one, only values: 400 | POST many, only values: 400 | POST one, minimal: 201
--   $1 = '[{"id": 1, "book": "b", "part": "ok", "n": 1}]'
SELECT DISTINCT 'books/' || fencepost.enc((b."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((b."part")::text COLLATE pg_catalog."C") AS scope
  FROM json_to_recordset($1::json) AS b("book" character varying(10), "part" text)

-- PATCH of an array: 204 | PATCH of an array, stale: 409 | PATCH of an array, only keys: 204 | PATCH of an array, no
-- row: 404
--   $1 = '[{"id": 1, "n": 1}, {"id": 2, "n": 1}, {"id": 3, "n": 1}]'
SELECT b."fencepost ordinal" AS place, 'ledger/' || fencepost.enc((b."id")::text COLLATE pg_catalog."C") AS resource, 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") AS scope
  FROM ROWS FROM (json_to_recordset($1::json) AS ("id" integer)) WITH ORDINALITY AS b("id", "fencepost ordinal")
  LEFT JOIN "public"."ledger" AS r ON r."id" OPERATOR(pg_catalog.=) b."id"
  ORDER BY b."id", b."fencepost ordinal"

-- GET by filter: 206
--   $1 = ['1', '2']
SELECT count(*)
  FROM "public"."ledger" AS r
  WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($1::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL)

-- POST one: 201 | POST one, present: 409 | POST one, stale: 409 | POST many: 201 | POST many, present and stale: 409
-- | POST one, only values: 400 | POST many, only values: 400 | POST one, minimal: 201 | PATCH: 200 | PATCH, select:
-- 200 | PATCH, minimal: 204 | PATCH of nothing: 200 | PATCH with its key: 200 | PATCH with its key, spelled
-- otherwise: 200 | PATCH, stale: 409 | PUT over a row: 200 | PUT of nothing: 200 | PUT, stale: 409 | PUT of a new
-- row: 201 | PUT of a new row with defaults: 201 | PATCH of an array: 204 | PATCH by filter: 204 | PATCH of an array,
-- stale: 409 | PATCH by filter, stale: 409 | PATCH of an array, only keys: 204 | PATCH of an array, no row: 404 |
-- PATCH by filter of nothing: 204 | PATCH by filter, minimal: 204 | claim of a scope: 200 | claim of a scope, stale:
-- 409 | DELETE, stale: 409 | DELETE: 200 | DELETE, minimal: 204 | DELETE by filter, stale: 409 | DELETE by filter:
-- 200
--   $1 = 'books'
--   $2 = ['books/b,ok']
--   $3 = 101
--   $4 = <oid of ledger>
--   $5 = 'books/{book},{part}'
SELECT e.scope, e.refused_by
  FROM fencepost.gateway_enter($1, $2, $3, $4, $5) AS e

-- PATCH by filter: 204 | PATCH by filter, stale: 409 | PATCH by filter of nothing: 204 | DELETE by filter, stale: 409
-- | DELETE by filter: 200
--   $1 = ['1', '2']
SELECT m.scope, count(*) AS rows
  FROM (SELECT 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") AS scope FROM "public"."ledger" AS r WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($1::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL) LIMIT 10001) AS m GROUP BY m.scope

-- PATCH by filter, minimal: 204
--   $1 = ['1', '2']
SELECT m.scope, count(*) AS rows
  FROM (SELECT 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") AS scope FROM "public"."ledger" AS r WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($1::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL) LIMIT 41) AS m GROUP BY m.scope

-- GET of a mark: 200 | GET of a scope's mark: 200
--   $1 = 'books'
SELECT p.name
  FROM fencepost.protected p
  JOIN pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relation
  WHERE pg_catalog.left(p.scope, pg_catalog.strpos(p.scope, '/{') - 1) = $1
  ORDER BY p.name

-- GET of a mark: 200 | GET of a scope's mark: 200
--   $1 = 'books'
--   $2 = ['books/b,ok']
SELECT u.scope, m.last_fence_token AS recorded, coalesce(fencepost.gateway_floor_of($1), 0) AS floor, pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{}' AS changed_at
  FROM pg_catalog.unnest($2::text[]) AS u(scope)
  LEFT JOIN LATERAL fencepost.gateway_mark_record(u.scope) AS m ON true

-- GET of a row: 200
--   $1 = ['1']
SELECT x.o::int4, p.json, p.mark, p.there, (SELECT pg_catalog.row_security_active('"public"."ledger"'::text)) AS hides
  FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS x(k0, o)
  LEFT JOIN LATERAL (SELECT CASE WHEN pg_catalog.pg_column_compression(r."book") IS NULL AND pg_catalog.pg_column_compression(r."part") IS NULL AND coalesce(pg_catalog.pg_column_size(r."book"), 0) + coalesce(pg_catalog.pg_column_size(r."part"), 0) <= 8192 THEN (SELECT CASE WHEN octet_length(j.json) <= 16384 THEN j.json END FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."book", r."part", r."n") AS x)::text AS json OFFSET 0) AS j) END AS json, coalesce(fencepost.gateway_mark_without_row('books', 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C")), 0) AS mark, true AS there FROM "public"."ledger" AS r WHERE r."id" OPERATOR(pg_catalog.=) CAST(x.k0 AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) OFFSET 0) AS p ON true

-- PATCH of an array, only keys: 204
--   $1 = ['books/b,ok']
--   $2 = '[{"id": 1}, {"id": 2}, {"id": 3}]'
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("id" integer)) WITH ORDINALITY AS b("id", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."id" AS k0, 0::bigint AS "fencepost mark", b."fencepost ordinal"
    FROM b
    JOIN "public"."ledger" AS r ON r."id" OPERATOR(pg_catalog.=) b."id" AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."id") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."id"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE false) AS passes),
  w AS (SELECT hit."fencepost ordinal"
    FROM hit
    WHERE (SELECT passes FROM verdict))
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('ledger'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- PATCH of an array: 204
--   $1 = ['books/b,ok']
--   $2 = '[{"id": 1, "n": 1}, {"id": 2, "n": 1}, {"id": 3, "n": 1}]'
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("id" integer, "n" integer)) WITH ORDINALITY AS b("id", "n", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."id" AS k0, 0::bigint AS "fencepost mark", b."n" AS v0, b."fencepost ordinal"
    FROM b
    JOIN "public"."ledger" AS r ON r."id" OPERATOR(pg_catalog.=) b."id" AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."id") OPERATOR(pg_catalog.=) <int4>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."id"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE false) AS passes),
  w AS (UPDATE "public"."ledger" AS r
    SET "n" = hit.v0
    FROM hit
    WHERE r."id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('ledger'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- POST one, only values: 400 | POST many, only values: 400
--   $1 = '[{"book": "b", "part": "ok", "n": 1}]'
WITH
  b AS MATERIALIZED (SELECT b."book" AS "book", b."part" AS "part", b."n" AS "n", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($1::json) AS ("book" character varying, "part" text, "n" integer)) WITH ORDINALITY AS b("book", "part", "n", "fencepost ordinal")),
  i AS (INSERT INTO "public"."ledger" AS r ("book", "part", "n")
    SELECT "book", "part", "n"
    FROM b
    WHERE (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL)
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, 0::bigint AS mark, 'ledger/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS c0, r."book" AS c1, r."part" AS c2, r."n" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."book", r."part", r."n") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "book", w.c2 AS "part", w.c3 AS "n") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, minimal: 201
--   $1 = '[{"id": 4, "book": "b", "part": "ok", "n": 1}]'
WITH
  b AS MATERIALIZED (SELECT b."id" AS "id", b."book" AS "book", b."part" AS "part", b."n" AS "n", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($1::json) AS ("id" integer, "book" character varying, "part" text, "n" integer)) WITH ORDINALITY AS b("id", "book", "part", "n", "fencepost ordinal")),
  i AS (INSERT INTO "public"."ledger" AS r ("id", "book", "part", "n")
    SELECT "id", "book", "part", "n"
    FROM b
    WHERE (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."id") OPERATOR(pg_catalog.=) <int4>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL)
    ORDER BY b."id"
    RETURNING 0 AS number, 0::bigint AS mark, 'ledger/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS k0)
  SELECT *
  FROM (SELECT w.number, ''::text AS json, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."id" OPERATOR(pg_catalog.=) i.k0 ORDER BY b."fencepost ordinal") AS w) AS a
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one: 201 | POST one, present: 409 | POST many: 201
--   $1 = '[{"id": 1, "book": "b", "part": "ok", "n": 1}]'
WITH
  b AS MATERIALIZED (SELECT b."id" AS "id", b."book" AS "book", b."part" AS "part", b."n" AS "n", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($1::json) AS ("id" integer, "book" character varying, "part" text, "n" integer)) WITH ORDINALITY AS b("id", "book", "part", "n", "fencepost ordinal")),
  i AS (INSERT INTO "public"."ledger" AS r ("id", "book", "part", "n")
    SELECT "id", "book", "part", "n"
    FROM b
    WHERE (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."id") OPERATOR(pg_catalog.=) <int4>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL)
    ORDER BY b."id"
    RETURNING 0 AS number, 0::bigint AS mark, 'ledger/' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."id" AS k0, r."id" AS c0, r."book" AS c1, r."part" AS c2, r."n" AS c3)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."book", r."part", r."n") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."id" OPERATOR(pg_catalog.=) i.k0 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "book", w.c2 AS "part", w.c3 AS "n") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- PUT over a row: 200 | PUT of a new row: 201
--   $1 = '1'
--   $2 = 'books/b,ok'
--   $3 = '{"book": "b", "part": "ok", "n": 1}'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
    FOR NO KEY UPDATE OF r),
  w AS (UPDATE "public"."ledger" AS r
    SET "book" = b."book", "part" = b."part", "n" = b."n"
    FROM json_to_record($3::json) AS b("book" character varying, "part" text, "n" integer)
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."book", r."part", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- PUT of nothing: 200 | PUT of a new row with defaults: 201
--   $1 = '1'
--   $2 = 'books/b,ok'
--   $3 = '{"book": "b", "part": "ok"}'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
    FOR NO KEY UPDATE OF r),
  w AS (UPDATE "public"."ledger" AS r
    SET "book" = b."book", "part" = b."part", "n" = DEFAULT
    FROM json_to_record($3::json) AS b("book" character varying, "part" text)
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."book", r."part", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- PATCH, minimal: 204
--   $1 = '1'
--   $2 = 'books/b,ok'
--   $3 = '{"n": 1}'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
    FOR NO KEY UPDATE OF r),
  w AS (UPDATE "public"."ledger" AS r
    SET "n" = b."n"
    FROM json_to_record($3::json) AS b("n" integer)
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, ''::text AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- PATCH, select: 200
--   $1 = '1'
--   $2 = 'books/b,ok'
--   $3 = '{"n": 1}'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
    FOR NO KEY UPDATE OF r),
  w AS (UPDATE "public"."ledger" AS r
    SET "n" = b."n"
    FROM json_to_record($3::json) AS b("n" integer)
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id" AS "id") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- PATCH: 200 | PATCH with its key: 200 | PATCH with its key, spelled otherwise: 200
--   $1 = '1'
--   $2 = 'books/b,ok'
--   $3 = '{"n": 1}'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
    FOR NO KEY UPDATE OF r),
  w AS (UPDATE "public"."ledger" AS r
    SET "n" = b."n"
    FROM json_to_record($3::json) AS b("n" integer)
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."book", r."part", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- DELETE, minimal: 204
--   $1 = '2'
--   $2 = 'books/b,ok'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
    FOR UPDATE OF r),
  w AS (DELETE FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, ''::text AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- DELETE: 200
--   $1 = '1'
--   $2 = 'books/b,ok'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text
    FOR UPDATE OF r),
  w AS (DELETE FROM "public"."ledger" AS r
    WHERE r."id" OPERATOR(pg_catalog.=) CAST($1::text AS integer) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = $2::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."book", r."part", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- PATCH by filter of nothing: 204
--   $1 = ['books/b,ok']
--   $2 = ['1', '2']
WITH
  hit AS MATERIALIZED (SELECT r."id" AS k0, 0::bigint AS "fencepost mark"
    FROM "public"."ledger" AS r
    WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($2::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."id" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (SELECT hit.k0
    FROM hit
    WHERE (SELECT passes FROM verdict))
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'ledger/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('ledger'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- DELETE by filter: 200
--   $1 = ['books/b,ok']
--   $2 = ['1', '2']
WITH
  hit AS MATERIALIZED (SELECT r."id" AS k0, 0::bigint AS "fencepost mark"
    FROM "public"."ledger" AS r
    WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($2::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part'])) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."id" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."ledger" AS r USING hit
    WHERE r."id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, r."id" AS c0, r."book" AS c1, r."part" AS c2, r."n" AS c3)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."id", r."book", r."part", r."n") AS x)::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "id", w.c1 AS "book", w.c2 AS "part", w.c3 AS "n") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'ledger/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('ledger'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter: 204
--   $1 = ['books/b,ok']
--   $2 = '{"n": 1}'
--   $3 = ['1', '2']
WITH
  hit AS MATERIALIZED (SELECT r."id" AS k0, 0::bigint AS "fencepost mark"
    FROM "public"."ledger" AS r
    WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($3::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."id" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."ledger" AS r
    SET "n" = b."n"
    FROM hit, json_to_record($2::json) AS b("n" integer)
    WHERE r."id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit.k0)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'ledger/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('ledger'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter, minimal: 204
--   $1 = ['books/b,ok']
--   $2 = '{"n": 1}'
--   $3 = ['1', '2']
WITH
  hit AS MATERIALIZED (SELECT r."id" AS k0, 0::bigint AS "fencepost mark"
    FROM "public"."ledger" AS r
    WHERE r."n" OPERATOR(pg_catalog.=) ANY (CAST($3::text[] AS integer[])) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid OR fencepost.outdated('ledger') IS NULL) AND (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL) AND 'books/' || fencepost.enc((r."book")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."part")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."id" LIMIT 41
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 40 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."ledger" AS r
    SET "n" = b."n"
    FROM hit, json_to_record($2::json) AS b("n" integer)
    WHERE r."id" OPERATOR(pg_catalog.=) hit.k0 AND (SELECT passes FROM verdict)
    RETURNING hit.k0)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'ledger/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 40
  UNION ALL SELECT 'suppressed', fencepost.suppressed('ledger'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PUT of a new row with defaults: 201
--   $1 = '6'
--   $2 = '{"book": "b", "part": "ok"}'
WITH
  i AS (INSERT INTO "public"."ledger" AS r ("id", "book", "part")
    SELECT CAST($1::text AS integer), b."book", b."part"
    FROM json_to_record($2::json) AS b("book" character varying, "part" text)
    WHERE (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."book", r."part", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM i
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE NOT EXISTS (SELECT FROM i)

-- PUT of a new row: 201
--   $1 = '5'
--   $2 = '{"book": "b", "part": "ok", "n": 1}'
WITH
  i AS (INSERT INTO "public"."ledger" AS r ("id", "book", "part", "n")
    SELECT CAST($1::text AS integer), b."book", b."part", b."n"
    FROM json_to_record($2::json) AS b("book" character varying, "part" text, "n" integer)
    WHERE (('"public"."ledger"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger>::oid AND '"public"."ledger_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <ledger key>::oid AND fencepost.are_called(<ledger>::oid, ARRAY[1, 2, 3], ARRAY['id', 'book', 'part']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."book") OPERATOR(pg_catalog.=) <varchar>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."part") OPERATOR(pg_catalog.=) <text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."ledger"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('ledger') IS NULL) AND (fencepost.fires_as_planned(<ledger>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('ledger') IS NULL)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."id", r."book", r."part", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM i
  UNION ALL SELECT 0, fencepost.suppressed('ledger'), NULL::bigint, NULL::text
  WHERE NOT EXISTS (SELECT FROM i)
