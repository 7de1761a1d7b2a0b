-- Group commit (app/fencepost/storage/batches/group_commit.py): what enter, idem_begin and idem_record do, for many operations of
-- one transaction at once. Statements are separated by a line of "-- next".
--
-- Their plans are made once and kept. One that reads a whole table, made while that was small, would stay when it has
-- grown: so each row is looked up by itself (LATERAL), and other joins are switched off.

-- fencepost.enter for operations with a scope and a token each. A scope that cannot be entered is not touched, so nothing
-- has to be rolled back. A scope that is named twice is entered by one operation only, for it would let every other pass
-- as its own. Whoever holds a mark is not waited for. Who is just making one, or changes the prefix's rule, is, for as
-- long as lock_timeout lets: batches have one of 10 ms (LOCK_WAIT_MS), less than PostgreSQL waits before it looks for a
-- deadlock, and therefore take marks in no order.
--   entered   its mark is the token now
--   refused   by its mark, which is refused_by
--   busy      somebody else holds the mark, or another operation of this transaction has entered
--   unclear   no scope, a floor, the token's source, or a token that is too high: ask fencepost.enter, which says what is wrong
CREATE FUNCTION fencepost.enter_each(p_prefix text, p_scopes text[], p_tokens bigint[], p_table oid, p_template text)
RETURNS TABLE (number integer, scope text, verdict text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  found_rule text;
  found_source text;
  lowest bigint;
  highest bigint := 9223372036854775807;
  oldest bigint := 1;
  first_entered bigint := 9223372036854775807;
  entered boolean[] := array_fill(false, ARRAY[cardinality(p_scopes)]);
  p_token bigint;
BEGIN
  IF cardinality(array_remove(p_scopes, NULL)) = 0 THEN  -- nothing to enter: all of them are answered already
    RETURN QUERY SELECT u.o::integer - 1, NULL::text, 'unclear', NULL::bigint
                   FROM unnest(p_scopes) WITH ORDINALITY AS u(name, o);
    RETURN;
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
  -- Most have a mark that is lower, and that nobody holds. Only one of two that have the same mark gets to it.
  FOR number, p_token IN
    UPDATE fencepost.marks k
       SET last_fence_token = x.token, xid = pg_current_xact_id(), row_absent = true, changed_at = clock_timestamp()
      FROM (SELECT u.o, u.token, h.place
              FROM ROWS FROM (unnest(p_scopes), unnest(p_tokens)) WITH ORDINALITY AS u(name, token, o)
             CROSS JOIN LATERAL (SELECT h.ctid AS place FROM fencepost.marks h
                                  WHERE h.resource = u.name AND h.last_fence_token < u.token FOR UPDATE SKIP LOCKED) h
             WHERE lowest < u.token AND u.token BETWEEN oldest AND highest) x
     WHERE k.ctid = x.place
    RETURNING x.o, x.token
  LOOP
    entered[number] := true;
    first_entered := least(first_entered, p_token);
  END LOOP;
  FOR number, scope, p_token, verdict IN
    SELECT u.o - 1, u.name, u.token, CASE WHEN u.entered THEN 'entered' ELSE 'unclear' END
      FROM ROWS FROM (unnest(p_scopes), unnest(p_tokens), unnest(entered)) WITH ORDINALITY AS u(name, token, entered, o)
     ORDER BY u.name COLLATE "C", u.entered DESC
  LOOP
    refused_by := NULL;
    IF verdict = 'unclear' AND p_token BETWEEN oldest AND highest
       AND (lowest < p_token OR lowest = p_token AND found_rule = 'epoch') AND scope IS NOT NULL
    THEN
      PERFORM FROM fencepost.marks k WHERE k.resource = scope FOR UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (SELECT FROM fencepost.marks k WHERE k.resource = scope) THEN
        verdict := 'busy';
      ELSIF FOUND AND EXISTS (SELECT FROM fencepost.marks k
                               WHERE k.resource = scope AND k.xid = pg_current_xact_id() AND fencepost.ours(k.xmin)) THEN
        verdict := 'busy';
      ELSE
        refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);
        verdict := CASE WHEN refused_by IS NULL THEN 'entered' ELSE 'refused' END;
        IF refused_by IS NULL THEN first_entered := least(first_entered, p_token); END IF;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
  -- In a statement of its own, after the marks: the floor may have risen before they were ours.
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
  IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
  IF NOT (lowest < first_entered OR lowest = first_entered AND found_rule = 'epoch') THEN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('the floor of %s rose meanwhile', p_prefix);
  END IF;
END $$;
-- next
-- fencepost.idem_begin for many keys, none of them twice: its lock would let the second one pass as well. The look-up that
-- idem_begin makes before it tries the lock is only there to spare replays the lock.
CREATE FUNCTION fencepost.idem_begin_each(p_caller text, p_keys text[], p_hashes bytea[])
RETURNS TABLE (number integer, state text, status integer, headers text[], answer bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  ours boolean[];
BEGIN
  ours := ARRAY(SELECT pg_try_advisory_xact_lock(hashtextextended(length(p_caller) || ':' || p_caller || u.key, 7234))
                  FROM unnest(p_keys) WITH ORDINALITY AS u(key, o) ORDER BY u.o);
  -- A statement of its own, after the locks: it sees whatever landed before they were ours.
  RETURN QUERY
    SELECT k.number, k.state, k.status, k.headers, k.answer
      FROM (SELECT u.o::integer - 1 AS number,
                   CASE WHEN i.key IS NULL THEN CASE WHEN u.ours THEN 'new' ELSE 'in flight' END
                        WHEN i.payload_hash <> u.hash THEN 'reused'
                        ELSE 'replay' END AS state,
                   i.status, i.headers, i.answer
              FROM ROWS FROM (unnest(p_keys), unnest(p_hashes), unnest(ours)) WITH ORDINALITY AS u(key, hash, ours, o)
              LEFT JOIN LATERAL (SELECT * FROM fencepost.idempotency r WHERE r.caller = p_caller AND r.key = u.key LIMIT 1) i
                     ON true) k
     -- Seen is not replicated, as in idem_begin.
     WHERE k.state <> 'replay' OR pg_logical_emit_message(true, 'fencepost', '') IS NOT NULL;
END $$;
-- next
-- fencepost.idem_record for many keys; the headers of each are lines.
CREATE FUNCTION fencepost.idem_record_each(p_caller text, p_keys text[], p_hashes bytea[], p_statuses integer[],
                                           p_headers text[], p_answers bytea[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO fencepost.idempotency (caller, key, payload_hash, status, headers, answer)
  SELECT p_caller, u.key, u.hash, u.status, string_to_array(u.headers, E'\n'), u.answer
    FROM ROWS FROM (unnest(p_keys), unnest(p_hashes), unnest(p_statuses), unnest(p_headers), unnest(p_answers))
      AS u(key, hash, status, headers, answer) $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.enter_each(text, text[], bigint[], oid, text),
  fencepost.idem_begin_each(text, text[], bytea[]),
  fencepost.idem_record_each(text, text[], bytea[], integer[], text[], bytea[]) FROM PUBLIC;
