-- 13 are those of orders

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

-- POST one: 201 | POST one, present: 409 | POST one, stale: 409
--   $1 = 101
--   $2 = '[{"order_id": "k0", "status": "x", "at": null}]'
--   $3 = 0
-- as for orders

-- POST one, present: 409 | POST one, stale: 409 | POST many, present and stale: 409
--   $1 = '[{"order_id": "k0", "status": "x", "at": null}]'
SELECT b."fencepost ordinal" AS place, n.resource, (SELECT r."last_fence_token" FROM "public"."pinned" AS r WHERE r."order_id" OPERATOR(pg_catalog.=) b."order_id") AS live, fencepost.gateway_mark_without_row('pinned', n.resource) AS without_row, c.issued, c.max_jump
  FROM ROWS FROM (json_to_recordset($1::json) AS ("order_id" text)) WITH ORDINALITY AS b("order_id", "fencepost ordinal")
  CROSS JOIN LATERAL (SELECT 'pinned/' || fencepost.enc((b."order_id")::text COLLATE pg_catalog."C") AS resource) AS n
  CROSS JOIN (SELECT fencepost.issued() AS issued, NULL::bigint AS max_jump) AS c
  ORDER BY b."order_id", b."fencepost ordinal"

-- POST one, stale: 409 | POST many, present and stale: 409 | PATCH, stale: 409 | claim of a row, stale: 409 | claim
-- of a absent row, stale: 409
--   $1 = 1
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

-- claim of a row: 200 | claim of a row, stale: 409 | claim of a absent row: 200 | claim of a absent row, stale: 409
--   $1 = 'k0'
--   $2 = 501
--   $3 = 0
-- as for orders

-- PATCH: 200 | PATCH with its key: 200 | PATCH with its key, spelled otherwise: 200 | PATCH, stale: 409 | PATCH, no
-- row: 404
--   $1 = 'k0'
--   $2 = 201
--   $3 = '{"status": "x", "at": null}'
--   $4 = 0
-- as for orders
