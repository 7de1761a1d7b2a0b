-- Workers take the next row of a table (`fencepost protect --work`). Those for whom there is none wait: which gateways do is in
-- fencepost.watched, and the table's trigger zzz_fencepost_work tells them when rows are written. Where nobody waits, that costs a statement one
-- look at an index, and no NOTIFY: transactions that notify commit one after the other, in all of the database.
--
-- A hint and no promise: a statement that began before a gateway was seen to wait, or in a snapshot from before that, tells it nothing.

CREATE TABLE fencepost.watched (
  relation oid,
  line     uuid,
  until    timestamptz NOT NULL,
  PRIMARY KEY (relation, line)
) WITH (fillfactor = 50);

COMMENT ON TABLE fencepost.watched IS 'Which gateways, by their lines of waiters, wait for rows of a table now, and until when at most unless they say so again.';

-- Say, for 30 s, that a gateway waits for rows of a table. In a transaction of its own, whose commit waits for no flush of the log.
CREATE FUNCTION fencepost.watch(p_relation oid, p_line uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO fencepost.watched AS w (relation, line, until) VALUES (p_relation, p_line, clock_timestamp() + interval '30 s')
  ON CONFLICT (relation, line) DO UPDATE SET until = excluded.until;
END $$;

-- Say that it waits no more. In a transaction of its own, too.
CREATE FUNCTION fencepost.unwatch(p_line uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  DELETE FROM fencepost.watched w WHERE w.line = p_line;
END $$;

-- A statement has written rows of a table, or of one of its partitions: tell those that wait for them, unless it is a gateway's that takes rows
-- (the setting fencepost.taking). In the name of the schema's owner: writers may not read who waits.
CREATE FUNCTION fencepost.work_there() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root oid;
BEGIN
  IF current_setting('fencepost.taking', true) = 'on' THEN RETURN NULL; END IF;
  root := coalesce(pg_partition_root(TG_RELID), TG_RELID);
  IF EXISTS (SELECT FROM fencepost.watched w WHERE w.relation = root AND w.until > clock_timestamp()) THEN
    PERFORM pg_notify('fencepost_work', root::text);
  END IF;
  RETURN NULL;
END $$;

-- What gateways are asked for the next row by: `fencepost doctor` looks whether an index gives the rows so. No values, and 20 questions a table.
CREATE TABLE fencepost.questions (
  relation oid,
  matched  text[] COLLATE "C",
  ordered  text[] COLLATE "C",
  asked_at timestamptz NOT NULL,
  PRIMARY KEY (relation, matched, ordered)
);

COMMENT ON TABLE fencepost.questions IS 'How rows of a table were asked for, by columns that are compared for equality, and in which order; and when last, to the day.';

-- Note a question. In a transaction of its own, whose commit waits for no flush of the log.
CREATE FUNCTION fencepost.note_question(p_relation oid, p_matched text[], p_ordered text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO fencepost.questions AS q (relation, matched, ordered, asked_at)
  SELECT p_relation, p_matched, p_ordered, clock_timestamp()
   WHERE (SELECT count(*) FROM fencepost.questions o WHERE o.relation = p_relation AND (o.matched, o.ordered) <> (p_matched, p_ordered)) < 20
  ON CONFLICT (relation, matched, ordered) DO UPDATE SET asked_at = excluded.asked_at WHERE q.asked_at < excluded.asked_at - interval '1 hour';
END $$;
