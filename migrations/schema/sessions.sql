-- What makes a session of the gateway again what it was when it was opened (postgres/connection.py), after code of users' ran in it:
-- a trigger, a policy, a function in a default. Whoever may run such code may run this. No SET clause, which would bring back what it
-- resets; so names are full, against any search_path. RESET ALL leaves the two roles alone, and knows settings of any name.
-- p_ended: the transaction in which the code ran is over. Its temporary tables may have triggers that are to fire at its end.
CREATE FUNCTION fencepost.restore_session(p_names text[], p_values text[], p_ended boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_catalog.pg_advisory_unlock_all();
  RESET SESSION AUTHORIZATION;
  RESET ROLE;
  RESET ALL;
  EXECUTE 'CLOSE ALL';  -- CLOSE by itself is PL/pgSQL's own
  UNLISTEN *;
  DISCARD SEQUENCES;
  IF p_ended THEN DISCARD TEMP; END IF;
  FOR n IN 1 .. pg_catalog.cardinality(p_names) LOOP
    IF p_names[n] OPERATOR(pg_catalog.<>) 'synchronous_commit'
       OR pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) 'remote_apply' THEN
      PERFORM pg_catalog.set_config(p_names[n], p_values[n], false);
    END IF;
  END LOOP;
END $$;
