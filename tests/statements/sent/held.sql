-- 39 are those of orders

-- claim of a absent row: 200
--   $1 = 'held/k6'
--   $2 = 502
--   $3 = '"public"."held"'
--   $4 = 'held'
--   $5 = '{"columns": [{"name": "order_id", "type": "text", "number": 1}], "relation" ...
--   $6 = 'epoch'
--   $7 = 'builtin'
--   $8 = 'external'
--   $9 = 4611686018427387903
--   $10 = None
-- as for orders

-- the next row: 201
--   $1 = [b'A\\py\xe7\x7f\xb4.\xcb;W\xb3\xb1b\n{Q/\xb3\xc1\xc75\x1e\x95\xf3r\xc4\xd2\ ...
-- as for orders

-- PATCH with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 201 | DELETE
-- with an Idempotency-Key: 204 | POST with an Idempotency-Key: 201
--   $1 = ['']
--   $2 = ['data/held-PATCH-held/k0']
--   $3 = [b'"R9\x95\xd2\x06B\xf0\xe8\x92wob\xf5q\xfc\x19\x9b\xf0\xa9\x19\x0f\xbe\xa5, ...
--   $4 = ['{"verb":"patch","mark":701,"counted":1}']
--   $5 = ['{"order_id":"k0","status":"x","sku":null,"at":null}']
--   $6 = [None]
-- as for orders

-- claim of a absent row: 200
--   $1 = 'held/k6'
--   $2 = 502
--   $3 = 'epoch'
-- as for orders

-- PATCH with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 200 | PUT with an Idempotency-Key: 201 | DELETE
-- with an Idempotency-Key: 204 | POST with an Idempotency-Key: 201 | PATCH with an Idempotency-Key, again: 200 | PUT
-- with an Idempotency-Key, again: 200 | PUT with an Idempotency-Key, again: 201 | DELETE with an Idempotency-Key,
-- again: 204 | POST with an Idempotency-Key, again: 201
--   $1 = ''
--   $2 = ['data/held-PATCH-held/k0']
--   $3 = [b'"R9\x95\xd2\x06B\xf0\xe8\x92wob\xf5q\xfc\x19\x9b\xf0\xa9\x19\x0f\xbe\xa5, ...
-- as for orders

-- the next row: 201
--   $1 = ['held/k3']
--   $2 = [b'A\\py\xe7\x7f\xb4.\xcb;W\xb3\xb1b\n{Q/\xb3\xc1\xc75\x1e\x95\xf3r\xc4\xd2\ ...
--   $3 = ['127.0.0.1']
--   $4 = [30000]
--   $5 = [1]
--   $6 = [1001]
--   $7 = []
-- as for orders
