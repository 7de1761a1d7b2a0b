-- claim of a absent row: 200
--   $1 = 'readings/eu,6'
--   $2 = 127
--   $3 = '"public"."readings"'
--   $4 = 'readings'
--   $5 = '{"columns": [{"name": "region", "type": "text", "number": 1}, {"name": "id" ...
--   $6 = 'strict'
--   $7 = 'builtin'
--   $8 = 'external'
--   $9 = 4611686018427387903
--   $10 = None
SELECT CASE WHEN p.relation IS NULL THEN fencepost.outdated($4) WHEN p.source = $8 THEN CASE WHEN p.max_token IS DISTINCT FROM $9 OR p.max_jump IS DISTINCT FROM $10 THEN fencepost.outdated($4) END WHEN p.source = $7 THEN fencepost.require_issued($1, $2) ELSE fencepost.require_issued($1, $2, p.source) END
  FROM (SELECT pg_catalog.to_regclass($3) AS named) AS t
  LEFT JOIN fencepost.protected p ON p.relation OPERATOR(pg_catalog.=) t.named AND p.name = $4 AND fencepost.key_of(p.relation)::text = $5 AND p.rule = $6 AND p.scope IS NULL

-- PUT, and the connection breaks: 503
-- POST, and the connection breaks: 503
--   $1 = '"public"."readings"'
WITH RECURSIVE part(oid) AS (
    SELECT $1::text::regclass::oid
    UNION ALL SELECT i.inhrelid
    FROM part
    JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT EXISTS (SELECT FROM part JOIN pg_class c ON c.oid = part.oid WHERE c.relhasrules) OR EXISTS (SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid WHERE NOT t.tgisinternal AND t.tgtype::int & 7 = 7 AND t.tgenabled <> 'D' AND NOT pg_catalog.starts_with(t.tgname::text, 'zzz_fencepost_'))

-- POST of nothing: 400
--   $1 = 106
--   $2 = '[{}]'
--   $3 = 0
INSERT INTO "public"."readings" AS r ("last_fence_token")
  SELECT -$1::bigint
  FROM json_array_elements($2::json) AS b("fencepost ordinal")
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- PUT of a new row with defaults: 201
--   $1 = 'eu'
--   $2 = '5'
--   $3 = 119
--   $4 = 0
INSERT INTO "public"."readings" AS r ("region", "id", "last_fence_token")
  SELECT CAST($1::text AS text), CAST($2::text AS integer), -$3::bigint
  ON CONFLICT DO NOTHING
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- POST one, minimal: 201
--   $1 = 108
--   $2 = '[{"region": "eu", "id": 3, "v": 1}]'
--   $3 = 0
INSERT INTO "public"."readings" AS r ("region", "id", "v", "last_fence_token")
  SELECT "region", "id", "v", -$1::bigint
  FROM json_to_recordset($2::json) AS b("region" text, "id" integer, "v" numeric)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, ''::text AS json, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- POST one: 201
-- POST one, present: 409
-- POST one, stale: 409
-- POST with an Idempotency-Key: 201
-- POST, and the connection breaks: 503
--   $1 = 101
--   $2 = '[{"region": "eu", "id": 0, "v": 1}]'
--   $3 = 0
INSERT INTO "public"."readings" AS r ("region", "id", "v", "last_fence_token")
  SELECT "region", "id", "v", -$1::bigint
  FROM json_to_recordset($2::json) AS b("region" text, "id" integer, "v" numeric)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- PUT of a new row: 201
-- PUT with an Idempotency-Key: 201
-- PUT, and the connection breaks: 503
--   $1 = 'eu'
--   $2 = '4'
--   $3 = 118
--   $4 = '{"v": 1}'
--   $5 = 0
INSERT INTO "public"."readings" AS r ("region", "id", "v", "last_fence_token")
  SELECT CAST($1::text AS text), CAST($2::text AS integer), b."v", -$3::bigint
  FROM json_to_record($4::json) AS b("v" numeric)
  ON CONFLICT DO NOTHING
  RETURNING $5::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- POST one, only values: 400
--   $1 = 104
--   $2 = '[{"v": 1}]'
--   $3 = 0
INSERT INTO "public"."readings" AS r ("v", "last_fence_token")
  SELECT "v", -$1::bigint
  FROM json_to_recordset($2::json) AS b("v" numeric)
  ON CONFLICT DO NOTHING
  RETURNING $3::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- DELETE with an Idempotency-Key: 204
-- DELETE, and the connection breaks: 503
-- DELETE, stale: 409
-- DELETE, minimal: 204
--   $1 = 'eu'
--   $2 = '6'
--   $3 = 137
--   $4 = 0
SELECT $4::int AS number, ''::text AS json, $3::bigint AS mark, '' AS resource
  FROM fencepost."readings_6d2452369f_delete"(CAST($1::text AS text), CAST($2::text AS integer), $3::bigint, False) AS r
  WHERE EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint FOR UPDATE OF r SKIP LOCKED)

-- DELETE: 200
-- DELETE, no row: 404
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 153
--   $4 = 0
SELECT $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, $3::bigint AS mark, '' AS resource
  FROM fencepost."readings_6d2452369f_delete"(CAST($1::text AS text), CAST($2::text AS integer), $3::bigint, True) AS r
  WHERE EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint FOR UPDATE OF r SKIP LOCKED)

-- PATCH with its key, spelled otherwise: 200
--   $1 = '{"region": "eu", "id": " 0", "v": 1}'
--   $2 = '0'
SELECT (b."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer)) IS TRUE
  FROM json_to_record($1::json) AS b("id" integer)

-- GET of a row: 200
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 67108864
SELECT CASE WHEN pg_catalog.octet_length(p.json) OPERATOR(pg_catalog.<=) $3::bigint THEN p.json END AS json, p.mark
  FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."region", r."id", r."v") AS x)::text AS json, r."last_fence_token" AS mark FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) OFFSET 0) AS p

-- GET by filter: 206
--   $1 = 'eu'
--   $2 = 2
--   $3 = 67108864
--   $4 = 0
SELECT CASE WHEN s.sent OPERATOR(pg_catalog.<=) s.most THEN s.json END AS json, s.sent
  FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."region", r."id", r."v") AS x)::text AS json, $3::bigint AS most FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) ORDER BY r."region" LIMIT $2::bigint OFFSET $4::bigint) AS p) AS s

-- claim of a absent row: 200
--   $1 = 'eu'
--   $2 = '6'
SELECT EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer))

-- POST one, present: 409
-- POST one, stale: 409
-- POST many, present and stale: 409
-- PATCH of an array, stale: 409
-- PATCH of an array, no row: 404
-- POST, and the connection breaks: 503
-- PATCH of an array, and the connection breaks: 503
--   $1 = '[{"region": "eu", "id": 0, "v": 1}]'
SELECT b."fencepost ordinal" AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) b."region" AND r."id" OPERATOR(pg_catalog.=) b."id") AS live, fencepost.gateway_mark_without_row('readings', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (json_to_recordset($1::json) AS ("region" text, "id" integer)) WITH ORDINALITY AS b("region", "id", "fencepost ordinal")
  CROSS JOIN LATERAL (SELECT 'readings/' || fencepost.enc((b."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((b."id")::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'readings') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'readings') AS max_jump) AS c
  ORDER BY b."region", b."id", b."fencepost ordinal"

-- GET by filter: 206
--   $1 = 'eu'
SELECT count(*)
  FROM "public"."readings" AS r
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text)

-- claim of a absent row: 200
--   $1 = 'readings'
SELECT fencepost.gateway_floor_of($1)

-- PATCH with an Idempotency-Key: 204
--   $1 = ''
--   $2 = 'data/readings-PATCH-72656164696e67733f726567696f6e3d65712e6575'
--   $3 = b'e`\xc5\xe6N\x9d\x0ceb\xe5\xea\xcf\xbe\xe3,\xa5\x9d\xa0\x0e\x15\xfauh\xc0*W ...
--   $4 = 204
--   $5 = ['cache-control', 'no-store', 'content-range', '0-6/*']
--   $6 = b''
SELECT fencepost.gateway_idem_record($1, $2, $3, $4, $5, $6)

-- PATCH with an Idempotency-Key: 200
-- PUT with an Idempotency-Key: 200
-- PUT with an Idempotency-Key: 201
-- DELETE with an Idempotency-Key: 204
-- POST with an Idempotency-Key: 201
--   $1 = ['']
--   $2 = ['data/readings-PATCH-72656164696e67732f65752c30']
--   $3 = [b'\xc8>\x1e\x99\x9f\xfc/\x94\xa1\xcf\xa0\xb2\x93\xd98\x05)sy].w;\xe1\x8ax\x ...
--   $4 = [200]
--   $5 = ['cache-control\nno-store\nx-fence-mark\n134\ncontent-type\napplication/json']
--   $6 = [b'{"region":"eu","id":0,"v":1}']
SELECT fencepost.gateway_idem_record_each($1, $2, $3, $4, $5, $6)

-- claim of a absent row: 200
--   $1 = 'readings/eu,6'
--   $2 = 127
--   $3 = 'strict'
SELECT fencepost.gateway_raise_mark($1, $2, $3, true)

-- PATCH with an Idempotency-Key: 200
-- PUT with an Idempotency-Key: 200
-- PUT with an Idempotency-Key: 201
-- DELETE with an Idempotency-Key: 204
-- POST with an Idempotency-Key: 201
-- PATCH with an Idempotency-Key, again: 200
-- PUT with an Idempotency-Key, again: 200
-- PUT with an Idempotency-Key, again: 201
-- DELETE with an Idempotency-Key, again: 204
-- POST with an Idempotency-Key, again: 201
--   $1 = ''
--   $2 = ['data/readings-PATCH-72656164696e67732f65752c30']
--   $3 = [b'\xc8>\x1e\x99\x9f\xfc/\x94\xa1\xcf\xa0\xb2\x93\xd98\x05)sy].w;\xe1\x8ax\x ...
SELECT k.state, k.status, k.headers, k.answer
  FROM fencepost.gateway_idem_begin_each($1::text, $2::text[], $3::bytea[]) AS k
  ORDER BY k.number

-- GET of a mark: 200
-- PATCH, and the connection breaks: 503
-- PUT, and the connection breaks: 503
-- DELETE, and the connection breaks: 503
--   $1 = 'eu'
--   $2 = '0'
SELECT n.resource, (SELECT r."last_fence_token" FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer)) AS live, m.last_fence_token AS recorded, m.row_absent, pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{}' AS changed_at
  FROM (SELECT 'readings/' || fencepost.enc((CAST($1::text AS text))::text COLLATE pg_catalog."C") || ',' || fencepost.enc((CAST($2::text AS integer))::text COLLATE pg_catalog."C") AS resource) AS n
  LEFT JOIN LATERAL fencepost.gateway_mark_record(n.resource) AS m ON true

-- DELETE by filter, stale: 409
-- DELETE by filter: 200
--   $1 = 'readings=1'
SELECT pg_catalog.set_config('fencepost.token', $1, true)

-- PATCH with an Idempotency-Key: 204
-- PATCH with an Idempotency-Key, again: 204
--   $1 = ''
--   $2 = 'data/readings-PATCH-72656164696e67733f726567696f6e3d65712e6575'
--   $3 = b'e`\xc5\xe6N\x9d\x0ceb\xe5\xea\xcf\xbe\xe3,\xa5\x9d\xa0\x0e\x15\xfauh\xc0*W ...
SELECT state, status, headers, answer
  FROM fencepost.gateway_idem_begin($1, $2, $3)

-- PATCH, stale: 409
-- PATCH, no row: 404
-- PUT, stale: 409
-- PUT of a new row: 201
-- PUT of a new row with defaults: 201
-- claim of a row, stale: 409
-- claim of a absent row: 200
-- claim of a absent row, stale: 409
-- PUT with an Idempotency-Key: 201
-- PUT, and the connection breaks: 503
-- DELETE, stale: 409
-- DELETE, no row: 404
--   $1 = ['eu']
--   $2 = ['0']
SELECT x.o AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST(x.k0 AS text) AND r."id" OPERATOR(pg_catalog.=) CAST(x.k1 AS integer)) AS live, fencepost.gateway_mark_without_row('readings', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) WITH ORDINALITY AS x(k0, k1, o)
  CROSS JOIN LATERAL (SELECT 'readings/' || fencepost.enc((CAST(x.k0 AS text))::text COLLATE pg_catalog."C") || ',' || fencepost.enc((CAST(x.k1 AS integer))::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT (SELECT p.max_token FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'readings') AS issued, (SELECT p.max_jump FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) 'readings') AS max_jump) AS c
  ORDER BY x.o

-- PATCH of nothing: 200
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 112
--   $4 = 0
UPDATE "public"."readings" AS r
  SET "last_fence_token" = -$3::bigint
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint AND EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- claim of a row: 200
-- claim of a row, stale: 409
-- claim of a absent row: 200
-- claim of a absent row, stale: 409
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 126
UPDATE "public"."readings" AS r
  SET "last_fence_token" = -$3::bigint
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource

-- PUT of nothing: 200
-- PUT of a new row with defaults: 201
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 117
--   $4 = 0
UPDATE "public"."readings" AS r
  SET "v" = DEFAULT, "last_fence_token" = -$3::bigint
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint AND EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $4::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, minimal: 204
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 111
--   $4 = '{"v": 1}'
--   $5 = 0
UPDATE "public"."readings" AS r
  SET "v" = b."v", "last_fence_token" = -$3::bigint
  FROM json_to_record($4::json) AS b("v" numeric)
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint AND EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $5::int AS number, ''::text AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH, select: 200
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 110
--   $4 = '{"v": 1}'
--   $5 = 0
UPDATE "public"."readings" AS r
  SET "v" = b."v", "last_fence_token" = -$3::bigint
  FROM json_to_record($4::json) AS b("v" numeric)
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint AND EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $5::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region" AS "region") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH: 200
-- PATCH with its key: 200
-- PATCH, stale: 409
-- PATCH, no row: 404
-- PUT over a row: 200
-- PUT, stale: 409
-- PUT of a new row: 201
-- PATCH with an Idempotency-Key: 200
-- PUT with an Idempotency-Key: 200
-- PUT with an Idempotency-Key: 201
-- PATCH, and the connection breaks: 503
-- PUT, and the connection breaks: 503
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 109
--   $4 = '{"v": 1}'
--   $5 = 0
UPDATE "public"."readings" AS r
  SET "v" = b."v", "last_fence_token" = -$3::bigint
  FROM json_to_record($4::json) AS b("v" numeric)
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint AND EXISTS (SELECT FROM "public"."readings" AS r WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint FOR NO KEY UPDATE OF r SKIP LOCKED)
  RETURNING $5::int AS number, (SELECT CASE WHEN octet_length(j.json) <= 1048576 THEN j.json ELSE fencepost.too_large(1048576) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- PATCH with its key, spelled otherwise: 200
--   $1 = 'eu'
--   $2 = '0'
--   $3 = 114
--   $4 = '{"region": "eu", "id": " 0", "v": 1}'
UPDATE "public"."readings" AS r
  SET "v" = b."v", "last_fence_token" = -$3::bigint
  FROM json_to_record($4::json) AS b("v" numeric)
  WHERE r."region" OPERATOR(pg_catalog.=) CAST($1::text AS text) AND r."id" OPERATOR(pg_catalog.=) CAST($2::text AS integer) AND r."last_fence_token" < $3::bigint
  RETURNING 0 AS number, (SELECT CASE WHEN octet_length(j.json) <= 67108864 THEN j.json ELSE fencepost.too_large(67108864) END FROM (SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT r."region", r."id", r."v") AS x OFFSET 0) AS j) AS json, r."last_fence_token" AS mark, '' AS resource

-- POST of nothing: 400
-- POST many of nothing: 400
--   $1 = 106
--   $2 = '[{}]'
WITH
  b AS MATERIALIZED (SELECT "fencepost ordinal"
    FROM json_array_elements($2::json) WITH ORDINALITY AS b(ignored, "fencepost ordinal")),
  i AS (INSERT INTO "public"."readings" AS r ("last_fence_token")
    SELECT -$1::bigint
    FROM b
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."region" AS c0, r."id" AS c1, r."v" AS c2)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."region", r."id", r."v") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "region", w.c1 AS "id", w.c2 AS "v") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('readings'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, present: 409
-- POST one, stale: 409
-- POST many: 201
-- POST many, present and stale: 409
--   $1 = 102
--   $2 = '[{"region": "eu", "id": 0, "v": 1}]'
WITH
  b AS MATERIALIZED (SELECT "region", "id", "v", "fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("region" text, "id" integer, "v" numeric)) WITH ORDINALITY AS b("region", "id", "v", "fencepost ordinal")),
  i AS (INSERT INTO "public"."readings" AS r ("region", "id", "v", "last_fence_token")
    SELECT "region", "id", "v", -$1::bigint
    FROM b
    ORDER BY b."region", b."id"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."region" AS k0, r."id" AS k1, r."region" AS c0, r."id" AS c1, r."v" AS c2)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."region", r."id", r."v") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT i.* FROM i LEFT JOIN b ON b."region" OPERATOR(pg_catalog.=) i.k0 AND b."id" OPERATOR(pg_catalog.=) i.k1 ORDER BY b."fencepost ordinal") AS w CROSS JOIN LATERAL (SELECT w.c0 AS "region", w.c1 AS "id", w.c2 AS "v") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('readings'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- POST one, only values: 400
-- POST many, only values: 400
--   $1 = 104
--   $2 = '[{"v": 1}]'
WITH
  b AS MATERIALIZED (SELECT "v", "fencepost ordinal"
    FROM ROWS FROM (json_to_recordset($2::json) AS ("v" numeric)) WITH ORDINALITY AS b("v", "fencepost ordinal")),
  i AS (INSERT INTO "public"."readings" AS r ("v", "last_fence_token")
    SELECT "v", -$1::bigint
    FROM b
    ORDER BY b."fencepost ordinal"
    RETURNING 0 AS number, r."last_fence_token" AS mark, 'readings/' || fencepost.enc((r."region")::text COLLATE pg_catalog."C") || ',' || fencepost.enc((r."id")::text COLLATE pg_catalog."C") AS resource, r."region" AS c0, r."id" AS c1, r."v" AS c2)
  SELECT *
  FROM (SELECT s.number, CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json, s.mark, s.resource FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."region", r."id", r."v") AS x)::text AS json, w.number, w.mark, w.resource FROM (SELECT * FROM i) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "region", w.c1 AS "id", w.c2 AS "v") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT 0, fencepost.suppressed('readings'), NULL::bigint, NULL::text
  WHERE (SELECT count(*) FROM i) < (SELECT count(*) FROM b)

-- PATCH of an array, only keys: 204
--   $1 = 122
--   $2 = '[{"region": "eu", "id": 0}, {"region": "eu", "id": 1}, {"region": "eu", "id ...
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("region" text, "id" integer)) WITH ORDINALITY AS b("region", "id", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."region" AS k0, r."id" AS k1, r."last_fence_token" AS "fencepost mark", b."fencepost ordinal"
    FROM b
    JOIN "public"."readings" AS r ON r."region" OPERATOR(pg_catalog.=) b."region" AND r."id" OPERATOR(pg_catalog.=) b."id"
    ORDER BY r."region", r."id"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0, hit.k1 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE NOT "fencepost mark" < $1::bigint) AS passes),
  w AS (UPDATE "public"."readings" AS r
    SET "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."region" OPERATOR(pg_catalog.=) hit.k0 AND r."id" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('readings'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- PATCH of an array: 204
-- PATCH of an array, stale: 409
-- PATCH of an array, no row: 404
-- PATCH of an array, and the connection breaks: 503
--   $1 = 120
--   $2 = '[{"region": "eu", "id": 0, "v": 1}, {"region": "eu", "id": 1, "v": 1}, {"re ...
WITH
  b AS MATERIALIZED (SELECT *
    FROM ROWS FROM (json_to_recordset($2::json) AS ("region" text, "id" integer, "v" numeric)) WITH ORDINALITY AS b("region", "id", "v", "fencepost ordinal") LIMIT (SELECT 2147483647)),
  hit AS MATERIALIZED (SELECT r."region" AS k0, r."id" AS k1, r."last_fence_token" AS "fencepost mark", b."v" AS v0, b."fencepost ordinal"
    FROM b
    JOIN "public"."readings" AS r ON r."region" OPERATOR(pg_catalog.=) b."region" AND r."id" OPERATOR(pg_catalog.=) b."id"
    ORDER BY r."region", r."id"
    FOR NO KEY UPDATE OF r),
  verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT hit.k0, hit.k1 FROM hit) AS rows) = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE NOT "fencepost mark" < $1::bigint) AS passes),
  w AS (UPDATE "public"."readings" AS r
    SET "v" = hit.v0, "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."region" OPERATOR(pg_catalog.=) hit.k0 AND r."id" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit."fencepost ordinal")
  SELECT written.json, written."fencepost ordinal" AS element
  FROM (SELECT ''::text AS json, w."fencepost ordinal" FROM (SELECT * FROM w ORDER BY w."fencepost ordinal") AS w) AS written
  UNION ALL SELECT NULL, hit."fencepost ordinal"
  FROM hit
  WHERE NOT (SELECT passes FROM verdict)
  UNION ALL SELECT fencepost.suppressed('readings'), NULL::bigint
  WHERE (SELECT passes FROM verdict) AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)

-- PATCH by filter of nothing: 204
--   $1 = 124
--   $2 = 'eu'
WITH
  hit AS MATERIALIZED (SELECT r."region" AS k0, r."id" AS k1, r."last_fence_token" AS "fencepost mark"
    FROM "public"."readings" AS r
    WHERE r."region" OPERATOR(pg_catalog.=) CAST($2::text AS text)
    ORDER BY r."region", r."id" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."readings" AS r
    SET "last_fence_token" = -$1::bigint
    FROM hit
    WHERE r."region" OPERATOR(pg_catalog.=) hit.k0 AND r."id" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'readings/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('readings'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- DELETE by filter, stale: 409
--   $1 = 1
--   $2 = 'eu'
WITH
  hit AS MATERIALIZED (SELECT r."region" AS k0, r."id" AS k1, r."last_fence_token" AS "fencepost mark"
    FROM "public"."readings" AS r
    WHERE r."region" OPERATOR(pg_catalog.=) CAST($2::text AS text)
    ORDER BY r."region", r."id" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."readings" AS r USING hit
    WHERE r."region" OPERATOR(pg_catalog.=) hit.k0 AND r."id" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'readings/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('readings'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)
  UNION ALL SELECT 'outdated', fencepost.outdated('readings')::text, NULL
  WHERE NOT EXISTS (SELECT FROM fencepost.protected AS p WHERE p.relation OPERATOR(pg_catalog.=) pg_catalog.to_regclass('"public"."readings"'))

-- DELETE by filter: 200
--   $1 = 156
--   $2 = 'eu'
WITH
  hit AS MATERIALIZED (SELECT r."region" AS k0, r."id" AS k1, r."last_fence_token" AS "fencepost mark"
    FROM "public"."readings" AS r
    WHERE r."region" OPERATOR(pg_catalog.=) CAST($2::text AS text)
    ORDER BY r."region", r."id" LIMIT 10001
    FOR UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (DELETE FROM "public"."readings" AS r USING hit
    WHERE r."region" OPERATOR(pg_catalog.=) hit.k0 AND r."id" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1, r."region" AS c0, r."id" AS c1, r."v" AS c2)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT CASE WHEN s.sent <= 67108864 THEN s.json ELSE fencepost.too_large(67108864) END AS json FROM (SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING) AS bigint) AS sent FROM (SELECT (SELECT pg_catalog.row_to_json(x.*) FROM (SELECT r."region", r."id", r."v") AS x)::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w CROSS JOIN LATERAL (SELECT w.c0 AS "region", w.c1 AS "id", w.c2 AS "v") AS r OFFSET 0) AS p) AS s) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'readings/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('readings'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)
  UNION ALL SELECT 'outdated', fencepost.outdated('readings')::text, NULL
  WHERE NOT EXISTS (SELECT FROM fencepost.protected AS p WHERE p.relation OPERATOR(pg_catalog.=) pg_catalog.to_regclass('"public"."readings"'))

-- PATCH by filter: 204
-- PATCH by filter, stale: 409
-- PATCH with an Idempotency-Key: 204
-- PATCH, and the connection breaks: 503
--   $1 = 121
--   $2 = '{"v": 1}'
--   $3 = 'eu'
WITH
  hit AS MATERIALIZED (SELECT r."region" AS k0, r."id" AS k1, r."last_fence_token" AS "fencepost mark"
    FROM "public"."readings" AS r
    WHERE r."region" OPERATOR(pg_catalog.=) CAST($3::text AS text)
    ORDER BY r."region", r."id" LIMIT 10001
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 10000 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."readings" AS r
    SET "v" = b."v", "last_fence_token" = -$1::bigint
    FROM hit, json_to_record($2::json) AS b("v" numeric)
    WHERE r."region" OPERATOR(pg_catalog.=) hit.k0 AND r."id" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'readings/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 10000
  UNION ALL SELECT 'suppressed', fencepost.suppressed('readings'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)

-- PATCH by filter, minimal: 204
--   $1 = 125
--   $2 = '{"v": 1}'
--   $3 = 'eu'
WITH
  hit AS MATERIALIZED (SELECT r."region" AS k0, r."id" AS k1, r."last_fence_token" AS "fencepost mark"
    FROM "public"."readings" AS r
    WHERE r."region" OPERATOR(pg_catalog.=) CAST($3::text AS text)
    ORDER BY r."region", r."id" LIMIT 41
    FOR NO KEY UPDATE OF r),
  bad AS MATERIALIZED (SELECT *
    FROM hit
    WHERE NOT "fencepost mark" < $1::bigint),
  verdict AS MATERIALIZED (SELECT hits, bads = 0 AND hits <= 40 AS passes
    FROM (SELECT (SELECT count(*) FROM hit) AS hits, (SELECT count(*) FROM bad) AS bads) AS counted),
  w AS (UPDATE "public"."readings" AS r
    SET "v" = b."v", "last_fence_token" = -$1::bigint
    FROM hit, json_to_record($2::json) AS b("v" numeric)
    WHERE r."region" OPERATOR(pg_catalog.=) hit.k0 AND r."id" OPERATOR(pg_catalog.=) hit.k1 AND (SELECT passes FROM verdict)
    RETURNING hit.k0, hit.k1)
  SELECT 'row' AS what, a.json AS value, NULL::bigint AS mark
  FROM (SELECT ''::text AS json FROM (SELECT * FROM w ORDER BY k0, k1) AS w) AS a
  UNION ALL SELECT *
  FROM (SELECT 'refused', 'readings/' || fencepost.enc((bad.k0)::text COLLATE pg_catalog."C") || ',' || fencepost.enc((bad.k1)::text COLLATE pg_catalog."C"), bad."fencepost mark" FROM bad ORDER BY k0, k1 LIMIT 1000) AS refused
  UNION ALL SELECT 'too many', NULL, hits
  FROM verdict
  WHERE hits > 40
  UNION ALL SELECT 'suppressed', fencepost.suppressed('readings'), NULL
  FROM verdict
  WHERE passes AND hits > (SELECT count(*) FROM w)
