"""Fences with a hole each, for the storm's control: SQL that is run right after `fencepost migrate`."""

from typing import Final

_MUTANT: Final = """
DO $mutate$
DECLARE
  original text := pg_get_functiondef('{function}'::regprocedure);
  mutant text := replace(original, $old${old}$old$, $new${new}$new$);
BEGIN
  ASSERT mutant <> original, 'the line to change is not in {function} any more';
  EXECUTE mutant;
END $mutate$;
"""


def _mutant(function: str, old: str, new: str) -> str:
    return _MUTANT.format(function=function, old=old, new=new)


SABOTAGE: Final = {
    "raise_mark takes every token": _mutant(
        "fencepost.raise_mark(text, bigint, text, boolean)", "RETURN refused_by;", "RETURN NULL;"
    ),
    "a DELETE leaves no mark": _mutant(
        "fencepost.judge_delete(text, text, bigint, text, xid)",
        "VALUES (p_resource, token, pg_current_xact_id(), true)",
        "SELECT p_resource, token, pg_current_xact_id(), true WHERE false",
    ),
    "a floor does not rise when a table leaves its scope": """
CREATE FUNCTION storm.lower_floor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.floor := CASE WHEN TG_OP = 'INSERT' THEN 0 ELSE OLD.floor END;
  RETURN NEW;
END $$;
CREATE TRIGGER a_saboteur BEFORE INSERT OR UPDATE ON fencepost.floors
  FOR EACH ROW EXECUTE FUNCTION storm.lower_floor();
""",
}
