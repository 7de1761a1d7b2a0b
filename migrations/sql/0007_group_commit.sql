-- Group commit (app/fencepost/storage/group_commit.py). Statements are separated by a line of "-- next".

-- fencepost.enter for operations that share a transaction, each with a scope and a token of its own; no scope twice, for
-- one that this transaction has entered would pass with the same token again. Nobody is waited for, and nothing has to
-- be rolled back: a scope that cannot be entered is not touched.
--   entered   its mark is the token now
--   refused   by its mark, which is refused_by
--   busy      somebody else holds the mark
--   unclear   a floor, or the token's source: ask fencepost.enter, which says what is wrong
CREATE FUNCTION fencepost.enter_each(p_prefix text, p_scopes text[], p_tokens bigint[], p_table oid, p_template text)
RETURNS TABLE (number integer, verdict text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_rule text;
  found_source text;
  lowest bigint;
  highest bigint := 9223372036854775807;
  oldest bigint := 1;
  first_entered bigint := 9223372036854775807;
  p_scope text;
  p_token bigint;
BEGIN
  IF (SELECT count(DISTINCT u.name COLLATE "C") FROM unnest(p_scopes) AS u(name)) < cardinality(p_scopes) THEN
    RAISE EXCEPTION 'a scope is named twice';
  END IF;
  -- Rule and source as they are now: who changes them waits for us, or we for him.
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('fencepost.scope/' || p_prefix, 0));
  SELECT p.rule, p.source INTO found_rule, found_source FROM fencepost.protected p
   WHERE p.relation = p_table AND p.scope = p_template;
  IF NOT FOUND THEN PERFORM fencepost.outdated(p_table::regclass::text); END IF;
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
  IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
  IF found_source = 'builtin' THEN
    highest := fencepost.issued();
    oldest := fencepost.oldest();
  END IF;
  FOR number, p_scope, p_token IN
    SELECT u.o::integer - 1, u.name, u.token
      FROM ROWS FROM (unnest(p_scopes), unnest(p_tokens)) WITH ORDINALITY AS u(name, token, o) ORDER BY u.name COLLATE "C"
  LOOP
    refused_by := NULL;
    IF NOT (lowest < p_token OR lowest = p_token AND found_rule = 'lease') OR p_token > highest OR p_token < oldest THEN
      verdict := 'unclear';
    ELSE
      PERFORM FROM fencepost.marks k WHERE k.resource = p_scope FOR UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (SELECT FROM fencepost.marks k WHERE k.resource = p_scope) THEN
        verdict := 'busy';
      ELSE
        refused_by := fencepost.raise_mark(p_scope, p_token, found_rule, true);
        verdict := CASE WHEN refused_by IS NULL THEN 'entered' ELSE 'refused' END;
        IF refused_by IS NULL THEN first_entered := least(first_entered, p_token); END IF;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
  -- In a statement of its own, after the marks: the floor may have risen before they were ours.
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
  IF NOT (lowest < first_entered OR lowest = first_entered AND found_rule = 'lease') THEN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('the floor of %s rose meanwhile', p_prefix);
  END IF;
END $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.enter_each(text, text[], bigint[], oid, text) FROM PUBLIC;
