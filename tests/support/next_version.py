"""A version of Fencepost that is still to come: this one's migrations, and a revision more.

The revision is made from the template that `alembic revision` takes, and its change as a real one would be: by the
revision, for a schema that is there, and in the files of migrations/schema, for a new one.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from alembic import command
from alembic.config import Config

from fencepost.server.ops import schema

REVISION: Final = "9999"
CHANGE: Final = ("ALTER TABLE fencepost.marks ADD COLUMN future integer",)
FILES: Final = {"marks.sql": ("clock_timestamp()\n) WITH", "clock_timestamp(),\n  future integer\n) WITH")}
"""By file, what is replaced, and by what."""


@contextmanager
def next_version(
    directory: Path,
    works_from: str,
    change: Sequence[str] = CHANGE,
    files: Mapping[str, tuple[str, str]] = FILES,
) -> Iterator[None]:
    """Be the next version, whose schema works for gateways from a revision on."""
    scripts = directory / "migrations"
    shutil.copytree(schema.scripts_dir(), scripts, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    decided = "CREATE OR REPLACE FUNCTION fencepost.compatible_from() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE"
    _revise(scripts, [*change, f"{decided} RETURN '{works_from}'::text"])
    for name, (old, new) in {
        **files,
        "versions.sql": (f"'{schema.newest()}'::text", f"'{works_from}'::text"),
    }.items():
        path = scripts / "schema" / name
        text = path.read_text("utf-8")
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "scripts_dir", lambda: scripts)
        yield


def _revise(scripts: Path, statements: Sequence[str]) -> None:
    config = Config()
    config.set_main_option("script_location", str(scripts))
    command.revision(config, "The future", head=schema.newest(), rev_id=REVISION)
    (path,) = (scripts / "versions").glob(f"{REVISION}_*.py")
    guard = "        return  # made from migrations/schema just now\n"
    before, found, after = path.read_text("utf-8").partition(guard)
    assert found, "the template has no guard"
    steps = "".join(f"    op.execute({statement!r})\n" for statement in statements)
    undo = after.replace("    pass", '    op.execute("ALTER TABLE fencepost.marks DROP COLUMN IF EXISTS future")')
    path.write_text(before + guard + steps + undo, "utf-8")
