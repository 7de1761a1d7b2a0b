-- Keys with which programs call the gateway: fp_<id>_<secret>. The id is public. Of the secret only the SHA-256 is kept; it has 192 random
-- bits, and cannot be guessed from that.
--
-- `fencepost key` writes the table as the schema's owner; the gateway reads it by the functions below. Whatever changes in a key is announced
-- (NOTIFY fencepost, 'keys'), also when an operator changes it by SQL: gateways then forget which keys they have verified.

CREATE TABLE fencepost.api_keys (
  id          text COLLATE "C" PRIMARY KEY CONSTRAINT api_keys_id_check CHECK (id ~ '^[0-9a-z]{1,32}$'),
  secret_hash bytea NOT NULL CONSTRAINT api_keys_secret_hash_check CHECK (octet_length(secret_hash) = 32),
  old_hash    bytea CONSTRAINT api_keys_old_hash_check CHECK (octet_length(old_hash) = 32),
  old_until   timestamptz,
  role        text CONSTRAINT api_keys_role_check CHECK (role <> ''),
  access      text[] NOT NULL CONSTRAINT api_keys_access_check
              CHECK (access <@ '{read,write,lock}' AND cardinality(access) > 0 AND array_position(access, NULL) IS NULL),
  locks       text[] CONSTRAINT api_keys_locks_check CHECK (array_position(locks, NULL) IS NULL),
  expires_at  timestamptz,
  note        text NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  created_by  text NOT NULL DEFAULT session_user,
  rotated_at  timestamptz,
  revoked_at  timestamptz,
  used_at     timestamptz,
  CONSTRAINT api_keys_old_check CHECK ((old_hash IS NULL) = (old_until IS NULL))
);

COMMENT ON TABLE fencepost.api_keys IS 'Keys with which programs call the gateway. Secrets are not in it, only their SHA-256.';

COMMENT ON COLUMN fencepost.api_keys.old_hash IS 'Of the secret before the last rotation, which is taken until old_until; null: it ended at once.';

COMMENT ON COLUMN fencepost.api_keys.role IS 'The database role of the key''s requests; null: the role that the gateway logs in as.';

COMMENT ON COLUMN fencepost.api_keys.locks IS 'Patterns of the locks and elections that the key may see and take; null: all.';

COMMENT ON COLUMN fencepost.api_keys.expires_at IS 'From then on it is refused; null: it does not end.';

COMMENT ON COLUMN fencepost.api_keys.rotated_at IS 'When its secret was last changed; null: it is the first.';

COMMENT ON COLUMN fencepost.api_keys.revoked_at IS 'From then on it is refused, for good; null: it is not revoked.';

COMMENT ON COLUMN fencepost.api_keys.used_at IS 'When it was used last, give or take two minutes; null: never.';

CREATE FUNCTION fencepost.announce_keys() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_notify('fencepost', 'keys');
  RETURN NULL;
END $$;

-- used_at is not among the columns: it decides nothing.
CREATE TRIGGER announce AFTER DELETE OR TRUNCATE OR UPDATE OF id, secret_hash, old_hash, old_until, role, access, locks, expires_at, revoked_at ON fencepost.api_keys
  FOR EACH STATEMENT EXECUTE FUNCTION fencepost.announce_keys();

-- What the gateway has to know of keys. Seconds count from now, by the clock of the database; ends_in is null for a key that does not end.
CREATE FUNCTION fencepost.api_keys_of(p_ids text[])
RETURNS TABLE (id text, secret_hash bytea, old_hash bytea, old_ends_in double precision, role text, access text[], locks text[],
               ends_in double precision, revoked boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT k.id, k.secret_hash, k.old_hash, extract(epoch FROM k.old_until - clock_timestamp())::double precision, k.role, k.access, k.locks,
         extract(epoch FROM k.expires_at - clock_timestamp())::double precision, k.revoked_at IS NOT NULL
    FROM fencepost.api_keys k WHERE k.id = ANY (p_ids) $$;

-- Note that keys are used. Another gateway may note the same at the same time: that one is enough.
CREATE FUNCTION fencepost.api_keys_used(p_ids text[]) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE fencepost.api_keys k SET used_at = clock_timestamp()
   WHERE k.id IN (SELECT u.id FROM fencepost.api_keys u WHERE u.id = ANY (p_ids) FOR NO KEY UPDATE SKIP LOCKED) $$;
