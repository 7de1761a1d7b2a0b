-- Which tokens there are: a token beyond these bounds raises no mark (R12, R19).
--
--   source            highest                                 oldest
--   builtin           issued(): the sequence fencepost.tokens  oldest(): its MINVALUE, where the generation begins
--   a lock service    issued(NAME): fencepost.tokens_NAME     oldest(NAME)
--   external          protected.max_token, max_jump           none
--
-- Token = generation * 2^48 + what was drawn since. Above the highest, or too far above the mark: FP018. Below the oldest: FP409.
-- The mark is judged first, since its refusal is more exact. Tables' own triggers compare with these functions in the plain
-- case, and call require_issued and require_reach only to raise (table_functions.sql).

-- One sequence for all locks: tokens are ordered across locks, and an idle lock needs no row. CACHE 1 is a safety
-- property: with more, sessions would hand out older tokens later.
CREATE SEQUENCE fencepost.tokens AS bigint MINVALUE 1 NO CYCLE CACHE 1;

COMMENT ON SEQUENCE fencepost.tokens IS 'The tokens of the built-in source, for all locks. CACHE 1, NO CYCLE and the order of statements in fencepost.acquire are what makes them rise.';

-- The oldest token of this generation; 1 in the first. On the hot path, after issued() in the same expression: that one
-- locks the sequence for the transaction, so a generation that is being raised is waited for and then seen.
CREATE FUNCTION fencepost.oldest() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (pg_catalog.pg_sequence_parameters('fencepost.tokens'::regclass)).minimum_value;

-- The highest token ever issued. Before the first of a generation: the last that an earlier one may have had, 0 in the first.
-- For triggers of tables under --source builtin, on the hot path. After a crash it is up to 32 further, since nextval
-- logs ahead: numbers that no lease gets, and that harm nothing.
CREATE FUNCTION fencepost.issued() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN coalesce(pg_catalog.pg_sequence_last_value('fencepost.tokens'::regclass), fencepost.oldest() - 1);

-- The oldest token of the source's generation; 1 in the first. After issued() in the same expression, as oldest() is: that
-- one locks the sequence, so a generation that is being raised is waited for and then seen.
CREATE FUNCTION fencepost.oldest(p_source text) RETURNS bigint LANGUAGE sql VOLATILE
RETURN coalesce((pg_catalog.pg_sequence_parameters(to_regclass('fencepost.' || pg_catalog.quote_ident('tokens_' || p_source)))).minimum_value, 1);

-- The highest token known to have been handed out: for triggers of tables that are pinned to a source, in the writer's own
-- name. 0 where there is no such source. Locks its sequence until the transaction ends.
CREATE FUNCTION fencepost.issued(p_source text) RETURNS bigint LANGUAGE sql VOLATILE
RETURN coalesce(pg_catalog.pg_sequence_last_value(to_regclass('fencepost.' || pg_catalog.quote_ident('tokens_' || p_source))), fencepost.oldest(p_source) - 1);

-- A token that no lease was ever given must not raise a mark (R12): one of 2^63-1 would refuse every later one. Nor may one that an
-- earlier generation gave: its holder may not know of writes that were lost, and another may hold the same number (R19).
CREATE FUNCTION fencepost.require_issued(p_resource text, p_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  issued bigint := fencepost.issued();
  oldest bigint := fencepost.oldest();  -- after issued(), see there
BEGIN
  IF p_token > issued THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s was never issued: the built-in source has issued none above %s',
             p_token, p_resource, issued),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', issued::text)::text,
      HINT = 'Tokens of this table come from leases: POST /v1/leases, or fencepost lock.';
  ELSIF p_token < oldest AND NOT fencepost.break_glass() THEN  -- that one keeps a row's mark, however old
    RAISE EXCEPTION USING ERRCODE = 'FP409',
      MESSAGE = format('stale token %s for %s: a token of an earlier generation, all of which are void up to %s',
             p_token, p_resource, oldest - 1),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'mark', (oldest - 1)::text)::text,
      HINT = 'The database was failed over or restored since this token was drawn. Do not retry: acquire the lock anew and read again.';
  END IF;
END $$;

-- The same for the tokens of a lock service. A generation that the source does not have: FP018.
CREATE FUNCTION fencepost.require_issued(p_resource text, p_token bigint, p_source text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  issued bigint := fencepost.issued(p_source);
  oldest bigint := fencepost.oldest(p_source);  -- after issued(), see there
BEGIN
  IF to_regclass('fencepost.' || pg_catalog.quote_ident('tokens_' || p_source)) IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('the source %s is not registered, so no token for %s was issued', p_source, p_resource),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', '0', 'source', p_source)::text,
      HINT = '`fencepost status` shows those that are.';
  ELSIF p_token >> 48 > oldest >> 48 THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s is of generation %s, and the source %s is at generation %s: it is not one of its tokens',
             p_token, p_resource, p_token >> 48, p_source, oldest >> 48),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', issued::text, 'source', p_source)::text,
      HINT = 'Send the token as it came with the lease.';
  ELSIF p_token > issued THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s was never issued, as far as is known here: none above %s of the source %s was',
             p_token, p_resource, issued, p_source),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', issued::text, 'source', p_source)::text,
      HINT = CASE WHEN strpos(p_source, ':') > 0 THEN 'Tokens of this table are positions in its queue: consumers give them.'
        ELSE format('Acquire through POST /v1/leases with "source": "%s"; for locks that are taken elsewhere, protect the table with --verify.', p_source) END;
  ELSIF p_token < oldest AND NOT fencepost.break_glass() THEN
    RAISE EXCEPTION USING ERRCODE = 'FP409',
      MESSAGE = format('stale token %s for %s: a token of an earlier generation of the source %s, all of which are void up to %s',
             p_token, p_resource, p_source, oldest - 1),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'mark', (oldest - 1)::text)::text,
      HINT = CASE WHEN strpos(p_source, ':') > 0 THEN 'The generation of the queue was raised since this message was taken: it comes again.'
        ELSE 'The generation of the source was raised since this token was drawn. Do not retry: acquire the lock anew and read again.' END;
  END IF;
END $$;

-- Move the sequence past marks that another source left. nextval and this exclude each other until this commits: ALTER
-- SEQUENCE takes a lock that conflicts with nextval's (and issued's, which is kept to the end of the transaction: two
-- that asked it first could not both go on to the stronger one, so the first look is a plain read).
CREATE FUNCTION fencepost.issue_beyond(p_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_token <= (SELECT CASE WHEN t.is_called THEN t.last_value ELSE 0 END FROM fencepost.tokens t) THEN RETURN; END IF;
  ALTER SEQUENCE fencepost.tokens CACHE 1;
  IF p_token > fencepost.issued() THEN PERFORM setval('fencepost.tokens', p_token); END IF;
END $$;

-- A table of the source external has a ceiling instead of a source that knows what it has issued (R12): a token above
-- p_max_token raises no mark, nor does one that is more than p_max_jump (null: any distance) above the mark that it
-- would raise, or above the floor where that is higher. A made-up token would refuse everybody after it. A token that
-- raises nothing is left to the mark, whose refusal is more exact. FP018.
CREATE FUNCTION fencepost.beyond(p_resource text, p_token bigint, p_mark bigint, p_floor bigint, p_max_token bigint,
                                 p_max_jump bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  base bigint := greatest(p_mark, p_floor, 0);
BEGIN
  IF p_token <= p_mark THEN RETURN; END IF;
  IF p_token > p_max_token THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s is above %s, the highest that its table takes', p_token, p_resource, p_max_token),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', p_max_token::text,
                        'source', 'external')::text,
      HINT = 'Give the token as the lock service gave it. If that counts so far: `fencepost protect TABLE --max-token N` sets the highest token that the table takes.';
  ELSIF p_token - base > p_max_jump THEN
    RAISE EXCEPTION USING ERRCODE = 'FP018',
      MESSAGE = format('token %s for %s is more than %s above %s, the mark or floor from which it would rise',
             p_token, p_resource, p_max_jump, base),
      DETAIL = json_build_object('resource', p_resource, 'presented', p_token::text, 'issued', (base + p_max_jump)::text,
                        'source', 'external', 'max_jump', p_max_jump::text)::text,
      HINT = 'Give the token as the lock service gave it. If that has counted so far: `fencepost protect TABLE --max-jump N` sets how far a token may be above the mark.';
  END IF;
END $$;

-- The same for a row whose mark is known and held; the floor of its table is read here.
CREATE FUNCTION fencepost.require_reach(tab text, p_resource text, p_token bigint, p_mark bigint, p_max_token bigint,
                                        p_max_jump bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.beyond(p_resource, p_token, p_mark, fencepost.floor_of(tab), p_max_token, p_max_jump);
END $$;

-- The same for a row that is updated, which may have been attached with a lower mark than its key has in fencepost.marks: it
-- takes that up, however far it is.
CREATE FUNCTION fencepost.require_reach_of_row(tab text, p_resource text, p_token bigint, p_mark bigint, p_max_token bigint,
                                               p_max_jump bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.beyond(p_resource, p_token, p_mark,
    greatest(fencepost.floor_of(tab), (SELECT k.last_fence_token FROM fencepost.marks k WHERE k.resource = p_resource)),
    p_max_token, p_max_jump);
END $$;

-- The same for what has its mark in fencepost.marks, or none. Asked before that is raised: its lock is taken first, and
-- also kept where there is no mark, so that no transaction raises it between the comparison and the rise.
CREATE FUNCTION fencepost.meet_ceiling(tab text, p_resource text, p_token bigint, p_max_token bigint, p_max_jump bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF octet_length(p_resource) > 2600 THEN RETURN; END IF;  -- raise_mark refuses it
  PERFORM fencepost.require_reach(tab, p_resource, p_token, coalesce(fencepost.meet_mark(p_resource), 0), p_max_token,
                                  p_max_jump);
END $$;
