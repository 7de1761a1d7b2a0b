-- 2 are those of orders

-- claim of a absent row: 200
--   $1 = 'typed/ok,d,6,2026-01-31 00:00:00+00'
--   $2 = 502
--   $3 = '"public"."typed"'
--   $4 = 'typed'
--   $5 = '{"columns": [{"name": "m", "type": "public.mood", "number": 1}, {"name": "d ...
--   $6 = 'strict'
--   $7 = 'builtin'
--   $8 = 'external'
--   $9 = 4611686018427387903
--   $10 = None
-- as for orders

-- POST one, only values: 400
--   $1 = 104
--   $2 = '[{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}]'
--   $3 = 0
INSERT INTO "public"."typed" AS r ("j", "tags", "feelings", "s", "last_fence_token")
  SELECT coalesce(b."j", CAST(($2::json OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), b."tags", b."feelings", b."s", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
  WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource

-- POST of nothing: 400
--   $1 = 106
--   $2 = 0
INSERT INTO "public"."typed" AS r ("last_fence_token")
  SELECT -$1::bigint
  WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $2::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource

-- POST one, minimal: 201
--   $1 = 108
--   $2 = '[{"m": "ok", "d": "d", "n": 3, "t": "2026-01-31T00:00:00Z", "j": {"k": 1},  ...
--   $3 = 0
INSERT INTO "public"."typed" AS r ("m", "d", "n", "t", "j", "tags", "feelings", "s", "last_fence_token")
  SELECT b."m", b."d", b."n", b."t", coalesce(b."j", CAST(($2::json OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), b."tags", b."feelings", b."s", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("m" public.mood, "d" character varying, "n" numeric, "t" timestamp with time zone, "j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
  WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."d") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."n") OPERATOR(pg_catalog.=) <numeric>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."t") OPERATOR(pg_catalog.=) <timestamptz>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, ''::text AS json, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource

-- POST one: 201 | POST one, present: 409 | POST one, stale: 409
--   $1 = 101
--   $2 = '[{"m": "ok", "d": "d", "n": 0, "t": "2026-01-31T00:00:00Z", "j": {"k": 1},  ...
--   $3 = 0
INSERT INTO "public"."typed" AS r ("m", "d", "n", "t", "j", "tags", "feelings", "s", "last_fence_token")
  SELECT b."m", b."d", b."n", b."t", coalesce(b."j", CAST(($2::json OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), b."tags", b."feelings", b."s", -$1::bigint
  FROM json_to_record(($2::json OPERATOR(pg_catalog.->) 0)) AS b("m" public.mood, "d" character varying, "n" numeric, "t" timestamp with time zone, "j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
  WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."d") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."n") OPERATOR(pg_catalog.=) <numeric>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."t") OPERATOR(pg_catalog.=) <timestamptz>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource

-- DELETE, stale: 409 | DELETE, minimal: 204
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 1
--   $6 = 0
SELECT $6::int AS number, ''::text AS json, $5::bigint AS mark, '' AS resource
  FROM fencepost."typed_<hash>_delete"(CAST($1::text AS public.mood), CAST($2::text AS character varying), CAST($3::text AS numeric), CAST($4::text AS timestamp with time zone), $5::bigint, CAST(ARRAY[] AS pg_catalog.text[])) AS r
  WHERE EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint FOR UPDATE OF r SKIP LOCKED)

-- DELETE: 200 | DELETE, no row: 404
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 901
--   $6 = 0
SELECT $6::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, $5::bigint AS mark, '' AS resource
  FROM fencepost."typed_<hash>_delete"(CAST($1::text AS public.mood), CAST($2::text AS character varying), CAST($3::text AS numeric), CAST($4::text AS timestamp with time zone), $5::bigint, NULL) AS r
  WHERE EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint FOR UPDATE OF r SKIP LOCKED)

-- PATCH with its key, spelled otherwise: 200
--   $1 = '{"m": "ok", "d": "d", "n": " 0", "t": "2026-01-31T00:00:00Z", "j": {"k": 1} ...
--   $2 = '0'
SELECT (b."n" OPERATOR(pg_catalog.=) CAST($2::text AS numeric)) IS TRUE
  FROM json_to_record($1::json) AS b("n" numeric)

-- GET of a row: 200
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 67108864
SELECT CASE WHEN pg_catalog.octet_length(p.json) OPERATOR(pg_catalog.<=) $5::bigint THEN p.json END AS json, p.mark
  FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x)::text AS json, r."last_fence_token" AS mark FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) OFFSET 0) AS p

-- GET by filter: 206
--   $1 = 'ok'
--   $2 = 'k'
--   $3 = '1'
--   $4 = 2
--   $5 = 67108864
--   $6 = 0
SELECT CASE WHEN s.sent OPERATOR(pg_catalog.<=) s.most THEN s.json END AS json, s.sent
  FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x)::text AS json, $5::bigint AS most FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND (r."j" OPERATOR(pg_catalog.->) $2::text) OPERATOR(pg_catalog.=) CAST($3::text AS jsonb) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid OR fencepost.outdated('typed') IS NULL) ORDER BY r."m" LIMIT $4::bigint OFFSET $6::bigint) AS p) AS s

-- PUT over a row: 200 | PUT of nothing: 200 | PUT, stale: 409 | PUT of a new row: 201 | PUT of a new row with
-- defaults: 201 | claim of a absent row: 200
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
SELECT CAST($1::text AS public.mood) OPERATOR(pg_catalog.=) CAST(CAST($1::text AS public.mood) AS public.mood) AND CAST($2::text AS character varying) OPERATOR(pg_catalog.=) CAST(CAST($2::text AS character varying) AS public.code) AND CAST($3::text AS numeric) OPERATOR(pg_catalog.=) CAST(CAST($3::text AS numeric) AS numeric(6,2)) AND CAST($4::text AS timestamp with time zone) OPERATOR(pg_catalog.=) CAST(CAST($4::text AS timestamp with time zone) AS timestamp with time zone)

-- claim of a absent row: 200
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '6'
--   $4 = '2026-01-31T00:00:00Z'
SELECT EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone))

-- POST one, present: 409 | POST one, stale: 409 | POST many, present and stale: 409 | PATCH of an array, stale: 409 |
-- PATCH of an array, no row: 404
--   $1 = '[{"m": "ok", "d": "d", "n": 0, "t": "2026-01-31T00:00:00Z", "j": {"k": 1},  ...
SELECT b."fencepost ordinal" AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) b."m" AND r."d" OPERATOR(pg_catalog.=) b."d" AND r."n" OPERATOR(pg_catalog.=) b."n" AND r."t" OPERATOR(pg_catalog.=) b."t") AS live, fencepost.gateway_mark_without_row('typed', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (json_to_recordset($1::json) AS ("m" public.mood, "d" character varying, "n" numeric, "t" timestamp with time zone)) WITH ORDINALITY AS b("m", "d", "n", "t", "fencepost ordinal")
  CROSS JOIN LATERAL (SELECT 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(b."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((b."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(b."n")) || ',' || fencepost.enc(fencepost.canon(b."t")) AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'typed') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'typed') AS max_jump) AS c
  ORDER BY b."m", b."d" COLLATE pg_catalog."C", b."n", b."t", b."fencepost ordinal"

-- GET by filter: 206
--   $1 = 'ok'
--   $2 = 'k'
--   $3 = '1'
SELECT count(*)
  FROM "public"."typed" AS r
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND (r."j" OPERATOR(pg_catalog.->) $2::text) OPERATOR(pg_catalog.=) CAST($3::text AS jsonb) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid OR fencepost.outdated('typed') IS NULL)

-- claim of a absent row: 200
--   $1 = 'typed/ok,d,6,2026-01-31 00:00:00+00'
--   $2 = 502
--   $3 = 'strict'
-- as for orders

-- GET of a mark: 200
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
SELECT n.resource, (SELECT r."last_fence_token" FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone)) AS live, m.last_fence_token AS recorded, m.row_absent, pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{}' AS changed_at
  FROM (SELECT 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(CAST($1::text AS public.mood))) COLLATE pg_catalog."C") || ',' || fencepost.enc((CAST($2::text AS character varying))::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(CAST($3::text AS numeric))) || ',' || fencepost.enc(fencepost.canon(CAST($4::text AS timestamp with time zone))) AS resource) AS n
  LEFT JOIN LATERAL fencepost.gateway_mark_record(n.resource) AS m ON true
  WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL)

-- PATCH, stale: 409 | PATCH, no row: 404 | PUT, stale: 409 | PUT of a new row: 201 | PUT of a new row with defaults:
-- 201 | claim of a row, stale: 409 | claim of a absent row: 200 | claim of a absent row, stale: 409 | DELETE, stale:
-- 409 | DELETE, no row: 404
--   $1 = ['ok']
--   $2 = ['d']
--   $3 = ['0']
--   $4 = ['2026-01-31T00:00:00Z']
SELECT x.o AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST(x.k0 AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST(x.k1 AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST(x.k2 AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST(x.k3 AS timestamp with time zone)) AS live, fencepost.gateway_mark_without_row('typed', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::text[])) WITH ORDINALITY AS x(k0, k1, k2, k3, o)
  CROSS JOIN LATERAL (SELECT 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(CAST(x.k0 AS public.mood))) COLLATE pg_catalog."C") || ',' || fencepost.enc((CAST(x.k1 AS character varying))::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(CAST(x.k2 AS numeric))) || ',' || fencepost.enc(fencepost.canon(CAST(x.k3 AS timestamp with time zone))) AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'typed') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'typed') AS max_jump) AS c
  ORDER BY x.o

-- PUT of nothing: 200 | PUT of a new row with defaults: 201
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 302
UPDATE "public"."typed" AS r
  SET "j" = DEFAULT, "tags" = DEFAULT, "feelings" = DEFAULT, "s" = DEFAULT, "last_fence_token" = -$5::bigint
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, minimal: 204
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 203
--   $6 = '{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}'
--   $7 = 0
UPDATE "public"."typed" AS r
  SET "j" = coalesce(b."j", CAST($6::json OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), "tags" = b."tags", "feelings" = b."feelings", "s" = b."s", "last_fence_token" = -$5::bigint
  FROM json_to_record($6::json) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint AND EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $7::int AS number, ''::text AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, select: 200
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 202
--   $6 = '{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}'
--   $7 = 0
UPDATE "public"."typed" AS r
  SET "j" = coalesce(b."j", CAST($6::json OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), "tags" = b."tags", "feelings" = b."feelings", "s" = b."s", "last_fence_token" = -$5::bigint
  FROM json_to_record($6::json) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint AND EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $7::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m" AS "m") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH: 200 | PATCH with its key: 200 | PATCH, stale: 409 | PATCH, no row: 404
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 201
--   $6 = '{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}'
--   $7 = 0
UPDATE "public"."typed" AS r
  SET "j" = coalesce(b."j", CAST($6::json OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), "tags" = b."tags", "feelings" = b."feelings", "s" = b."s", "last_fence_token" = -$5::bigint
  FROM json_to_record($6::json) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint AND EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $7::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH with its key, spelled otherwise: 200 | PUT over a row: 200 | PUT, stale: 409 | PUT of a new row: 201
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 206
--   $6 = '{"m": "ok", "d": "d", "n": " 0", "t": "2026-01-31T00:00:00Z", "j": {"k": 1} ...
UPDATE "public"."typed" AS r
  SET "j" = coalesce(b."j", CAST($6::json OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), "tags" = b."tags", "feelings" = b."feelings", "s" = b."s", "last_fence_token" = -$5::bigint
  FROM json_to_record($6::json) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH of nothing: 200
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 204
--   $6 = 0
UPDATE "public"."typed" AS r
  SET "last_fence_token" = -$5::bigint
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint AND EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $6::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- claim of a row: 200 | claim of a row, stale: 409 | claim of a absent row: 200 | claim of a absent row, stale: 409
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '0'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 501
--   $6 = 0
UPDATE "public"."typed" AS r
  SET "last_fence_token" = -$5::bigint
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint AND EXISTS (SELECT FROM "public"."typed" AS r WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $6::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource

-- claim of a absent row: 200
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '6'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 502
UPDATE "public"."typed" AS r
  SET "last_fence_token" = -$5::bigint
  WHERE r."m" OPERATOR(pg_catalog.=) CAST($1::text AS public.mood) AND r."d" OPERATOR(pg_catalog.=) CAST($2::text AS character varying) AND r."n" OPERATOR(pg_catalog.=) CAST($3::text AS numeric) AND r."t" OPERATOR(pg_catalog.=) CAST($4::text AS timestamp with time zone) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND r."last_fence_token" < $5::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource

-- PATCH of an array, only keys: 204
--   $1 = 403
--   $2 = '[{"m": "ok", "d": "d", "n": 0, "t": "2026-01-31T00:00:00Z"}, {"m": "ok", "d ...
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("m" public.mood, "d" character varying, "n" numeric, "t" timestamp with time zone)) WITH ORDINALITY AS b("m", "d", "n", "t", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."last_fence_token" AS "fencepost mark", b."fencepost ordinal"
    FROM b
    JOIN "public"."typed" AS r ON r."m" OPERATOR(pg_catalog.=) b."m" AND r."d" OPERATOR(pg_catalog.=) b."d" AND r."n" OPERATOR(pg_catalog.=) b."n" AND r."t" OPERATOR(pg_catalog.=) b."t" AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."d") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."n") OPERATOR(pg_catalog.=) <numeric>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."t") OPERATOR(pg_catalog.=) <timestamptz>::oid) OR fencepost.outdated('typed') IS NULL)
    ORDER BY r."m", r."d", r."n", r."t"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0, hit.k1, hit.k2, hit.k3 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE NOT "fencepost mark" < $1::bigint) AS passes),
  w AS (UPDATE "public"."typed" AS r
    SET "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."m" OPERATOR(pg_catalog.=) hit.k0 AND r."d" OPERATOR(pg_catalog.=) hit.k1 AND r."n" OPERATOR(pg_catalog.=) hit.k2 AND r."t" OPERATOR(pg_catalog.=) hit.k3 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('typed'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- PATCH of an array: 204 | PATCH of an array, stale: 409 | PATCH of an array, no row: 404
--   $1 = 401
--   $2 = '[{"m": "ok", "d": "d", "n": 0, "t": "2026-01-31T00:00:00Z", "j": {"k": 1},  ...
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("m" public.mood, "d" character varying, "n" numeric, "t" timestamp with time zone, "j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint), json_array_elements($2::json)) WITH ORDINALITY AS b("m", "d", "n", "t", "j", "tags", "feelings", "s", "fencepost element", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."last_fence_token" AS "fencepost mark", coalesce(b."j", CAST(b."fencepost element" OPERATOR(pg_catalog.->) 'j'::text AS jsonb)) AS v0, b."tags" AS v1, b."feelings" AS v2, b."s" AS v3, b."fencepost ordinal"
    FROM b
    JOIN "public"."typed" AS r ON r."m" OPERATOR(pg_catalog.=) b."m" AND r."d" OPERATOR(pg_catalog.=) b."d" AND r."n" OPERATOR(pg_catalog.=) b."n" AND r."t" OPERATOR(pg_catalog.=) b."t" AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."d") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."n") OPERATOR(pg_catalog.=) <numeric>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."t") OPERATOR(pg_catalog.=) <timestamptz>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL)
    ORDER BY r."m", r."d", r."n", r."t"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0, hit.k1, hit.k2, hit.k3 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE NOT "fencepost mark" < $1::bigint) AS passes),
  w AS (UPDATE "public"."typed" AS r
    SET "j" = hit.v0, "tags" = hit.v1, "feelings" = hit.v2, "s" = hit.v3, "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."m" OPERATOR(pg_catalog.=) hit.k0 AND r."d" OPERATOR(pg_catalog.=) hit.k1 AND r."n" OPERATOR(pg_catalog.=) hit.k2 AND r."t" OPERATOR(pg_catalog.=) hit.k3 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('typed'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- POST of nothing: 400 | POST many of nothing: 400
--   $1 = 106
--   $2 = '[{}]'
WITH
  b AS MATERIALIZED (SELECT b."fencepost ordinal"
    FROM json_array_elements($2::json) WITH ORDINALITY AS b(ignored, "fencepost ordinal")),
  i AS (INSERT INTO "public"."typed" AS r ("last_fence_token")
    SELECT -$1::bigint
    FROM b
    WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource, r."m" AS c0, r."d" AS c1, r."n" AS c2, r."t" AS c3, r."j" AS c4, r."tags" AS c5, r."feelings" AS c6, r."s" AS c7, r."doubled" AS c8, r."number" AS c9)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "m", w.c1 AS "d", w.c2 AS "n", w.c3 AS "t", w.c4 AS "j", w.c5 AS "tags", w.c6 AS "feelings", w.c7 AS "s", w.c8 AS "doubled", w.c9 AS "number") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('typed'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, present: 409 | POST one, stale: 409 | POST many: 201 | POST many, present and stale: 409
--   $1 = 102
--   $2 = '[{"m": "ok", "d": "d", "n": 0, "t": "2026-01-31T00:00:00Z", "j": {"k": 1},  ...
WITH
  b AS MATERIALIZED (SELECT b."m" AS "m", b."d" AS "d", b."n" AS "n", b."t" AS "t", coalesce(b."j", CAST(b."fencepost element" OPERATOR(pg_catalog.->) 'j'::text AS jsonb)) AS "j", b."tags" AS "tags", b."feelings" AS "feelings", b."s" AS "s", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("m" public.mood, "d" character varying, "n" numeric, "t" timestamp with time zone, "j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint), json_array_elements($2::json)) WITH ORDINALITY AS b("m", "d", "n", "t", "j", "tags", "feelings", "s", "fencepost element", "fencepost ordinal")),
  i AS (INSERT INTO "public"."typed" AS r ("m", "d", "n", "t", "j", "tags", "feelings", "s", "last_fence_token")
    SELECT "m", "d", "n", "t", "j", "tags", "feelings", "s", -$1::bigint
    FROM b
    WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."d") OPERATOR(pg_catalog.=) <code>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."n") OPERATOR(pg_catalog.=) <numeric>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."t") OPERATOR(pg_catalog.=) <timestamptz>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
    ORDER BY b."m", b."d" COLLATE pg_catalog."C", b."n", b."t"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource, r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."m" AS c0, r."d" AS c1, r."n" AS c2, r."t" AS c3, r."j" AS c4, r."tags" AS c5, r."feelings" AS c6, r."s" AS c7, r."doubled" AS c8, r."number" AS c9)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."m" OPERATOR(pg_catalog.=) i.k0 AND b."d" OPERATOR(pg_catalog.=) i.k1 AND b."n" OPERATOR(pg_catalog.=) i.k2 AND b."t" OPERATOR(pg_catalog.=) i.k3 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "m", w.c1 AS "d", w.c2 AS "n", w.c3 AS "t", w.c4 AS "j", w.c5 AS "tags", w.c6 AS "feelings", w.c7 AS "s", w.c8 AS "doubled", w.c9 AS "number") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('typed'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, only values: 400 | POST many, only values: 400
--   $1 = 104
--   $2 = '[{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}]'
WITH
  b AS MATERIALIZED (SELECT coalesce(b."j", CAST(b."fencepost element" OPERATOR(pg_catalog.->) 'j'::text AS jsonb)) AS "j", b."tags" AS "tags", b."feelings" AS "feelings", b."s" AS "s", b."fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint), json_array_elements($2::json)) WITH ORDINALITY AS b("j", "tags", "feelings", "s", "fencepost element", "fencepost ordinal")),
  i AS (INSERT INTO "public"."typed" AS r ("j", "tags", "feelings", "s", "last_fence_token")
    SELECT "j", "tags", "feelings", "s", -$1::bigint
    FROM b
    WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(r."m")) COLLATE pg_catalog."C") || ',' || fencepost.enc((r."d")::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(r."n")) || ',' || fencepost.enc(fencepost.canon(r."t")) AS resource, r."m" AS c0, r."d" AS c1, r."n" AS c2, r."t" AS c3, r."j" AS c4, r."tags" AS c5, r."feelings" AS c6, r."s" AS c7, r."doubled" AS c8, r."number" AS c9)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "m", w.c1 AS "d", w.c2 AS "n", w.c3 AS "t", w.c4 AS "j", w.c5 AS "tags", w.c6 AS "feelings", w.c7 AS "s", w.c8 AS "doubled", w.c9 AS "number") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('typed'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- PATCH by filter of nothing: 204
--   $1 = 405
--   $2 = 'ok'
--   $3 = 'k'
--   $4 = '1'
WITH
  hit AS MATERIALIZED (SELECT r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."last_fence_token" AS "fencepost mark"
    FROM "public"."typed" AS r
    WHERE r."m" OPERATOR(pg_catalog.=) CAST($2::text AS public.mood) AND (r."j" OPERATOR(pg_catalog.->) $3::text) OPERATOR(pg_catalog.=) CAST($4::text AS jsonb) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid OR fencepost.outdated('typed') IS NULL) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL)
    ORDER BY r."m", r."d", r."n", r."t" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."typed" AS r
    SET "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."m" OPERATOR(pg_catalog.=) hit.k0 AND r."d" OPERATOR(pg_catalog.=) hit.k1 AND r."n" OPERATOR(pg_catalog.=) hit.k2 AND r."t" OPERATOR(pg_catalog.=) hit.k3 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1, hit.k2, hit.k3)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1, k2, k3) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(bad.k0)) COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(bad.k2)) || ',' || fencepost.enc(fencepost.canon(bad.k3)), bad."fencepost mark" FROM bad ORDER BY k0, k1, k2, k3 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('typed'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- DELETE by filter, stale: 409
--   $1 = 1
--   $2 = 'ok'
--   $3 = 'k'
--   $4 = '1'
WITH
  hit AS MATERIALIZED (SELECT r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."last_fence_token" AS "fencepost mark"
    FROM "public"."typed" AS r
    WHERE r."m" OPERATOR(pg_catalog.=) CAST($2::text AS public.mood) AND (r."j" OPERATOR(pg_catalog.->) $3::text) OPERATOR(pg_catalog.=) CAST($4::text AS jsonb) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid OR fencepost.outdated('typed') IS NULL) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL)
    ORDER BY r."m", r."d", r."n", r."t" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."typed" AS r USING hit
    WHERE r."m" OPERATOR(pg_catalog.=) hit.k0 AND r."d" OPERATOR(pg_catalog.=) hit.k1 AND r."n" OPERATOR(pg_catalog.=) hit.k2 AND r."t" OPERATOR(pg_catalog.=) hit.k3 AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_del') OR fencepost.unfenced('typed') IS NULL) AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1, hit.k2, hit.k3)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1, k2, k3) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(bad.k0)) COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(bad.k2)) || ',' || fencepost.enc(fencepost.canon(bad.k3)), bad."fencepost mark" FROM bad ORDER BY k0, k1, k2, k3 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('typed'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- DELETE by filter: 200
--   $1 = 904
--   $2 = 'ok'
--   $3 = 'k'
--   $4 = '1'
WITH
  hit AS MATERIALIZED (SELECT r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."last_fence_token" AS "fencepost mark"
    FROM "public"."typed" AS r
    WHERE r."m" OPERATOR(pg_catalog.=) CAST($2::text AS public.mood) AND (r."j" OPERATOR(pg_catalog.->) $3::text) OPERATOR(pg_catalog.=) CAST($4::text AS jsonb) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid OR fencepost.outdated('typed') IS NULL) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL)
    ORDER BY r."m", r."d", r."n", r."t" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."typed" AS r USING hit
    WHERE r."m" OPERATOR(pg_catalog.=) hit.k0 AND r."d" OPERATOR(pg_catalog.=) hit.k1 AND r."n" OPERATOR(pg_catalog.=) hit.k2 AND r."t" OPERATOR(pg_catalog.=) hit.k3 AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_del') OR fencepost.unfenced('typed') IS NULL) AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1, hit.k2, hit.k3, r."m" AS c0, r."d" AS c1, r."n" AS c2, r."t" AS c3, r."j" AS c4, r."tags" AS c5, r."feelings" AS c6, r."s" AS c7, r."doubled" AS c8, r."number" AS c9)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x)::text AS json FROM (SELECT * FROM w ORDER BY k0, k1, k2, k3) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "m", w.c1 AS "d", w.c2 AS "n", w.c3 AS "t", w.c4 AS "j", w.c5 AS "tags", w.c6 AS "feelings", w.c7 AS "s", w.c8 AS "doubled", w.c9 AS "number") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(bad.k0)) COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(bad.k2)) || ',' || fencepost.enc(fencepost.canon(bad.k3)), bad."fencepost mark" FROM bad ORDER BY k0, k1, k2, k3 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('typed'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter: 204 | PATCH by filter, stale: 409
--   $1 = 402
--   $2 = '{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}'
--   $3 = 'ok'
--   $4 = 'k'
--   $5 = '1'
WITH
  hit AS MATERIALIZED (SELECT r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."last_fence_token" AS "fencepost mark"
    FROM "public"."typed" AS r
    WHERE r."m" OPERATOR(pg_catalog.=) CAST($3::text AS public.mood) AND (r."j" OPERATOR(pg_catalog.->) $4::text) OPERATOR(pg_catalog.=) CAST($5::text AS jsonb) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid OR fencepost.outdated('typed') IS NULL) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL)
    ORDER BY r."m", r."d", r."n", r."t" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."typed" AS r
    SET "j" = coalesce(b."j", CAST($2::json OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), "tags" = b."tags", "feelings" = b."feelings", "s" = b."s", "last_fence_token" = -$1::bigint
    FROM hit, json_to_record($2::json) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
    WHERE r."m" OPERATOR(pg_catalog.=) hit.k0 AND r."d" OPERATOR(pg_catalog.=) hit.k1 AND r."n" OPERATOR(pg_catalog.=) hit.k2 AND r."t" OPERATOR(pg_catalog.=) hit.k3 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1, hit.k2, hit.k3)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1, k2, k3) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(bad.k0)) COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(bad.k2)) || ',' || fencepost.enc(fencepost.canon(bad.k3)), bad."fencepost mark" FROM bad ORDER BY k0, k1, k2, k3 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('typed'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter, minimal: 204
--   $1 = 406
--   $2 = '{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}'
--   $3 = 'ok'
--   $4 = 'k'
--   $5 = '1'
WITH
  hit AS MATERIALIZED (SELECT r."m" AS k0, r."d" AS k1, r."n" AS k2, r."t" AS k3, r."last_fence_token" AS "fencepost mark"
    FROM "public"."typed" AS r
    WHERE r."m" OPERATOR(pg_catalog.=) CAST($3::text AS public.mood) AND (r."j" OPERATOR(pg_catalog.->) $4::text) OPERATOR(pg_catalog.=) CAST($5::text AS jsonb) AND (pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."m") OPERATOR(pg_catalog.=) <mood>::oid OR fencepost.outdated('typed') IS NULL) AND (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL)
    ORDER BY r."m", r."d", r."n", r."t" LIMIT 41
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 40 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."typed" AS r
    SET "j" = coalesce(b."j", CAST($2::json OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), "tags" = b."tags", "feelings" = b."feelings", "s" = b."s", "last_fence_token" = -$1::bigint
    FROM hit, json_to_record($2::json) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
    WHERE r."m" OPERATOR(pg_catalog.=) hit.k0 AND r."d" OPERATOR(pg_catalog.=) hit.k1 AND r."n" OPERATOR(pg_catalog.=) hit.k2 AND r."t" OPERATOR(pg_catalog.=) hit.k3 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1, hit.k2, hit.k3)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1, k2, k3) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'typed/' || fencepost.enc(pg_catalog.textin(pg_catalog.enum_out(bad.k0)) COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C") || ',' || fencepost.enc(fencepost.canon(bad.k2)) || ',' || fencepost.enc(fencepost.canon(bad.k3)), bad."fencepost mark" FROM bad ORDER BY k0, k1, k2, k3 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 40
  UNION ALL SELECT 'suppressed', fencepost.suppressed('typed'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PUT of a new row: 201
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '4'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 303
--   $6 = '{"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1}'
WITH
  i AS (INSERT INTO "public"."typed" AS r ("m", "d", "n", "t", "j", "tags", "feelings", "s", "last_fence_token")
    SELECT CAST($1::text AS public.mood), CAST($2::text AS character varying), CAST($3::text AS numeric), CAST($4::text AS timestamp with time zone), coalesce(b."j", CAST($6::json OPERATOR(pg_catalog.->) 'j'::text AS jsonb)), b."tags", b."feelings", b."s", -$5::bigint
    FROM json_to_record($6::json) AS b("j" jsonb, "tags" text[], "feelings" public.mood[], "s" smallint)
    WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token']) AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."j") OPERATOR(pg_catalog.=) <jsonb>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."tags") OPERATOR(pg_catalog.=) <_text>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."feelings") OPERATOR(pg_catalog.=) <_mood>::oid AND pg_catalog.pg_typeof((CAST(NULL AS "public"."typed"))."s") OPERATOR(pg_catalog.=) <int2>::oid) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource)
  SELECT *
  FROM i
  UNION ALL SELECT 0, fencepost.suppressed('typed'), NULL::bigint, NULL::text
  WHERE NOT EXISTS (SELECT FROM i)

-- PUT of a new row with defaults: 201
--   $1 = 'ok'
--   $2 = 'd'
--   $3 = '5'
--   $4 = '2026-01-31T00:00:00Z'
--   $5 = 304
WITH
  i AS (INSERT INTO "public"."typed" AS r ("m", "d", "n", "t", "last_fence_token")
    SELECT CAST($1::text AS public.mood), CAST($2::text AS character varying), CAST($3::text AS numeric), CAST($4::text AS timestamp with time zone), -$5::bigint
    WHERE (('"public"."typed"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed>::oid AND '"public"."typed_pkey"'::pg_catalog.regclass OPERATOR(pg_catalog.=) <typed key>::oid AND fencepost.are_called(<typed>::oid, ARRAY[1, 2, 3, 4, 11], ARRAY['m', 'd', 'n', 't', 'last_fence_token'])) OR fencepost.outdated('typed') IS NULL) AND (fencepost.fires_as_planned(<typed>::oid, 'zzz_fencepost_insmark') OR fencepost.unfenced('typed') IS NULL)
    RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."m", r."d", r."n", r."t", r."j", r."tags", r."feelings", r."s", r."doubled", r."number") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource)
  SELECT *
  FROM i
  UNION ALL SELECT 0, fencepost.suppressed('typed'), NULL::bigint, NULL::text
  WHERE NOT EXISTS (SELECT FROM i)
