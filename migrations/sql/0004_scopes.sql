-- Scopes (R8): one mark for all rows that render to the same name. Statements are separated by a line of "-- next".
--
-- Lock order:  the prefix (shared; `protect` takes it alone, after its table)  ->  scope marks (sorted, COLLATE "C")
--              ->  rows. Direct SQL has locked its row when the trigger enters: it may meet a 40P01, never a wrong answer.
-- A scope's mark has row_absent = true: it is pruned, and replaced by its prefix's floor, like that of an absent key.

ALTER TABLE fencepost.floors ADD COLUMN covers_rows boolean NOT NULL DEFAULT false, ADD COLUMN relation oid;
-- next
COMMENT ON COLUMN fencepost.floors.covers_rows IS 'Whether the floor holds for rows that are there, too: the table has left a scope, whose marks its rows do not have. Its next protection by rows writes it into them.';
-- next
COMMENT ON COLUMN fencepost.floors.relation IS 'The table that was unprotected under this name: it may be renamed before it is protected again.';
-- next
-- Whose the marks under a name are. A table's resources keep the name that it was protected under; renamed while nothing
-- protects it, its marks wait under the old name, and floors.relation says that they are its own. Another table may take the
-- name meanwhile, also one with the same data (a copy that was swapped in). So no mark is taken away from either of them.

-- What the API calls a table, and protect its resources: see catalog_load.api_name. NULL: there is no such table.
CREATE FUNCTION fencepost.name_of(p_relation oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN n.nspname = 'public' AND strpos(c.relname, '.') = 0 THEN c.relname::text
              ELSE n.nspname || '.' || c.relname END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = p_relation AND c.relkind IN ('r', 'p') $$;
-- next
-- Give what is remembered under p_old to p_new as well. The higher of two marks counts. Where both have marks, and not of
-- the same key, it is not known any more of which key the names are.
CREATE FUNCTION fencepost.copy_marks(p_old text, p_new text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old_prefix text := fencepost.enc(p_old) || '/';
  new_prefix text := fencepost.enc(p_new) || '/';
BEGIN
  INSERT INTO fencepost.floors AS f (name, floor, key)
  SELECT p_new, o.floor, o.key FROM fencepost.floors o WHERE o.name = p_old
  ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor),
     key = CASE WHEN NOT EXISTS (SELECT FROM fencepost.marks k WHERE starts_with(k.resource, new_prefix)) THEN excluded.key
                WHEN NOT EXISTS (SELECT FROM fencepost.marks k WHERE starts_with(k.resource, old_prefix))
                     OR f.key = excluded.key THEN f.key END;
  INSERT INTO fencepost.marks AS k
  SELECT new_prefix || substr(o.resource, length(old_prefix) + 1), o.last_fence_token, o.xid, o.row_absent, o.changed_at
    FROM fencepost.marks o WHERE starts_with(o.resource, old_prefix)
  ON CONFLICT (resource) DO UPDATE SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token),
     row_absent = excluded.row_absent;
END $$;
-- next
-- The table p_relation was renamed from p_old to p_new: its marks and its floor follow it. They stay under the old name as
-- well where another table has that name, or has left marks there.
CREATE FUNCTION fencepost.move_marks(p_relation oid, p_old text, p_new text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.copy_marks(p_old, p_new);
  IF NOT EXISTS (SELECT FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.oid <> p_relation
                    AND (fencepost.name_of(c.oid) = p_old
                         OR c.oid = (SELECT f.relation FROM fencepost.floors f WHERE f.name = p_old))) THEN
    DELETE FROM fencepost.marks k WHERE starts_with(k.resource, fencepost.enc(p_old) || '/');
  END IF;
END $$;
-- next
-- The table p_relation takes the name p_name. Marks and floor of another table that was unprotected under this name, and
-- lives on under another one, are copied to the name that it has now; and what is there, to whose they are, until nobody is
-- left. Before that the table's own marks have been moved to p_name.
CREATE FUNCTION fencepost.take_name(p_relation oid, p_name text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  left_by fencepost.floors;
  called text := p_name;
  next_by fencepost.floors;
  seen oid[] := ARRAY[p_relation];
BEGIN
  SELECT f.* INTO left_by FROM fencepost.floors f WHERE f.name = p_name;
  -- Not for the rows of the table that takes the name: they are others.
  UPDATE fencepost.floors f SET relation = NULL, covers_rows = false
   WHERE f.name = p_name AND f.relation <> p_relation AND fencepost.name_of(f.relation) IS NOT NULL;
  LOOP
    EXIT WHEN left_by.relation IS NULL OR left_by.relation = ANY (seen) OR fencepost.name_of(left_by.relation) IS NULL;
    seen := seen || left_by.relation;
    SELECT f.* INTO next_by FROM fencepost.floors f WHERE f.name = fencepost.name_of(left_by.relation);
    PERFORM fencepost.copy_marks(called, fencepost.name_of(left_by.relation));
    called := fencepost.name_of(left_by.relation);
    UPDATE fencepost.floors f
       SET relation = left_by.relation,
           covers_rows = left_by.covers_rows OR f.covers_rows AND f.relation IS NOT DISTINCT FROM left_by.relation
     WHERE f.name = called;
    left_by := next_by;
  END LOOP;
END $$;
-- next
-- Raise the marks of scopes, in a statement of its own: whatever follows sees what older holders have committed.
-- refused_by is null where the token was accepted, else the mark or floor that refused it. If one refuses, the caller
-- rolls all of it back. p_table and p_template are what the gateway believes of a table: raises FP000 if it is not so.
CREATE FUNCTION fencepost.enter(p_prefix text, p_scopes text[], p_token bigint, p_table oid DEFAULT NULL,
                                p_template text DEFAULT NULL)
RETURNS TABLE (scope text, refused_by bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fresh boolean := current_setting('transaction_isolation') = 'read committed';
  found_rule text;
  found_source text;
  lowest bigint;
  passed boolean := true;
BEGIN
  -- Rule and source as they are now: who changes them waits for us, or we for him. A claim locks no table.
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('fencepost.scope/' || p_prefix, 0));
  IF fresh THEN
    SELECT p.rule, p.source INTO found_rule, found_source FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1;
  ELSE  -- an old snapshot must fail (40001), not read an old rule
    SELECT p.rule, p.source INTO found_rule, found_source FROM fencepost.protected p
     WHERE left(p.scope, strpos(p.scope, '/{') - 1) = p_prefix LIMIT 1 FOR SHARE;
  END IF;
  IF NOT FOUND THEN PERFORM fencepost.outdated(p_prefix); END IF;
  -- After the lock: until this transaction ends the table cannot leave the scope any more.
  IF p_table IS NOT NULL AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = p_table AND p.scope = p_template)
  THEN
    PERFORM fencepost.outdated(p_table::regclass::text);
  END IF;
  FOR scope IN SELECT DISTINCT u.name COLLATE "C" FROM unnest(p_scopes) AS u(name) ORDER BY 1 LOOP
    refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);
    IF refused_by IS NULL THEN
      -- In a statement of its own, after the mark: a floor read before the wait could be too old.
      IF fresh THEN
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;
      ELSE
        SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix FOR SHARE;
      END IF;
      IF NOT FOUND THEN PERFORM fencepost.no_floor(p_prefix); END IF;
      IF NOT (lowest < p_token OR lowest = p_token AND found_rule = 'epoch') THEN refused_by := lowest; END IF;
    END IF;
    passed := passed AND refused_by IS NULL;
    RETURN NEXT;
  END LOOP;
  IF passed AND found_source = 'builtin' THEN PERFORM fencepost.require_issued(p_scopes[1], p_token); END IF;
END $$;
-- next
-- What the triggers of a scoped table ask for each row: before it is written, and once more after an INSERT, for
-- somebody's trigger may have moved the row to another scope in between. The gateway has entered the scope before, and so
-- has whoever wrote another row of it in this transaction: one transaction is one operation (R1).
CREATE FUNCTION fencepost.judge_scope(tab text, p_prefix text, p_scope text, p_verb text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  token bigint;
  refused bigint;
BEGIN
  PERFORM FROM fencepost.marks k  -- ours: xid may have come from another database, see raise_mark
    WHERE k.resource = p_scope AND k.xid = pg_current_xact_id() AND fencepost.ours(k.xmin);
  IF FOUND THEN RETURN; END IF;
  IF fencepost.break_glass() THEN
    PERFORM fencepost.record_break_glass(tab, p_scope, p_verb);
    -- The mark stays what it is, or none, and is locked: whoever claims the scope waits, and then sees this write.
    PERFORM fencepost.meet_mark(p_scope);
    RETURN;
  END IF;
  token := fencepost.given(tab);
  IF token IS NULL THEN PERFORM fencepost.refuse(p_scope, NULL, NULL); END IF;
  SELECT e.refused_by INTO refused FROM fencepost.enter(p_prefix, ARRAY[p_scope], token) e;
  IF refused IS NOT NULL THEN PERFORM fencepost.refuse(p_scope, token, refused); END IF;
END $$;
-- next
-- A row without a scope, or one that would leave it.
CREATE FUNCTION fencepost.no_scope(tab text, p_template text, p_changed boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP400',
    MESSAGE = format(CASE WHEN p_changed THEN '%s: the columns of the scope %s cannot change'
                          ELSE '%s: a column of the scope %s is null' END, tab, p_template),
    HINT = CASE WHEN p_changed THEN 'Delete the row and insert it under its new scope, each with a token.'
           ELSE 'Every row has a scope: give each of its columns a value.' END;
END $$;
-- next
REVOKE EXECUTE ON FUNCTION fencepost.enter(text, text[], bigint, oid, text), fencepost.judge_scope(text, text, text, text)
  FROM PUBLIC;
