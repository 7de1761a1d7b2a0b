-- What callers were refused for who they are: counted by caller, code and day, not one by one. Gateways add what they have
-- counted every few seconds.

CREATE TABLE fencepost.refusals (
  day      date NOT NULL,
  caller   text COLLATE "C" NOT NULL,
  code     text COLLATE "C" NOT NULL,
  count    bigint NOT NULL,
  first_at timestamptz NOT NULL,
  last_at  timestamptz NOT NULL,
  detail   text NOT NULL,
  CONSTRAINT refusals_pkey PRIMARY KEY (day, caller, code)
);

COMMENT ON TABLE fencepost.refusals IS 'Refused for who the caller is: a token or key that is not accepted, a scope, role or lock that it has not, too many requests. caller: its name, or `address` and the address of one that is not known; `others` are those beyond the most that a gateway counts apart. detail: of the last one. Rows of 30 days are kept.';

-- Add counts. The arrays have one element for each caller and code. Rows are taken in their order, so that two gateways do not
-- wait for each other in a circle; what a crash takes away is only a count.
CREATE FUNCTION fencepost.add_refusals(p_callers text[], p_codes text[], p_counts bigint[], p_details text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO fencepost.refusals AS r (day, caller, code, count, first_at, last_at, detail)
  SELECT current_date, u.caller, u.code, u.count, clock_timestamp(), clock_timestamp(), u.detail
    FROM unnest(p_callers, p_codes, p_counts, p_details) u(caller, code, count, detail) ORDER BY u.caller COLLATE "C", u.code COLLATE "C"
  ON CONFLICT (day, caller, code) DO UPDATE
     SET count = r.count + excluded.count, last_at = excluded.last_at, detail = excluded.detail;
  DELETE FROM fencepost.refusals r WHERE r.day < current_date - 30;
END $$;
