-- Which tables are protected, and how. `fencepost protect` writes a row here, and makes the table's own functions and triggers
-- (table_functions.sql): these call the functions of judging.sql, bounds.sql and scopes.sql.
--
-- Lock order of every fenced write:  rows (by table and key), each followed by its mark. With a scope: see scopes.sql.

CREATE TABLE fencepost.protected (
  relation        regclass PRIMARY KEY,
  name            text COLLATE "C" NOT NULL CONSTRAINT protected_name_key UNIQUE,
  rule            text NOT NULL CONSTRAINT protected_rule_check CHECK (rule IN ('strict', 'epoch')),
  source          text NOT NULL DEFAULT 'external',
  key_columns     text[] NOT NULL,
  functions       text NOT NULL,
  protected_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  protected_by    text NOT NULL DEFAULT session_user,
  scope           text,
  requires_key    boolean NOT NULL DEFAULT false,
  max_token       bigint CONSTRAINT protected_max_token_check CHECK (max_token > 0),
  max_jump        bigint CONSTRAINT protected_max_jump_check CHECK (max_jump > 0),
  verify          boolean NOT NULL DEFAULT false,
  partitions      regclass[] NOT NULL DEFAULT '{}',
  sealed          boolean NOT NULL DEFAULT false,
  triggers_see_own_row boolean NOT NULL DEFAULT false CONSTRAINT protected_triggers_check CHECK (NOT triggers_see_own_row OR scope IS NULL),
  work            boolean NOT NULL DEFAULT false CONSTRAINT protected_work_check CHECK (NOT work OR scope IS NULL),
  max_attempts    integer CONSTRAINT protected_max_attempts_check CHECK (max_attempts IS NULL OR max_attempts > 0 AND work),
  on_exhausted    jsonb CONSTRAINT protected_on_exhausted_check CHECK ((on_exhausted IS NULL) = (max_attempts IS NULL))
);

COMMENT ON TABLE fencepost.protected IS 'The tables under `fencepost protect`. name is the prefix of their resources and never changes with the table''s; functions is the common start of their trigger functions'' names.';

COMMENT ON COLUMN fencepost.protected.max_token IS 'The highest token that a table of the source external takes. Null for other sources: they know what they have issued.';

COMMENT ON COLUMN fencepost.protected.max_jump IS 'How far a token may be above the mark that it raises, in a table of the source external. Null: any distance.';

COMMENT ON COLUMN fencepost.protected.verify IS 'Whether the gateway asks the source about tokens that it does not know, before a mark is raised under them.';

COMMENT ON COLUMN fencepost.protected.sealed IS 'Whether the gateway takes only tokens with a seal, for resources that the seal is bound to. Direct SQL has no seals: here the number alone counts.';

COMMENT ON COLUMN fencepost.protected.triggers_see_own_row IS 'Whether the owner vouches for triggers of rows that the gateway does not understand: the table''s writes share transactions all the same.';

COMMENT ON COLUMN fencepost.protected.work IS 'Whether workers take the table''s rows, the next free one each time: a trigger tells those that wait when rows are written.';

COMMENT ON COLUMN fencepost.protected.max_attempts IS 'How often a row may be taken by workers before it is put aside. Null: any number of times.';

COMMENT ON COLUMN fencepost.protected.on_exhausted IS 'What puts a row aside that was taken max_attempts times: a JSON object of columns and their values, as the body of a PATCH has them. Null: max_attempts is.';

COMMENT ON COLUMN fencepost.protected.partitions IS 'The partitions, at any depth, whose rows have the marks of their keys. One that is attached and not here has to be looked at by `fencepost protect`.';

-- Raised by statements that were written for another table than the one which has the name now, or for other columns. STABLE: a
-- condition that calls it is looked at once and before all rows, also by a statement that meets none.
CREATE FUNCTION fencepost.outdated(tab text) RETURNS void LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP000', MESSAGE = format('%s is not the table that was looked at, or has other columns', tab);
END $$;

-- Raised by statements of the gateway's that met, or made, a row in a table, a partition or a child where the fence's trigger is missing
-- or disabled, or that run where no trigger fires: the row would leave no mark. STABLE: as `outdated` is.
CREATE FUNCTION fencepost.unfenced(tab text) RETURNS bigint LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP005',
    MESSAGE = format('the fence of %s does not fire: a trigger of it is missing or disabled, on the table or on one that takes its rows,'
                     ' or session_replication_role is replica', tab),
    HINT = format('`fencepost doctor` shows what is wrong; `fencepost protect %s` mends it.', tab);
END $$;

-- Whether columns of a table are called so still: names may have been exchanged. IMMUTABLE, though it is not: PostgreSQL calls it when it
-- plans a statement about the table, and plans again once that was altered. What it calls reads the catalog as it is at that moment,
-- not as the statement's snapshot has it, and takes no lock.
CREATE FUNCTION fencepost.are_called(p_table oid, p_numbers integer[], p_columns text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  FOR n IN 1 .. cardinality(p_columns) LOOP
    IF (pg_identify_object_as_address('pg_class'::regclass, p_table, p_numbers[n])).object_names[3] IS DISTINCT FROM p_columns[n] THEN
      RETURN false;
    END IF;
  END LOOP;
  RETURN true;
END $$;

-- Whether a trigger of the fence fires in this session on a table, and on all that take its rows: its partitions, and tables that inherit
-- from it, which have none. `fires_as_planned` is asked when a statement is planned, as `are_called` is, and again once the table or
-- session_replication_role was changed. `fires` is VOLATILE, and so looks at what is committed at that moment: the statement's
-- snapshot may be from before it got the table's lock.
CREATE FUNCTION fencepost.fires(p_table oid, p_trigger text) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN NOT EXISTS (
    WITH RECURSIVE part(oid) AS (
      SELECT p_table UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
    SELECT FROM part WHERE NOT EXISTS (
      SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid AND t.tgname = p_trigger
         AND t.tgenabled IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)));
END $$;

CREATE FUNCTION fencepost.fires_as_planned(p_table oid, p_trigger text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$ BEGIN RETURN fencepost.fires(p_table, p_trigger); END $$;

-- A BEFORE trigger of the table's owner kept a write from happening that the fence had let pass. The error undoes what else the
-- statement did: an answer that is no success must have no effect.
CREATE FUNCTION fencepost.suppressed(tab text) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP403', MESSAGE = format('a trigger or rule of %s suppressed the write', tab),
    HINT = 'A BEFORE trigger that returns NULL, or a rule, keeps rows from being written through Fencepost.';
END $$;

-- Raised by a statement whose rows have more bytes than an answer may have (postgres/answers.py). The error undoes the
-- write: nobody would learn what it did.
CREATE FUNCTION fencepost.too_large(most bigint) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('The rows have more than %s bytes.', most),
    HINT = 'A shorter ?select= takes less of each row (a column that it names several times counts as often), fewer rows are less, and a'
      ' write under Prefer: return=minimal answers none; FENCEPOST_MAX_ANSWER_BYTES.';
END $$;

-- How many digits the exponents of the numbers in a text stand for, at most: `1e131071` has 131,072 as a number. Without quotes and
-- backslashes, which may stand anywhere in the text of an array or a composite.
CREATE FUNCTION fencepost.digits(value text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT sum(least(nullif(pg_catalog.replace(m[1], '_', ''), '')::numeric, 131072))::bigint
          FROM pg_catalog.regexp_matches(pg_catalog.translate(value, '"\', ''), '[0-9.][eE][-+]?([0-9_]+)', 'g') AS m);

CREATE FUNCTION fencepost.no_truncate() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FP428',
    MESSAGE = format('%I.%I is protected: TRUNCATE would forget its marks', TG_TABLE_SCHEMA, TG_TABLE_NAME),
    HINT = 'DELETE the rows with a token, or `fencepost unprotect` the table first.';
END $$;
