"""The table of docs/combining.md, written of docs/combining.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "combining.md"
FIGURES: Final = ROOT / "docs" / "combining.json"
BEGIN: Final = "<!-- of combining.json -->"
END: Final = "<!-- end -->"

_COLUMNS: Final = ("lock", "queue", "fence", "sent", "duplicates", "stale", "without effect", "wrong at the end")


def table(measured: Mapping[str, Any]) -> str:
    """Write the table."""
    return "\n".join(
        [f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|", *(_line(row) for row in measured["rows"])]
    )


def _line(row: Mapping[str, Any]) -> str:
    on = ["on" if row[layer] else "off" for layer in ("lock", "queue", "fence")]
    counts = [str(row[count]) for count in ("sent", "duplicates", "stale", "without_effect", "wrong_at_the_end")]
    return f"| {' | '.join([*on, *counts])} |"


def broken(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List what the page says and these rows do not show."""
    found = []
    by_layers = {(row["lock"], row["queue"], row["fence"]): row for row in rows}
    for (lock, queue, fence), row in by_layers.items():
        name = f"lock {lock}, queue {queue}, fence {fence}"
        if fence == (row["duplicates"] > 0):
            found.append(f"{name}: {row['duplicates']} duplicates")
        if not (queue and fence) and not row["stale"]:
            found.append(f"{name}: no stale effect")
        if queue and row["without_effect"]:
            found.append(f"{name}: {row['without_effect']} events without effect")
        if queue and fence and (row["stale"] or row["wrong_at_the_end"]):
            found.append(f"{name}: {row['stale']} stale effects, {row['wrong_at_the_end']} wrong orders")
        if lock and row["sent"] >= by_layers[False, queue, fence]["sent"]:
            found.append(f"{name}: {row['sent']} sent, no fewer than without the lock")
    return found


def write(seed: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the figures, and the page's table."""
    measured = {"command": f"python -m benchmarks.layers --seed {seed}", "seed": seed, "rows": list(rows)}
    FIGURES.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(measured)}\n\n{END}{after}", "utf-8")
