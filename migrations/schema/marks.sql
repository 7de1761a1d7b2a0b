-- Marks: the highest token that wrote a resource (R6). The mark of a live row is its own column last_fence_token.
-- fencepost.marks holds those that have no row to stand in: of deleted rows, of keys that were claimed before they existed, of
-- scopes.
--
-- Invariant: while a row lives, its own last_fence_token is its mark, and is >= what fencepost.marks holds for it.
--            fencepost.marks decides only for keys without a live row.
--            A mark that was pruned (pruning.sql) is replaced by the floor of its table or scope, which is not lower.

CREATE TABLE fencepost.marks (
  resource         text COLLATE "C" PRIMARY KEY,
  last_fence_token bigint NOT NULL CONSTRAINT marks_token_check CHECK (last_fence_token > 0),
  xid              xid8 NOT NULL,
  row_absent       boolean NOT NULL,
  changed_at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 80);

COMMENT ON TABLE fencepost.marks IS 'Marks that outlive their rows (R6). xid is the transaction that raised the mark: one operation is one transaction''s work. row_absent: the row was deleted or never created.';

CREATE TABLE fencepost.floors (
  name        text COLLATE "C" PRIMARY KEY,
  floor       bigint NOT NULL DEFAULT 0 CONSTRAINT floors_floor_check CHECK (floor >= 0),
  key         jsonb,
  covers_rows boolean NOT NULL DEFAULT false,
  relation    oid
);

COMMENT ON TABLE fencepost.floors IS 'Per protected table: marks of deleted rows up to here may have been pruned, so nothing may be inserted under such a token (R6). Outlives unprotect.';

COMMENT ON COLUMN fencepost.floors.key IS 'From which primary key the names of the marks were rendered: see fencepost.key_of.';

COMMENT ON COLUMN fencepost.floors.covers_rows IS 'Whether the floor holds for rows that are there, too: the table has left a scope, whose marks its rows do not have. Its next protection by rows writes it into them.';

COMMENT ON COLUMN fencepost.floors.relation IS 'The table that was unprotected under this name: it may be renamed before it is protected again.';

-- Marks and floors never fall, whatever statement writes them. One statement may lower one: an operator's, in a transaction
-- that names it (a resource, or the name of a floor) in the setting fencepost.lowering. The setting by itself allows
-- nothing: only the owner of these tables may update them at all.
CREATE FUNCTION fencepost.lowering(p_name text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT coalesce(current_setting('fencepost.lowering', true) = p_name, false) $$;

CREATE FUNCTION fencepost.never_lower() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name text := coalesce(to_jsonb(OLD) ->> 'resource', to_jsonb(OLD) ->> 'name');
BEGIN
  IF fencepost.lowering(name) THEN RETURN NULL; END IF;
  RAISE EXCEPTION USING ERRCODE = '55000',
    MESSAGE = format('%s: marks never fall, and this statement lowers its %s in fencepost.%s', name,
                     CASE TG_TABLE_NAME WHEN 'marks' THEN 'mark' ELSE 'floor' END, TG_TABLE_NAME),
    DETAIL = json_build_object('before', to_jsonb(OLD), 'after', to_jsonb(NEW))::text,
    HINT = format('Tokens up to the old value could write again. A mark of a made-up token is lowered by: fencepost'
                  ' fence reset %L --to N --reason …', name);
END $$;

-- After the row and not before: a BEFORE trigger would lock each mark once more. The condition is all that the plain case
-- costs.
CREATE TRIGGER never_lower AFTER UPDATE ON fencepost.marks FOR EACH ROW
  WHEN (NEW.last_fence_token < OLD.last_fence_token) EXECUTE FUNCTION fencepost.never_lower();

CREATE TRIGGER never_lower AFTER UPDATE ON fencepost.floors FOR EACH ROW
  WHEN (NEW.floor < OLD.floor) EXECUTE FUNCTION fencepost.never_lower();

-- The floor of a table, NULL where nothing was ever pruned.
CREATE FUNCTION fencepost.floor_of(tab text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT nullif(f.floor, 0) FROM fencepost.floors f WHERE f.name = tab $$;

-- Each protected table and scope has a floor. Where it is not seen nothing can be judged, so nothing passes.
CREATE FUNCTION fencepost.no_floor(tab text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = '40001',
      MESSAGE = format('could not serialize access: %s was protected after this transaction began', tab),
      HINT = 'Run the transaction again.';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'FP000',
    MESSAGE = format('%s has lost its floor: there is no row for it in fencepost.floors', tab),
    HINT = 'A restored dump or a replica without fencepost.floors? Bring its rows back, or `fencepost protect` the table again.';
END $$;

-- R5: the mark of a key that has no row (deleted, or claimed before it existed), or the floor below which such marks
-- were forgotten. NULL: neither.
CREATE FUNCTION fencepost.mark_without_row(tab text, p_resource text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT greatest((SELECT k.last_fence_token FROM fencepost.marks k WHERE k.resource = p_resource AND k.row_absent),
                   fencepost.floor_of(tab)) $$;

-- What is recorded of a resource apart from its row: for GET /v1/fences.
CREATE FUNCTION fencepost.mark_record(p_resource text)
RETURNS TABLE (last_fence_token bigint, row_absent boolean, changed_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT k.last_fence_token, k.row_absent, k.changed_at FROM fencepost.marks k WHERE k.resource = p_resource $$;
