"""`model/run`: searches every scene, and looks for a counterexample without each part of a rule."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import click

from model import page, trails
from model.checks import HOLDING, LARGE, Check
from model.spin import ModelError, Search, counterexample, missing, search
from model.switches import SWITCHES, Switch

T = TypeVar("T")
R = TypeVar("R")


@click.command()
@click.option("--large", is_flag=True, help="Search the large sizes, one after the other: minutes, and gigabytes.")
@click.option("--write", is_flag=True, help="Write model/trails and the made parts of docs/model.md anew.")
@click.argument("names", nargs=-1)
def main(*, large: bool, write: bool, names: Sequence[str]) -> None:
    """Check the model. NAMES: only these scenes (protocol) and switches (NO_R6)."""
    if packages := missing():
        raise click.ClickException(f"SPIN or a C compiler is missing: apt-get install {' '.join(packages)}")
    if write and (large or names):
        raise click.UsageError("--write makes the whole page, with the sizes of CI: without --large and NAMES")
    try:
        if large:
            _large(names)
        else:
            _all(names, write=write)
    except ModelError as error:
        raise click.ClickException(str(error)) from error


def _large(names: Sequence[str]) -> None:
    if without := set(names) - {check.scene for check in LARGE}:
        raise click.UsageError(f"there is no large size of {', '.join(sorted(without))}")
    searches = [(check, _search(check)) for check in LARGE if not names or check.scene in names]
    click.echo(page.measured(searches))


def _all(names: Sequence[str], *, write: bool) -> None:
    checks = [check for check in HOLDING if not names or check.scene in names]
    switches = [switch for switch in SWITCHES if not names or switch.title in names]
    if unknown := set(names) - {check.scene for check in checks} - {switch.title for switch in switches}:
        raise click.UsageError(f"no scene and no switch is called {', '.join(sorted(unknown))}")
    searches = list(zip(checks, _at_once(_search, checks), strict=True))
    found = list(zip(switches, _at_once(_counterexample, switches), strict=True))
    if write:
        _write(searches, found)
        return
    if changed := [switch.title for switch, trail in found if trail != trails.kept(switch)]:
        raise ModelError(f"SPIN finds other counterexamples than are kept: {', '.join(changed)} (--write keeps these)")


def _search(check: Check) -> Search:
    found = search(check)
    if found.errors:
        raise ModelError(f"{check.title}: an assertion fails, or a process cannot go on. The rules do not hold there")
    click.echo(f"holds   {check.title:40} {found.states:>12,} states, {found.depth:,} deep, {found.seconds:.1f} s")
    return found


def _counterexample(switch: Switch) -> str:
    trail = counterexample(switch)
    click.echo(f"fails   {switch.title:40} {len(trail.splitlines()) - 1:>12,} lines, as it should")
    return trail


def _at_once(work: Callable[[T], R], of: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, of))


def _write(searches: Sequence[tuple[Check, Search]], found: Sequence[tuple[Switch, str]]) -> None:
    trails.KEPT.mkdir(exist_ok=True)
    for old in trails.KEPT.glob("*.txt"):
        old.unlink()
    for switch, trail in found:
        trails.path_of(switch).write_text(trail, "utf-8")
    text = page.PAGE.read_text("utf-8")
    text = page.replaced(text, "figures", page.figures(searches))
    text = page.replaced(text, "switches", page.switches())
    text = page.replaced(text, "counterexamples", page.counterexamples())
    page.PAGE.write_text(text, "utf-8")
    rules = page.RULES.read_text("utf-8")
    for part, made in page.beside_rules().items():
        rules = page.replaced(rules, part, made)
    page.RULES.write_text(rules, "utf-8")


if __name__ == "__main__":
    main()
