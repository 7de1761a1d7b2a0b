"""The figures of `python -m benchmarks.sources`, put together: as JSON, and as the table in docs/sources.md.

`python -m benchmarks.source_report` writes the committed figures into that page; a test compares the two.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import REPOSITORY
from benchmarks.report import RESULTS, summary
from benchmarks.source_clients import BUILTIN
from benchmarks.source_measures import Round
from benchmarks.source_services import KINDS, Kind

LATEST: Final = RESULTS / "sources.json"
KEPT: Final = RESULTS / "sources-2-cores.json"
"""Committed: what the page shows."""
PAGE: Final = REPOSITORY / "docs" / "sources.md"
BEGIN: Final = "<!-- python -m benchmarks.source_report writes the lines from here -->\n"
END: Final = "<!-- to here -->\n"
QUIET: Final = 0.1
"""Share of the cores that others may use without spoiling a run."""

Report = dict[str, Any]


def report(about: Mapping[str, Any], measured: Mapping[str, Sequence[Round]], versions: Mapping[str, str]) -> Report:
    """Put a run together. `measured` has each source's rounds by its name, `versions` the servers'."""
    kinds = {kind.name: kind for kind in KINDS}
    base = measured[BUILTIN]
    return {
        **about,
        "sources": {
            name: {**_about(kinds[name], versions[name]), **_figures(rounds), "by_builtin": _ratios(rounds, base)}
            for name, rounds in measured.items()
        },
    }


def _about(kind: Kind, version: str) -> dict[str, Any]:
    return {"server": kind.what, "version": version, "hold_ends_after_s": kind.crash_s, "ended_by": kind.ended_by}


def _figures(rounds: Sequence[Round]) -> dict[str, Any]:
    ways = {
        way: {
            figure: summary([getattr(getattr(each, way), figure) for each in rounds], 3)
            for figure in asdict(getattr(rounds[0], way))
        }
        for way in ("gateway", "alone")
    }
    others = ("crashed_process_s", "crashed_client_s", "busy_before")
    return {**ways, **{figure: summary([getattr(each, figure) for each in rounds], 3) for figure in others}}


def pair_ms(each: Round) -> float:
    """Return what an acquire and a release take through the gateway, of the medians."""
    return each.gateway.acquire_p50_ms + each.gateway.release_p50_ms


def _ratios(rounds: Sequence[Round], base: Sequence[Round]) -> dict[str, float]:
    """Compare acquire and release through the gateway with the built-in source's in the same round."""
    return summary([pair_ms(ours) / pair_ms(theirs) for ours, theirs in zip(rounds, base, strict=True)], 3)


def write(made: Report, path: Path) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def noise(made: Report) -> str:
    """Return whether the machine was ours alone."""
    busy = max(each["busy_before"]["highest"] for each in made["sources"].values())
    verdict = "quiet" if busy <= QUIET else "not quiet, so take every figure as a rough one"
    return f"before the cells others, and the idle servers, used up to {busy:.0%} of the cores: {verdict}"


def markdown(made: Report) -> str:
    """Write the table for the page, with what it was measured on."""
    machine = made["machine"]
    return "\n".join(
        [
            "| source | acquire p50 / p99 | release p50 / p99 | by builtin | alone, acquire p50 | alone, release p50"
            " | after a release | a client dies | its gateway dies |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *_rows(made),
            "",
            f"ms; the last two in seconds. Medians of {made['rounds']} rounds on {machine['cores']} cores"
            f" ({machine['cpu']}), which load, gateway, PostgreSQL {made['postgresql']['server_version']} and all lock"
            f" services share; an fdatasync takes {machine['fdatasync_us']:g} µs there. {noise(made).capitalize()}."
            f" Revision {machine['revision']}.",
            *_left_out(made),
            "",
        ]
    )


def _rows(made: Report) -> Iterator[str]:
    for name, each in made["sources"].items():
        gateway, alone = each["gateway"], each["alone"]
        cells = [
            f"{name}: {each['server']}",
            f"{_of(gateway, 'acquire_p50_ms')} / {_of(gateway, 'acquire_p99_ms')}",
            f"{_of(gateway, 'release_p50_ms')} / {_of(gateway, 'release_p99_ms')}",
            _of(each, "by_builtin"),
            _of(alone, "acquire_p50_ms"),
            _of(alone, "release_p50_ms"),
            _of(gateway, "handover_ms"),
            f"{_of(each, 'crashed_client_s')}",
            f"{_of(each, 'crashed_process_s')} ({each['ended_by']}: {each['hold_ends_after_s']:g})",
        ]
        yield f"| {' | '.join(cells)} |"


def _of(figures: Mapping[str, Any], name: str) -> str:
    return f"{figures[name]['median']:.2f}"


def _left_out(made: Report) -> Iterator[str]:
    if made["left_out"]:
        yield ""
        yield "Not measured: " + "; ".join(f"{name} ({why})" for name, why in made["left_out"].items()) + "."


def inserted(page: str, table: str) -> str:
    """Put the table into a page, between its two marks. ValueError when they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}{table}{end}{after}"


def main() -> None:
    """Write the committed figures into the page."""
    PAGE.write_text(inserted(PAGE.read_text("utf-8"), markdown(json.loads(KEPT.read_text()))), "utf-8")


if __name__ == "__main__":
    main()
