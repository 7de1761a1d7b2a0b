"""The recipes of docs/direct-sql.md: code blocks after `<!-- recipe: NAME -->`. What the page says is what runs."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "direct-sql.md"
_RECIPE = re.compile(
    r"^<!-- recipe: (?P<name>[\w-]+) -->\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


def recipe(name: str) -> str:
    """Return the text of one recipe; KeyError if the page has none of this name."""
    return recipes()[name]


def recipes() -> dict[str, str]:
    """Return all recipes by name."""
    return {found["name"]: found["code"] for found in _RECIPE.finditer(PAGE.read_text("utf-8"))}


def run_recipe(name: str) -> dict[str, Any]:
    """Run a recipe in Python; returns the names that it defines."""
    names: dict[str, Any] = {}
    exec(compile(recipe(name), f"{PAGE.name}:{name}", "exec"), names)
    return names
