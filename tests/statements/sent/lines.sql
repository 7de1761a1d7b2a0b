-- 0 are those of orders

-- DELETE with an Idempotency-Key: 204 | DELETE, and the connection breaks: 503 | DELETE, minimal: 204
--   $1 = '43'
--   $2 = 'l6'
--   $3 = 'account/43'
--   $4 = 0
DELETE FROM "public"."lines" AS r
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text AND EXISTS (SELECT FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text FOR UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, ''::text AS json, 0::bigint AS mark, '' AS resource

-- DELETE: 200
--   $1 = '43'
--   $2 = 'l0'
--   $3 = 'account/43'
--   $4 = 0
DELETE FROM "public"."lines" AS r
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text AND EXISTS (SELECT FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text FOR UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource

-- PUT of a new row with defaults: 201
--   $1 = '43'
--   $2 = 'l5'
--   $3 = 0
INSERT INTO "public"."lines" AS r ("account_id", "line")
  SELECT CAST($1::text AS bigint), CAST($2::text AS character varying)
  WHERE (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource

-- PUT of a new row: 201 | PUT with an Idempotency-Key: 201 | PUT, and the connection breaks: 503
--   $1 = '43'
--   $2 = 'l4'
--   $3 = '{"n": 1}'
--   $4 = 0
INSERT INTO "public"."lines" AS r ("account_id", "line", "n")
  SELECT CAST($1::text AS bigint), CAST($2::text AS character varying), b."n"
  FROM json_to_record($3::json) AS b("n" integer)
  WHERE (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource

-- POST one, minimal: 201
--   $1 = '[{"account_id": 43, "line": "l3", "n": 1}]'
--   $2 = 0
INSERT INTO "public"."lines" AS r ("account_id", "line", "n")
  SELECT b."account_id", b."line", b."n"
  FROM json_to_record(($1::json OPERATOR(pg_catalog.->) 0)) AS b("account_id" bigint, "line" character varying, "n" integer)
  WHERE (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."line") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $2::int AS number, ''::text AS json, 0::bigint AS mark, 'lines/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."line")::text COLLATE pg_catalog."C") AS resource

-- POST one: 201 | POST one, present: 409 | POST with an Idempotency-Key: 201 | POST, and the connection breaks: 503
--   $1 = '[{"account_id": 43, "line": "l0", "n": 1}]'
--   $2 = 0
INSERT INTO "public"."lines" AS r ("account_id", "line", "n")
  SELECT b."account_id", b."line", b."n"
  FROM json_to_record(($1::json OPERATOR(pg_catalog.->) 0)) AS b("account_id" bigint, "line" character varying, "n" integer)
  WHERE (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."line") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $2::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, 'lines/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."line")::text COLLATE pg_catalog."C") AS resource

-- PATCH, no row: 404 | DELETE, no row: 404
--   $1 = '43'
SELECT 'account/' || fencepost.enc((CAST($1::text AS bigint))::text COLLATE pg_catalog."C")

-- claim of a scope: 200 | claim of a scope, stale: 409 | GET of a scope's mark: 200
--   $1 = ['43']
SELECT 'account/' || fencepost.enc((CAST(x.k0 AS bigint))::text COLLATE pg_catalog."C") AS scope
  FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS x(k0, o)
  ORDER BY x.o

-- PATCH of nothing: 200 | PATCH with its key, spelled otherwise: 200 | PATCH, no row: 404 | GET of a mark: 200 | GET
-- of a mark: 400 | DELETE, no row: 404
--   $1 = '43'
--   $2 = 'l0'
SELECT 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C")
  FROM "public"."lines" AS r
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL)

-- PATCH with its key, spelled otherwise: 200
--   $1 = '{"account_id": " 43", "line": "l0", "n": 1}'
--   $2 = '43'
SELECT (b."account_id" OPERATOR(pg_catalog.=) CAST($2::text AS bigint)) IS TRUE
  FROM json_to_record($1::json) AS b("account_id" bigint)

-- PATCH of nothing: 200
--   $1 = '43'
--   $2 = 'l0'
--   $3 = 'account/43'
SELECT 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource
  FROM "public"."lines" AS r
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text
  FOR NO KEY UPDATE OF r

-- GET by filter: 206
--   $1 = '43'
--   $2 = 'l%'
--   $3 = 2
--   $4 = 67108864
--   $5 = 0
SELECT CASE WHEN s.sent OPERATOR(pg_catalog.<=) s.most THEN s.json END AS json, s.sent
  FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."account_id", r."line", r."n") AS x)::text AS json, $4::bigint AS most FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $2::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL) ORDER BY r."account_id" LIMIT $3::bigint OFFSET $5::bigint) AS p) AS s

-- POST one, present: 409 | POST many: 201 | POST many, present and stale: 409 | PATCH of an array, no row: 404
--   $1 = '[{"account_id": 43, "line": "l0", "n": 1}]'
SELECT DISTINCT 'account/' || fencepost.enc((b."account_id")::text COLLATE pg_catalog."C") AS scope
  FROM json_to_recordset($1::json) AS b("account_id" bigint)

-- PATCH of an array: 204 | PATCH of an array, stale: 409 | PATCH of an array, only keys: 204 | PATCH of an array, no
-- row: 404 | PATCH of an array, and the connection breaks: 503
--   $1 = '[{"account_id": 43, "line": "l0", "n": 1}, {"account_id": 43, "line": "l1", ...
SELECT b."fencepost ordinal" AS place, 'lines/' || fencepost.enc((b."account_id")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((b."line")::text COLLATE pg_catalog."C") AS resource, 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") AS scope
  FROM ROWS FROM (json_to_recordset($1::json) AS ("account_id" bigint, "line" character varying)) WITH ORDINALITY AS b("account_id", "line", "fencepost ordinal")
  LEFT JOIN "public"."lines" AS r ON r."account_id" OPERATOR(pg_catalog.=) b."account_id" AND r."line" OPERATOR(pg_catalog.=) b."line"
  ORDER BY b."account_id", b."line", b."fencepost ordinal"

-- GET by filter: 206
--   $1 = '43'
--   $2 = 'l%'
SELECT count(*)
  FROM "public"."lines" AS r
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $2::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL)

-- POST one, present: 409 | POST many: 201 | POST many, present and stale: 409 | PATCH of nothing: 200 | PATCH with
-- its key, spelled otherwise: 200 | PATCH, no row: 404 | PATCH of an array: 204 | PATCH by filter: 204 | PATCH of an
-- array, stale: 409 | PATCH by filter, stale: 409 | PATCH of an array, only keys: 204 | PATCH of an array, no row:
-- 404 | PATCH by filter of nothing: 204 | PATCH by filter, minimal: 204 | claim of a scope: 200 | claim of a scope,
-- stale: 409 | PATCH with an Idempotency-Key: 204 | PATCH of an array, and the connection breaks: 503 | PATCH, and
-- the connection breaks: 503 | DELETE, no row: 404 | DELETE by filter, stale: 409 | DELETE by filter: 200
--   $1 = 'account'
--   $2 = ['account/43']
--   $3 = 102
--   $4 = <oid of lines>
--   $5 = 'account/{account_id}'
SELECT e.scope, e.refused_by
  FROM fencepost.gateway_enter($1, $2, $3, $4, $5) AS e

-- PUT over a row: 200 | PUT of nothing: 200 | PUT, stale: 409 | PUT of a new row: 201 | PUT of a new row with
-- defaults: 201 | PUT, and the connection breaks: 503
--   $1 = [301]
--   $2 = ['43']
--   $3 = ['l0']
--   $4 = ['{"n": 1}']
SELECT e.scope, e.verdict, e.refused_by
  FROM fencepost.gateway_enter_each('account', ARRAY(SELECT 'account/' || fencepost.enc((CAST(x.k0 AS bigint))::text COLLATE pg_catalog."C") FROM ROWS FROM (pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::text[])) WITH ORDINALITY AS x(k0, k1, k2, o) ORDER BY x.o), $1::bigint[], <lines>::oid, 'account/{account_id}') AS e
  ORDER BY e.number

-- POST one: 201 | POST one, present: 409 | POST one, stale: 409 | POST one, minimal: 201 | POST, and the connection
-- breaks: 503
--   $1 = [101]
--   $2 = ['[{"account_id": 43, "line": "l0", "n": 1}]']
SELECT e.scope, e.verdict, e.refused_by
  FROM fencepost.gateway_enter_each('account', ARRAY(SELECT 'account/' || fencepost.enc((b."account_id")::text COLLATE pg_catalog."C") FROM ROWS FROM (pg_catalog.unnest($2::text[])) WITH ORDINALITY AS x(k0, o) CROSS JOIN LATERAL json_to_recordset(x.k0::json) AS b("account_id" bigint) ORDER BY x.o), $1::bigint[], <lines>::oid, 'account/{account_id}') AS e
  ORDER BY e.number

-- PATCH: 200 | PATCH, select: 200 | PATCH, minimal: 204 | PATCH with its key: 200 | PATCH, stale: 409 | PATCH, no
-- row: 404 | PATCH, and the connection breaks: 503 | DELETE, and the connection breaks: 503 | DELETE, stale: 409 |
-- DELETE: 200 | DELETE, no row: 404 | DELETE, minimal: 204
--   $1 = [201]
--   $2 = ['43']
--   $3 = ['l0']
SELECT e.scope, e.verdict, e.refused_by
  FROM fencepost.gateway_enter_each('account', ARRAY(SELECT (SELECT 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST(x.k0 AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST(x.k1 AS character varying)) FROM ROWS FROM (pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[])) WITH ORDINALITY AS x(k0, k1, o) ORDER BY x.o), $1::bigint[], <lines>::oid, 'account/{account_id}') AS e
  ORDER BY e.number

-- PATCH with an Idempotency-Key: 204
--   $1 = ''
--   $2 = 'data/lines-PATCH-lines?account_id=eq.43&line=like.l*'
--   $3 = <what was asked>
--   $4 = '{"verb":"patch","counted":7}'
--   $5 = None
--   $6 = None
-- as for orders

-- PATCH with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 201 | DELETE
-- with an Idempotency-Key: 204 | POST with an Idempotency-Key: 201
--   $1 = ['']
--   $2 = ['data/lines-PATCH-lines/43,l0']
--   $3 = [b'\xc3as\x1b\xa6*f\x92\x97y\xc9\xd2\xfd\xec\x84K\xe1\xd3\xaf?\x9f[\xda\xcdc ...
--   $4 = ['{"verb":"patch","mark":701,"counted":1,"scope":"account/43"}']
--   $5 = ['{"account_id":43,"line":"l0","n":1}']
--   $6 = [None]
-- as for orders

-- PATCH by filter: 204 | PATCH by filter, stale: 409 | PATCH by filter of nothing: 204 | PATCH with an
-- Idempotency-Key: 204 | PATCH, and the connection breaks: 503 | DELETE by filter, stale: 409 | DELETE by filter: 200
--   $1 = '43'
--   $2 = 'l%'
SELECT m.scope, count(*) AS rows
  FROM (SELECT 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") AS scope FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $2::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL) LIMIT 10001) AS m GROUP BY m.scope

-- PATCH by filter, minimal: 204
--   $1 = '43'
--   $2 = 'l%'
SELECT m.scope, count(*) AS rows
  FROM (SELECT 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") AS scope FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $2::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL) LIMIT 41) AS m GROUP BY m.scope

-- GET of a mark: 200 | GET of a scope's mark: 200
--   $1 = 'account'
SELECT p.name
  FROM fencepost.protected p
  JOIN pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relation
  WHERE pg_catalog.left(p.scope, pg_catalog.strpos(p.scope, '/{') - 1) = $1
  ORDER BY p.name

-- PATCH with an Idempotency-Key: 204 | PATCH with an Idempotency-Key, again: 204
--   $1 = ''
--   $2 = 'data/lines-PATCH-lines?account_id=eq.43&line=like.l*'
--   $3 = <what was asked>
-- as for orders

-- GET of a mark: 200 | GET of a scope's mark: 200 | PATCH, and the connection breaks: 503 | PUT, and the connection
-- breaks: 503 | POST, and the connection breaks: 503 | PATCH of an array, and the connection breaks: 503 | DELETE,
-- and the connection breaks: 503
--   $1 = 'account'
--   $2 = ['account/43']
SELECT u.scope, m.last_fence_token AS recorded, coalesce(fencepost.gateway_floor_of($1), 0) AS floor, pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{}' AS changed_at
  FROM pg_catalog.unnest($2::text[]) AS u(scope)
  LEFT JOIN LATERAL fencepost.gateway_mark_record(u.scope) AS m ON true

-- GET of a row: 200
--   $1 = ['43']
--   $2 = ['l0']
SELECT x.o::int4, p.json, p.mark, p.there, (SELECT pg_catalog.row_security_active('"public"."lines"'::text)) AS hides
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) WITH ORDINALITY AS x(k0, k1, o)
  LEFT JOIN LATERAL (SELECT CASE WHEN pg_catalog.pg_column_compression(r."line") IS NULL AND coalesce(pg_catalog.pg_column_size(r."line"), 0) <= 8192 THEN (SELECT CASE WHEN octet_length(j.json) <= 16384 THEN j.json END FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."account_id", r."line", r."n") AS x)::text AS json OFFSET 0) AS j) END AS json, coalesce(fencepost.gateway_mark_without_row('account', 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C")), 0) AS mark, true AS there FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST(x.k0 AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST(x.k1 AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) OFFSET 0) AS p ON true

-- PUT of nothing: 200 | PUT of a new row with defaults: 201
--   $1 = '43'
--   $2 = 'l0'
--   $3 = 'account/43'
--   $4 = 0
UPDATE "public"."lines" AS r
  SET "n" = DEFAULT
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text AND EXISTS (SELECT FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource

-- PATCH, minimal: 204
--   $1 = '43'
--   $2 = 'l0'
--   $3 = 'account/43'
--   $4 = '{"n": 1}'
--   $5 = 0
UPDATE "public"."lines" AS r
  SET "n" = b."n"
  FROM json_to_record($4::json) AS b("n" integer)
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text AND EXISTS (SELECT FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $5::int AS number, ''::text AS json, 0::bigint AS mark, '' AS resource

-- PATCH, select: 200
--   $1 = '43'
--   $2 = 'l0'
--   $3 = 'account/43'
--   $4 = '{"n": 1}'
--   $5 = 0
UPDATE "public"."lines" AS r
  SET "n" = b."n"
  FROM json_to_record($4::json) AS b("n" integer)
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text AND EXISTS (SELECT FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $5::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id" AS "account_id") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource

-- PATCH: 200 | PATCH with its key: 200 | PUT over a row: 200 | PUT of a new row: 201 | PATCH with an Idempotency-Key:
-- 200 | PUT with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 201 | PATCH, and the connection breaks: 503 |
-- PUT, and the connection breaks: 503
--   $1 = '43'
--   $2 = 'l0'
--   $3 = 'account/43'
--   $4 = '{"n": 1}'
--   $5 = 0
UPDATE "public"."lines" AS r
  SET "n" = b."n"
  FROM json_to_record($4::json) AS b("n" integer)
  WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text AND EXISTS (SELECT FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $5::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource

-- PATCH of an array, only keys: 204
--   $1 = ['account/43']
--   $2 = '[{"account_id": 43, "line": "l0"}, {"account_id": 43, "line": "l1"}, {"acco ...
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("account_id" bigint, "line" character varying)) WITH ORDINALITY AS b("account_id", "line", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."account_id" AS k0, r."line" AS k1, 0::bigint AS "fencepost mark", b."fencepost ordinal"
    FROM b
    JOIN "public"."lines" AS r ON r."account_id" OPERATOR(pg_catalog.=) b."account_id" AND r."line" OPERATOR(pg_catalog.=) b."line" AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."line") OPERATOR(pg_catalog.=) <code>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."account_id", r."line"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0, hit.k1 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE false) AS passes),
  w AS (SELECT hit."fencepost ordinal"
    FROM hit
    WHERE (SELECT passes FROM verdict))
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('lines'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- PATCH of an array: 204 | PATCH of an array, and the connection breaks: 503
--   $1 = ['account/43']
--   $2 = '[{"account_id": 43, "line": "l0", "n": 1}, {"account_id": 43, "line": "l1", ...
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("account_id" bigint, "line" character varying, "n" integer)) WITH ORDINALITY AS b("account_id", "line", "n", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."account_id" AS k0, r."line" AS k1, 0::bigint AS "fencepost mark", b."n" AS v0, b."fencepost ordinal"
    FROM b
    JOIN "public"."lines" AS r ON r."account_id" OPERATOR(pg_catalog.=) b."account_id" AND r."line" OPERATOR(pg_catalog.=) b."line" AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."line") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."account_id", r."line"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0, hit.k1 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE false) AS passes),
  w AS (UPDATE "public"."lines" AS r
    SET "n" = hit.v0
    FROM hit
    WHERE r."account_id" OPERATOR(pg_catalog.=) hit.k0 AND r."line" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('lines'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- POST one, present: 409 | POST many: 201
--   $1 = '[{"account_id": 43, "line": "l0", "n": 1}]'
WITH
  b AS MATERIALIZED (SELECT b."account_id" AS "account_id", b."line" AS "line", b."n" AS "n", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($1::json) AS ("account_id" bigint, "line" character varying, "n" integer)) WITH ORDINALITY AS b("account_id", "line", "n", "fencepost ordinal")),
  i AS (INSERT INTO "public"."lines" AS r ("account_id", "line", "n")
    SELECT "account_id", "line", "n"
    FROM b
    WHERE (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."line") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL)
    ORDER BY b."account_id", b."line"
    RETURNING 0 AS number, 0::bigint AS mark, 'lines/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."line")::text COLLATE pg_catalog."C") AS resource, r."account_id" AS k0, r."line" AS k1, r."account_id" AS c0, r."line" AS c1, r."n" AS c2)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."account_id", r."line", r."n") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."account_id" OPERATOR(pg_catalog.=) i.k0 AND b."line" OPERATOR(pg_catalog.=) i.k1 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "account_id", w.c1 AS "line", w.c2 AS "n") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('lines'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- PATCH with its key, spelled otherwise: 200
--   $1 = '43'
--   $2 = 'l0'
--   $3 = 'account/43'
--   $4 = '{"account_id": " 43", "line": "l0", "n": 1}'
WITH
  hit AS MATERIALIZED (SELECT
    FROM "public"."lines" AS r
    WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text
    FOR NO KEY UPDATE OF r),
  w AS (UPDATE "public"."lines" AS r
    SET "n" = b."n"
    FROM json_to_record($4::json) AS b("n" integer)
    WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($1::text AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = $3::text AND EXISTS (SELECT FROM hit)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."account_id", r."line", r."n") AS x OFFSET 0) AS j) AS json, 0::bigint AS mark, '' AS resource)
  SELECT *
  FROM w
  UNION ALL SELECT 0, fencepost.suppressed('lines'), NULL::bigint, NULL::text
  WHERE EXISTS (SELECT FROM hit) AND NOT EXISTS (SELECT FROM w)

-- PATCH by filter of nothing: 204
--   $1 = ['account/43']
--   $2 = '43'
--   $3 = 'l%'
WITH
  hit AS MATERIALIZED (SELECT r."account_id" AS k0, r."line" AS k1, 0::bigint AS "fencepost mark"
    FROM "public"."lines" AS r
    WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($2::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $3::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."account_id", r."line" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (SELECT hit.k0, hit.k1
    FROM hit
    WHERE (SELECT passes FROM verdict))
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'lines/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('lines'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- DELETE by filter: 200
--   $1 = ['account/43']
--   $2 = '43'
--   $3 = 'l%'
WITH
  hit AS MATERIALIZED (SELECT r."account_id" AS k0, r."line" AS k1, 0::bigint AS "fencepost mark"
    FROM "public"."lines" AS r
    WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($2::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $3::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id'])) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."account_id", r."line" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."lines" AS r USING hit
    WHERE r."account_id" OPERATOR(pg_catalog.=) hit.k0 AND r."line" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1, r."account_id" AS c0, r."line" AS c1, r."n" AS c2)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."account_id", r."line", r."n") AS x)::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "account_id", w.c1 AS "line", w.c2 AS "n") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'lines/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('lines'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter: 204 | PATCH with an Idempotency-Key: 204 | PATCH, and the connection breaks: 503
--   $1 = ['account/43']
--   $2 = '{"n": 1}'
--   $3 = '43'
--   $4 = 'l%'
WITH
  hit AS MATERIALIZED (SELECT r."account_id" AS k0, r."line" AS k1, 0::bigint AS "fencepost mark"
    FROM "public"."lines" AS r
    WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($3::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $4::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."account_id", r."line" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."lines" AS r
    SET "n" = b."n"
    FROM hit, json_to_record($2::json) AS b("n" integer)
    WHERE r."account_id" OPERATOR(pg_catalog.=) hit.k0 AND r."line" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'lines/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('lines'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter, minimal: 204
--   $1 = ['account/43']
--   $2 = '{"n": 1}'
--   $3 = '43'
--   $4 = 'l%'
WITH
  hit AS MATERIALIZED (SELECT r."account_id" AS k0, r."line" AS k1, 0::bigint AS "fencepost mark"
    FROM "public"."lines" AS r
    WHERE r."account_id" OPERATOR(pg_catalog.=) CAST($3::text AS bigint) AND r."line" OPERATOR(pg_catalog.~~) $4::text AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."account_id") OPERATOR(pg_catalog.=) <int8>::oid OR fencepost.outdated('lines') IS NULL) AND (('"public"."lines"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines>::oid AND '"public"."lines_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <lines key>::oid AND fencepost.are_called(<lines>::oid, ARRAY[1, 2, 1], ARRAY['account_id', 'line', 'account_id']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."lines"))."n") OPERATOR(pg_catalog.=) <int4>::oid) OR fencepost.outdated('lines') IS NULL) AND (fencepost.fires_as_planned(<lines>::oid, 'zzz_fencepost_scope') OR fencepost.unfenced('lines') IS NULL) AND 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") = ANY ($1::text[])
    ORDER BY r."account_id", r."line" LIMIT 41
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE false),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 40 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."lines" AS r
    SET "n" = b."n"
    FROM hit, json_to_record($2::json) AS b("n" integer)
    WHERE r."account_id" OPERATOR(pg_catalog.=) hit.k0 AND r."line" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'lines/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 40
  UNION ALL SELECT 'suppressed', fencepost.suppressed('lines'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PUT with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 201 | PUT with an Idempotency-Key, again: 200 | PUT
-- with an Idempotency-Key, again: 201
--   $1 = ''
--   $2 = ['data/lines-PUT-lines/43,l0']
--   $3 = [b'@\x03\xe5?D`\x9e>li\xf2\xd051#-k\xec`w\tF\x0eV\xd34u\xa4\n\x99`R']
--   $4 = [702]
--   $5 = ['43']
--   $6 = ['l0']
--   $7 = ['{"n": 1}']
WITH
  k AS MATERIALIZED (SELECT *
    FROM fencepost.gateway_idem_begin_each($1::text, $2::text[], $3::bytea[]))
  SELECT k.state, k.outcome, k.rows, e.scope, e.verdict, e.refused_by
  FROM fencepost.gateway_enter_each('account', ARRAY(SELECT CASE k.state WHEN 'new' THEN 'account/' || fencepost.enc((CAST(x.k0 AS bigint))::text COLLATE pg_catalog."C") END FROM ROWS FROM (pg_catalog.unnest($5::text[]), pg_catalog.unnest($6::text[]), pg_catalog.unnest($7::text[])) WITH ORDINALITY AS x(k0, k1, k2, o) JOIN k ON k.number = x.o - 1 ORDER BY x.o), $4::bigint[], <lines>::oid, 'account/{account_id}') AS e
  JOIN k USING (number)
  ORDER BY e.number

-- POST with an Idempotency-Key: 201 | POST with an Idempotency-Key, again: 201
--   $1 = ''
--   $2 = ['data/lines-POST-lines']
--   $3 = [b'\x0f>\x8e1\xb3y\xfe1\xdb2v\x05\xf6\xe0Z\xec\x9fJ\xb4\x0b\xdfW\xfb[k\xd9\x ...
--   $4 = [705]
--   $5 = ['[{"account_id": 43, "line": "l6", "n": 1}]']
WITH
  k AS MATERIALIZED (SELECT *
    FROM fencepost.gateway_idem_begin_each($1::text, $2::text[], $3::bytea[]))
  SELECT k.state, k.outcome, k.rows, e.scope, e.verdict, e.refused_by
  FROM fencepost.gateway_enter_each('account', ARRAY(SELECT CASE k.state WHEN 'new' THEN 'account/' || fencepost.enc((b."account_id")::text COLLATE pg_catalog."C") END FROM ROWS FROM (pg_catalog.unnest($5::text[])) WITH ORDINALITY AS x(k0, o) CROSS JOIN LATERAL json_to_recordset(x.k0::json) AS b("account_id" bigint) JOIN k ON k.number = x.o - 1 ORDER BY x.o), $4::bigint[], <lines>::oid, 'account/{account_id}') AS e
  JOIN k USING (number)
  ORDER BY e.number

-- PATCH with an Idempotency-Key: 200 | DELETE with an Idempotency-Key: 204 | PATCH with an Idempotency-Key, again:
-- 200 | DELETE with an Idempotency-Key, again: 204
--   $1 = ''
--   $2 = ['data/lines-PATCH-lines/43,l0']
--   $3 = [b'\xc3as\x1b\xa6*f\x92\x97y\xc9\xd2\xfd\xec\x84K\xe1\xd3\xaf?\x9f[\xda\xcdc ...
--   $4 = [701]
--   $5 = ['43']
--   $6 = ['l0']
WITH
  k AS MATERIALIZED (SELECT *
    FROM fencepost.gateway_idem_begin_each($1::text, $2::text[], $3::bytea[]))
  SELECT k.state, k.outcome, k.rows, e.scope, e.verdict, e.refused_by
  FROM fencepost.gateway_enter_each('account', ARRAY(SELECT CASE k.state WHEN 'new' THEN (SELECT 'account/' || fencepost.enc((r."account_id")::text COLLATE pg_catalog."C") FROM "public"."lines" AS r WHERE r."account_id" OPERATOR(pg_catalog.=) CAST(x.k0 AS bigint) AND r."line" OPERATOR(pg_catalog.=) CAST(x.k1 AS character varying)) END FROM ROWS FROM (pg_catalog.unnest($5::text[]), pg_catalog.unnest($6::text[])) WITH ORDINALITY AS x(k0, k1, o) JOIN k ON k.number = x.o - 1 ORDER BY x.o), $4::bigint[], <lines>::oid, 'account/{account_id}') AS e
  JOIN k USING (number)
  ORDER BY e.number
