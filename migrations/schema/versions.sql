-- What versions N and N+1 of Fencepost promise each other (ops/schema.py).
--
-- Gateways and commands of versions that have this revision can work on the schema, and report that they are behind where it
-- is newer. A revision that leaves all in place that the version before uses leaves this as it is; another one sets it to
-- its own.
CREATE FUNCTION fencepost.compatible_from() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '0001'::text;
