-- The marks that a table's rows have when `fencepost protect` begins to guard them, or `unprotect` ends it (protect.sql): what was
-- written down of them, what a floor or a scope stands for, and what is not known any more. The table is locked; see protecting.sql.

-- Write to a table's rows. Its own triggers may fire: they find their names as always, so the statement names its operators in full; $1 is
-- p_mark, $2 p_parts. A policy that hides rows must fail, and not hide their marks.
CREATE FUNCTION fencepost.write_rows(p_statement text, p_mark bigint DEFAULT NULL, p_parts oid[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
BEGIN
  SET LOCAL search_path TO DEFAULT;
  EXECUTE p_statement USING p_mark, p_parts;
END $$;

-- Whether the rows of a table have been guarded until now.
CREATE FUNCTION fencepost.is_guarded(p_table regclass) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = p_table AND t.tgname = 'zzz_fencepost_upd') $$;

-- The rows take up the floor that may have been made while nothing protected the table: their keys had no row, and a key without a row is
-- fenced by the floor. Of the other rows `unprotect` has written down the marks. The floor that another table has left, which lives on
-- under another name, is not for this one's rows. p_named_by: the function that names a row.
CREATE FUNCTION fencepost.lift_rows(p_table regclass, p_name text, p_named_by text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lowest bigint := (SELECT f.floor FROM fencepost.floors f WHERE f.name = p_name);
  -- Whether it is the table that was unprotected, and not one in its place, of whose rows nothing is written down.
  remembered boolean := EXISTS (SELECT FROM fencepost.floors f WHERE f.relation = p_table);
  another_s boolean := EXISTS (SELECT FROM fencepost.floors f WHERE f.name = p_name AND f.relation <> p_table
                                  AND fencepost.name_of(f.relation) IS NOT NULL);
BEGIN
  IF lowest > 0 AND NOT fencepost.is_guarded(p_table) AND (remembered OR NOT another_s) AND fencepost.same_key(
       (SELECT f.key FROM fencepost.floors f WHERE f.name = p_name), fencepost.key_of(p_table)) THEN
    PERFORM fencepost.write_rows(format(
      'UPDATE %s AS r SET last_fence_token = $1 WHERE r.last_fence_token OPERATOR(pg_catalog.<) $1'
      ' AND NOT (%L AND EXISTS (SELECT FROM fencepost.marks AS m WHERE NOT m.row_absent'
      ' AND m.resource OPERATOR(pg_catalog.=) fencepost.%I(r.*)))', p_table, remembered, p_named_by), lowest);
  END IF;
END $$;

-- Are the names of the marks those of the primary key? It was of other types maybe, or in another order, while nothing protected the table:
-- then it is not known which mark is whose, and the floor rises to the highest one.
--
-- So do rows whose marks are not there: deleted and made again meanwhile, they have lost theirs. Those that were guarded all the time, or
-- of which every mark that was written down by `unprotect` is there, keep their own.
CREATE FUNCTION fencepost.require_key(p_table regclass, p_name text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  prefix text := fencepost.enc(p_name) || '/';
  this_key jsonb := fencepost.key_of(p_table);
  lowest bigint := (SELECT f.floor FROM fencepost.floors f WHERE f.name = p_name);
  guarded boolean := fencepost.is_guarded(p_table);
  highest bigint;
BEGIN
  IF NOT fencepost.same_key((SELECT f.key FROM fencepost.floors f WHERE f.name = p_name), this_key) THEN
    SELECT max(m.last_fence_token) INTO highest FROM fencepost.marks m
     WHERE starts_with(m.resource, prefix) AND (m.row_absent OR NOT guarded);
    IF lowest > 0 AND NOT guarded THEN highest := greatest(highest, lowest); END IF;
  END IF;
  IF highest IS NOT NULL THEN
    IF NOT guarded AND fencepost.marks_missing(p_table, prefix, lowest) THEN
      PERFORM fencepost.write_rows(format('UPDATE %s AS r SET last_fence_token = $1'
        ' WHERE r.last_fence_token OPERATOR(pg_catalog.<) $1', p_table), highest);
    END IF;
    UPDATE fencepost.floors f SET floor = greatest(f.floor, highest) WHERE f.name = p_name;
  END IF;
  UPDATE fencepost.floors f SET key = this_key WHERE f.name = p_name;
END $$;

-- Whether rows have lost marks that `unprotect` wrote down.
CREATE FUNCTION fencepost.marks_missing(p_table regclass, p_prefix text, p_floor bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  missing boolean;
  written bigint;
  there bigint;
BEGIN
  EXECUTE format(
    'SELECT EXISTS (SELECT FROM (SELECT m.last_fence_token AS mark, count(*) AS n FROM fencepost.marks m'
    ' WHERE starts_with(m.resource, $1) AND NOT m.row_absent GROUP BY 1) AS was'
    ' LEFT JOIN (SELECT r.last_fence_token AS mark, count(*) AS n FROM %s AS r WHERE r.last_fence_token > 0 GROUP BY 1) AS there'
    ' ON there.mark = was.mark WHERE coalesce(there.n, 0) < was.n)', p_table) INTO missing USING p_prefix;
  IF missing THEN RETURN true; END IF;
  -- A row that was not there then may have the key of one that had been deleted before.
  IF coalesce(p_floor, 0) = 0
     AND NOT EXISTS (SELECT FROM fencepost.marks m WHERE starts_with(m.resource, p_prefix) AND m.row_absent) THEN
    RETURN false;
  END IF;
  SELECT count(*) INTO written FROM fencepost.marks m WHERE starts_with(m.resource, p_prefix) AND NOT m.row_absent;
  EXECUTE format('SELECT count(*) FROM %s', p_table) INTO there;
  RETURN there > written;
END $$;

-- Protected once before? Rows that came back while the table was unprotected take up the marks that their keys had, and keys whose rows went
-- are known to be without. So do the rows of partitions that were attached since, without an event trigger that would have seen to it; and
-- these take up the floor, too. Without the trigger that judges an UPDATE, which would take the marks for tokens; it is made anew in
-- the same transaction.
CREATE FUNCTION fencepost.take_up_marks(p_table regclass, p_name text, p_named_by text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  prefix text := fencepost.enc(p_name) || '/';
  known boolean := EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = p_table);
  came oid[] := fencepost.partitions_unknown(p_table);
  lowest bigint := (SELECT f.floor FROM fencepost.floors f WHERE f.name = p_name);
BEGIN
  IF known AND cardinality(came) > 0 THEN
    EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_upd ON %s', p_table);
    IF lowest > 0 THEN
      PERFORM fencepost.write_rows(format(
        'UPDATE %s AS r SET last_fence_token = $1 WHERE r.tableoid OPERATOR(pg_catalog.=) ANY ($2)'
        ' AND r.last_fence_token OPERATOR(pg_catalog.<) $1', p_table), lowest, came);
    END IF;
  END IF;
  IF EXISTS (SELECT FROM fencepost.marks m WHERE starts_with(m.resource, prefix))
     AND (NOT known OR cardinality(came) > 0) THEN
    PERFORM fencepost.write_rows(format(
      'UPDATE %s AS r SET last_fence_token = m.last_fence_token FROM fencepost.marks AS m'
      ' WHERE m.resource OPERATOR(pg_catalog.=) fencepost.%I(r.*)'
      ' AND r.last_fence_token OPERATOR(pg_catalog.<) m.last_fence_token', p_table, p_named_by));
    EXECUTE format(
      'UPDATE fencepost.marks AS m SET row_absent = true WHERE starts_with(m.resource, %L) AND NOT m.row_absent'
      ' AND NOT EXISTS (SELECT FROM %s AS r WHERE fencepost.%I(r.*) = m.resource)', prefix, p_table, p_named_by);
  END IF;
END $$;

-- `unprotect`: note which keys have no row, and the marks of rows where p_of_rows says so. The table's owner may have given the column a type
-- of his own; the key's are looked at by the function that names a row. A row without a mark was deleted in a scope, for example, where rows
-- have none.
CREATE FUNCTION fencepost.write_marks_down(p_table regclass, p_name text, p_named_by text, p_of_rows boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  there text := '';
BEGIN
  IF p_of_rows THEN
    IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_table AND a.attname = 'last_fence_token'
                      AND a.atttypid = 'bigint'::regtype) THEN
      PERFORM fencepost.outdated(p_name);
    END IF;
    EXECUTE format(
      'INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)'
      ' SELECT fencepost.%I(r.*), r.last_fence_token, pg_current_xact_id(), false FROM %s AS r WHERE r.last_fence_token > 0'
      ' ON CONFLICT (resource) DO UPDATE SET row_absent = false,'
      ' last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token)', p_named_by, p_table);
    there := format(' AND NOT EXISTS (SELECT FROM %s AS r WHERE r.last_fence_token > 0 AND fencepost.%I(r.*) = k.resource)',
                    p_table, p_named_by);
  END IF;
  EXECUTE 'UPDATE fencepost.marks AS k SET row_absent = true WHERE NOT k.row_absent AND starts_with(k.resource, $1)' || there
    USING fencepost.enc(p_name) || '/';
END $$;

-- The floors that hold for a table's rows, which have no marks of their own: it has left a scope, and may have been renamed since; or the
-- table that had left one under this name is gone, and this one is in its place.
CREATE FUNCTION fencepost.floors_of_rows(p_table regclass, p_name text) RETURNS SETOF fencepost.floors LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT f.* FROM fencepost.floors f
   WHERE f.covers_rows AND (f.relation = p_table OR f.name = p_name AND fencepost.name_of(f.relation) IS NULL) $$;

-- Refuse to go on where a mark is above a ceiling (null: there is none): it would refuse everybody, and some of what `protect` does carries it on
-- to other rows.
CREATE FUNCTION fencepost.refuse_above(p_resource text, p_mark bigint, p_max_token bigint, p_mend text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_mark > p_max_token THEN
    RAISE EXCEPTION USING ERRCODE = '54000', HINT = p_mend,
      MESSAGE = format('%s has the mark %s, above %s, the highest token that the table is to take.', p_resource, p_mark, p_max_token);
  END IF;
END $$;

-- The highest mark of keys without a row, or of scopes, under a name, or its floor. mend: what to do about one that is too high. p_registered: a
-- table is protected under the name.
CREATE FUNCTION fencepost.highest_mark(p_name text, p_registered boolean, OUT resource text, OUT mark bigint, OUT mend text) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT k.* FROM (
    (SELECT m.resource, m.last_fence_token AS mark, fencepost.mend_reset(quote_literal(m.resource), p_registered) FROM fencepost.marks m
      WHERE starts_with(m.resource, fencepost.enc(p_name) || '/') ORDER BY m.last_fence_token DESC LIMIT 1)
    UNION ALL
    SELECT 'The floor of ' || f.name, f.floor, fencepost.mend_reset(f.name, true) FROM fencepost.floors f WHERE f.name = p_name
  ) AS k ORDER BY k.mark DESC LIMIT 1 $$;

-- The highest mark of a table's rows. p_named_by: the expression that names a row r. A policy that hides rows from their owner must fail here, and
-- not hide their marks.
CREATE FUNCTION fencepost.highest_mark_of_rows(p_table regclass, p_named_by text, p_registered boolean, OUT resource text, OUT mark bigint, OUT mend text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
BEGIN
  EXECUTE format('SELECT %s, r.last_fence_token FROM %s AS r ORDER BY r.last_fence_token DESC LIMIT 1', p_named_by, p_table) INTO resource, mark;
  mend := fencepost.mend_reset(quote_literal(resource), p_registered);
END $$;

-- Look whether the marks that are there fit a table that was just registered: they are below the ceiling of an external one, and a source's
-- tokens go on from above them. The built-in source's are moved there. A lock service's cannot be moved: those marks count as issued by it, and if
-- they were not, its next grant shows that it counts from elsewhere. p_before: the source that the marks were of, null where that is not known:
-- when it is known to be another one, a service that has given no token begins in a generation above them.
--
-- Exact, because the table's lock, or that of the scopes, keeps every mark from rising meanwhile. So is the sequence: no session draws from it
-- until this commits (`fencepost.issue_beyond`), and a lease that is granted afterwards has a token that passes. A claim of a key
-- without a row takes the table's lock last; it looks at the source after that (`claim_absent`). Under such a source no mark rises
-- above what was issued, so repeating `protect` looks at no row (a new name may have marks of a table that was called so before).
CREATE FUNCTION fencepost.meet_marks(p_table regclass, p_before text, p_registered boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p fencepost.protected;
  high record;
  of_rows record;
BEGIN
  SELECT x.* INTO p FROM fencepost.protected x WHERE x.relation = p_table;
  high := fencepost.highest_mark(coalesce(fencepost.scope_prefix(p.scope), p.name), p_registered);
  -- A column that this transaction has added holds no mark: no need to read a large table for that.
  IF p.scope IS NULL AND current_setting('fencepost.made', true) IS DISTINCT FROM 'true' THEN
    of_rows := fencepost.highest_mark_of_rows(p_table, fencepost.part_name(p.functions, 'name') || '(r.*)', p_registered);
    IF of_rows.mark >= coalesce(high.mark, 0) THEN high := of_rows; END IF;
  END IF;
  IF p.source = 'external' THEN
    PERFORM fencepost.refuse_above(high.resource, high.mark, p.max_token, high.mend);
    RETURN;
  END IF;
  IF high.mark > 4611686018427387904 THEN
    RAISE EXCEPTION USING ERRCODE = '54000', HINT = high.mend, MESSAGE = format('%s has the mark %s, above 2^62: tokens would have to go on from'
      ' there, and too few are left.', high.resource, high.mark);
  END IF;
  IF p.source = 'builtin' THEN
    PERFORM fencepost.issue_beyond(high.mark);
  ELSE
    -- No mark but its own is a position of a queue.
    PERFORM fencepost.source_beyond(p.source, high.mark, CASE WHEN strpos(p.source, ':') > 0 THEN p_before IS DISTINCT FROM p.source
                                                              ELSE p_before NOT IN ('external', p.source) AND p_before IS NOT NULL END);
  END IF;
END $$;

-- A table leaves its scope (R8): its floor becomes the highest mark that its rows may have had, and its next protection by rows writes it into
-- them. If it was renamed, that of the name that it has now: the next protection is of that one. A mark above p_max_token (null: any) is
-- refused, before it becomes the mark of every row.
CREATE FUNCTION fencepost.leave_scope(p_table regclass, p_max_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now fencepost.protected;
  called text := fencepost.name_of(p_table);
  high record;
BEGIN
  SELECT x.* INTO now FROM fencepost.protected x WHERE x.relation = p_table;
  high := fencepost.highest_mark(fencepost.scope_prefix(now.scope), true);
  PERFORM fencepost.refuse_above(high.resource, high.mark, p_max_token, high.mend);
  IF now.name <> called THEN PERFORM fencepost.take_name(p_table, called); END IF;
  INSERT INTO fencepost.floors AS f (name, relation, floor, covers_rows)
  SELECT called, p_table, greatest(high.mark, (SELECT p.floor FROM fencepost.floors p WHERE p.name = now.name), 0), true
  ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor), covers_rows = true, relation = excluded.relation;
  UPDATE fencepost.protected x SET scope = NULL WHERE x.relation = p_table;
END $$;

-- A table enters a scope: the marks of its rows become their scope's, those of keys without a row the floor of the prefix. None above the ceiling,
-- which would refuse every write in the whole scope, or under the whole prefix. p_key: the table's primary
-- key, which was looked at. p_names: under which the table's marks may be.
CREATE FUNCTION fencepost.bring_marks(p_table regclass, p_key text[], p_template text, p_names text[], p_max_token bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
  now fencepost.protected;
  prefix text := fencepost.scope_prefix(p_template);
  theirs text[] := ARRAY(SELECT fencepost.enc(n) || '/' FROM unnest(p_names) n);
  high record;
BEGIN
  SELECT x.* INTO now FROM fencepost.protected x WHERE x.relation = p_table;
  -- Rows that have left a scope have no marks: the column, if there is one, is of no account.
  IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_table AND a.attname = 'last_fence_token' AND NOT a.attisdropped)
     AND NOT EXISTS (SELECT FROM fencepost.floors_of_rows(p_table, fencepost.name_of(p_table))) THEN
    high := fencepost.highest_mark_of_rows(p_table, fencepost.resource_expression(
      p_table, coalesce(now.name, fencepost.name_of(p_table)), p_key, 'r'), now.name IS NOT NULL);
    PERFORM fencepost.refuse_above(high.resource, high.mark, p_max_token, high.mend);
    EXECUTE format(
      'INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent) SELECT s.scope, s.mark, ''0'', true'
      ' FROM (SELECT %s AS scope, max(r.last_fence_token) AS mark FROM %s AS r WHERE r.last_fence_token > 0 GROUP BY 1) AS s'
      ' ORDER BY s.scope COLLATE "C" ON CONFLICT (resource) DO UPDATE'
      ' SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), row_absent = true',
      fencepost.resource_expression(p_table, prefix, fencepost.scope_columns(p_template), 'r'), p_table);
  END IF;
  SELECT k.* INTO high FROM (
    (SELECT m.resource, m.last_fence_token AS mark, fencepost.mend_reset(quote_literal(m.resource), now.name IS NOT NULL) AS mend
       FROM fencepost.marks m WHERE EXISTS (SELECT FROM unnest(theirs) t WHERE starts_with(m.resource, t)) ORDER BY 2 DESC LIMIT 1)
    UNION ALL
    SELECT f.name, f.floor, fencepost.mend_reset(f.name, true) FROM fencepost.floors f
     WHERE f.name = ANY (p_names) OR f.relation = p_table::oid) AS k ORDER BY k.mark DESC LIMIT 1;
  PERFORM fencepost.refuse_above(high.resource, high.mark, p_max_token, high.mend);
  -- While rows are watched their columns are their marks; else rows may have gone, and their marks do not show it.
  UPDATE fencepost.floors f SET floor = greatest(f.floor,
      (SELECT max(m.last_fence_token) FROM fencepost.marks m
        WHERE EXISTS (SELECT FROM unnest(theirs) t WHERE starts_with(m.resource, t))
          AND (m.row_absent OR now.name IS NULL OR now.scope IS NOT NULL)),
      (SELECT max(t.floor) FROM fencepost.floors t WHERE t.name = ANY (p_names) OR t.relation = p_table::oid))
   WHERE f.name = prefix;
END $$;

-- Rows that have no marks of their own take the table's floor as theirs. What the column of a table that has left a scope holds is of no account,
-- nothing has guarded it. The rows of a table in its place may have been copied with their marks, and none of these falls. Rows that are
-- guarded are left alone. A floor above p_max_token (null: any) is refused, before it becomes the mark of every row.
CREATE FUNCTION fencepost.raise_rows(p_table regclass, p_name text, p_max_token bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lowest bigint;
  unguarded boolean;
  of_floor text;
BEGIN
  SELECT max(f.floor), bool_or(f.relation IS NOT DISTINCT FROM p_table::oid) INTO lowest, unguarded
    FROM fencepost.floors_of_rows(p_table, p_name) f;
  IF lowest IS NULL OR fencepost.is_guarded(p_table) THEN RETURN; END IF;
  IF lowest > p_max_token THEN
    SELECT f.name INTO of_floor FROM fencepost.floors_of_rows(p_table, p_name) f ORDER BY f.floor DESC LIMIT 1;
    RAISE EXCEPTION USING ERRCODE = '54000',
      MESSAGE = format('The floor of %s is %s, above %s, the highest token that the table is to take.',
                       of_floor, lowest, p_max_token),
      HINT = fencepost.mend_reset(of_floor, true);
  END IF;
  PERFORM fencepost.add_mark_column(p_table);
  PERFORM fencepost.write_rows(format(
    'UPDATE %s AS r SET last_fence_token = $1 WHERE r.last_fence_token OPERATOR(pg_catalog.<) $1'
    ' OR %L AND r.last_fence_token OPERATOR(pg_catalog.>) $1', p_table, unguarded), lowest);
  INSERT INTO fencepost.floors AS f (name, floor) VALUES (p_name, lowest)
  ON CONFLICT ON CONSTRAINT floors_pkey DO UPDATE SET floor = greatest(f.floor, excluded.floor);
  UPDATE fencepost.floors f SET covers_rows = false WHERE f.name IN (SELECT o.name FROM fencepost.floors_of_rows(p_table, p_name) o);
END $$;

-- Make the column anew where it is gone from a table whose rows have marks of their own: all rows, and the floor, take what is above every
-- mark (protection.sql). p_above: of an external source, how far its tokens have got. No row is rewritten: a constant default counts for all that are there.
CREATE FUNCTION fencepost.restore_marks(p_table regclass, p_above bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  p fencepost.protected;
  known bigint := p_above;
BEGIN
  SELECT x.* INTO p FROM fencepost.protected x WHERE x.relation = p_table AND x.scope IS NULL;
  IF NOT FOUND OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_table
                             AND a.attname = 'last_fence_token' AND NOT a.attisdropped) THEN
    RETURN;
  END IF;
  -- Whatever was accepted had been issued before; what is drawn from now on is above it.
  IF p.source = 'builtin' THEN
    known := fencepost.issued();
  ELSIF p.source <> 'external' THEN
    known := fencepost.issued(p.source);
  ELSIF known IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = fencepost.lost_marks_reason(fencepost.name_of(p_table));
  END IF;
  known := greatest(known, 0, (SELECT f.floor FROM fencepost.floors f WHERE f.name = p.name),
                    (SELECT max(m.last_fence_token) FROM fencepost.marks m
                      WHERE starts_with(m.resource, fencepost.enc(p.name) || '/')));
  EXECUTE format('ALTER TABLE %s ADD COLUMN last_fence_token bigint NOT NULL DEFAULT %s,'
                 ' ALTER COLUMN last_fence_token SET DEFAULT 0', p_table, known);
  EXECUTE format('ALTER TABLE %s ADD CONSTRAINT fencepost_mark CHECK (last_fence_token >= 0) NOT VALID', p_table);
  INSERT INTO fencepost.floors AS f (name, floor) VALUES (p.name, known)
  ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor);
END $$;
