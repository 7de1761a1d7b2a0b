"""`python -m benchmarks.plot [RESULT.json [PICTURE.png]]`: the figures of a run as one picture, by default README's."""

import json
import textwrap
from pathlib import Path
from typing import Any, Final

import click
import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import cells
from benchmarks.cells import Cell, patch_name
from benchmarks.processes import REPOSITORY
from benchmarks.report import KEPT

PICTURE: Final = REPOSITORY / "docs/images/benchmark.png"
_OURS, _OTHERS, _LIGHT, _TEXT, _QUIET = "#1f5fa8", "#9aa5b1", "#86add6", "#1f2933", "#616e7c"
_SIZE: Final = (8.4, 7.2)  # inches
_DPI: Final = 200
_WRAPPED: Final = 150  # characters
_STYLE: Final = {
    "font.size": 9.0,
    "text.color": _TEXT,
    "axes.labelcolor": _QUIET,
    "axes.edgecolor": _QUIET,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": _QUIET,
    "ytick.color": _TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_ERROR: Final = {"ecolor": _TEXT, "elinewidth": 0.8, "capsize": 2}

_COMPARED: Final[tuple[tuple[Cell, str], ...]] = (
    (cells.BARE, "no gateway: pgbench's bare UPDATE, 32 clients"),
    (cells.PATCH, "Fencepost over HTTP, 2 workers"),
    (cells.PREST, "pREST over HTTP"),
    (cells.USUAL, "a usual FastAPI handler, 2 workers"),
    (cells.REDIS_TOOL, "Redis, Lua script, redis-benchmark"),
    (cells.REDIS, "Redis, Lua script, redis-py"),
    (cells.ETCD_TOOL, "etcd, put in a txn, its own benchmark"),
    (cells.ETCD, "etcd, txn that compares, httpx"),
    (cells.ZOOKEEPER, "ZooKeeper, conditional setData, kazoo"),
)
_LAYERS: Final[tuple[tuple[Cell, str], ...]] = (
    (cells.PATCH, "PATCH"),
    (cells.PATCH_KEY, "+ Idempotency-Key"),
    (cells.PATCH_SCOPE, "+ scope"),
    (cells.PATCH_ALL, "+ scope and key"),
    (cells.STALE, "stale writes, refused"),
    (cells.CLAIM, "claims"),
)

Rates = dict[str, dict[str, float]]


@click.command()
@click.argument("result", type=click.Path(path_type=Path, exists=True, dir_okay=False), default=KEPT)
@click.argument("picture", type=click.Path(path_type=Path, dir_okay=False), default=PICTURE)
def main(result: Path, picture: Path) -> None:
    """Draw what a run has measured."""
    made = json.loads(result.read_text())
    rates = {cell["name"]: cell["rate"] for cell in made["cells"]}
    with mpl.rc_context(_STYLE):
        figure = _draw(made, rates)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=_DPI, facecolor="white", metadata={"Software": None})
    click.echo(f"drawn: {picture}")


def _draw(made: dict[str, Any], rates: Rates) -> Figure:
    figure = Figure(figsize=_SIZE, layout="constrained")
    # Subfigures: each has the margin that its own labels need.
    above, below = figure.subfigures(2, 1, height_ratios=(1.2, 1))
    left, right = below.subfigures(1, 2, width_ratios=(1, 1.15))
    _bars(above.subplots(), rates, _COMPARED, "The same fenced write, 64 at a time", {cells.PATCH.name})
    _connections(left.subplots(), rates)
    _bars(right.subplots(), rates, _LAYERS, "Layer by layer, 64 connections", {cell.name for cell, _ in _LAYERS})
    figure.supxlabel(textwrap.fill(_about(made), _WRAPPED), fontsize=7.5, color=_QUIET, x=0.01, ha="left")
    return figure


def _bars(axes: Any, rates: Rates, wanted: tuple[tuple[Cell, str], ...], title: str, ours: set[str]) -> None:
    """Draw a bar for each cell that was measured, from its lowest to its highest a whisker."""
    shown = [(cell.name, label) for cell, label in wanted if cell.name in rates]
    axes.set_title(title)
    axes.set_xlabel("per second")
    medians = [rates[name]["median"] for name, _ in shown]
    whiskers = [
        [rates[name]["median"] - rates[name]["lowest"] for name, _ in shown],
        [rates[name]["highest"] - rates[name]["median"] for name, _ in shown],
    ]
    colours = [_OURS if name in ours else _OTHERS for name, _ in shown]
    axes.barh(range(len(shown)), medians, xerr=whiskers, color=colours, height=0.68, error_kw=_ERROR)
    axes.set_yticks(range(len(shown)), [label for _, label in shown])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.14)
    for place, (name, _) in enumerate(shown):
        axes.annotate(
            f"{rates[name]['median']:,.0f}",
            (rates[name]["highest"], place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )


def _connections(axes: Any, rates: Rates) -> None:
    """Draw single-row PATCHes by the number of connections."""
    axes.set_title("By connections")
    axes.set_xlabel("connections")
    axes.set_ylabel("accepted per second")
    axes.set_xscale("log", base=2)
    for workers, colour in ((2, _OURS), (1, _LIGHT)):
        shown = [n for n in (1, 16, 64, 256) if patch_name(n, workers) in rates]
        of = [rates[patch_name(n, workers)] for n in shown]
        medians = [rate["median"] for rate in of]
        whiskers = [[r["median"] - r["lowest"] for r in of], [r["highest"] - r["median"] for r in of]]
        label = f"{workers} worker{'s' if workers > 1 else ''}"
        axes.errorbar(shown, medians, yerr=whiskers, color=colour, marker="o", markersize=4, label=label, capsize=2)
    axes.set_xticks([1, 16, 64, 256], ["1", "16", "64", "256"])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper left")


def _about(made: dict[str, Any]) -> str:
    machine, settings = made["machine"], made["postgresql"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), shared by load, gateway and database; PostgreSQL"
        f" {settings['server_version']}; revision {machine['revision']}."
        f" Median of {made['rounds']} rounds of {made['seconds']} s; whiskers: lowest and highest."
        " Durability is equal: every write is fsynced before it is acknowledged (PostgreSQL"
        f" fsync={settings['fsync']} synchronous_commit={settings['synchronous_commit']}; Redis appendfsync always;"
        " etcd and ZooKeeper: one node, log fsynced)."
        f" fdatasync takes {machine['fdatasync_us']:.0f} µs on this disk. Python clients (redis-py, httpx, kazoo) are"
        " at their own limit."
    )


if __name__ == "__main__":
    main()
