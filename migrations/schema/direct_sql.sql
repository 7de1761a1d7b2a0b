-- How direct SQL gives its token (R14): in the setting fencepost.token, for the transaction (SET LOCAL), or as a negative value of
-- the column last_fence_token, for one row. The setting counts before the column. A positive value in the column may be
-- the echo of an ORM that writes back what it has read: it is a token only where it is higher than the row's mark.

-- The token that direct SQL gave: '36' is for any table, 'orders=36' for that table only (what the gateway's deletes
-- use, so that a foreign key's cascade cannot borrow the parent's token). After SET LOCAL ended the setting is '',
-- not NULL.
CREATE FUNCTION fencepost.token_from_setting(tab text) RETURNS bigint LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given text := nullif(current_setting('fencepost.token', true), '');
BEGIN
  IF given IS NULL THEN RETURN NULL; END IF;
  IF strpos(given, '=') > 0 THEN
    IF left(given, length(tab) + 1) <> tab || '=' THEN RETURN NULL; END IF;
    given := substr(given, length(tab) + 2);
  END IF;
  IF given !~ '^[1-9][0-9]{0,18}$' OR given::numeric > 9223372036854775807 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP400',
      MESSAGE = format('malformed fence token %L', given),
      HINT = 'A token is a positive integer of at most 9223372036854775807: SET LOCAL fencepost.token = ''<token>''';
  END IF;
  RETURN given::bigint;
END $$;

CREATE FUNCTION fencepost.malformed(token text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('malformed fence token %L', token),
    HINT = 'A token is a positive integer of at most 9223372036854775807: SET LOCAL fencepost.token = ''<token>''';
END $$;

-- Under epoch the token of a row that is inserted may equal the mark, if it was given explicitly (-36). The BEFORE trigger
-- stores 36; the setting fencepost.explicit notes that it was explicit, for this resource, until take_explicit removes it. ';' is in no
-- resource's name.
CREATE FUNCTION fencepost.note_explicit(resource text, token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('fencepost.explicit',
                     concat(current_setting('fencepost.explicit', true), ';', resource, '=', token, ';'), true);
END $$;

CREATE FUNCTION fencepost.take_explicit(resource text, token bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given text := current_setting('fencepost.explicit', true);
  entry text := concat(';', resource, '=', token, ';');
  at integer := strpos(given, entry);
BEGIN
  IF at IS NULL OR at = 0 THEN RETURN false; END IF;
  PERFORM set_config('fencepost.explicit', left(given, at - 1) || substr(given, at + length(entry)), true);
  RETURN true;
END $$;
