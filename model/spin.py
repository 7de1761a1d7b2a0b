"""Runs SPIN: `spin -a` writes a checker in C, cc compiles it, it runs; a trail is replayed by `spin -t`."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.checks import Check
from model.switches import Switch

SCENES: Final = Path(__file__).parent / "scenes"
NEEDED: Final = {"spin": "spin", "cc": "gcc libc6-dev"}
"""Programs, and the packages of Debian that have them."""

_MOST_DEPTH: Final = 100_000
"""Steps of one run of the model, at most; a search that gets there is an error."""
_MOST_MEMORY: Final = 12_000
"""MB that one search may use."""


class ModelError(Exception):
    """A check could not be made: a program is missing, a scene has an error, a search ended early."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a complete search found. `errors`: 0, or there is a counterexample."""

    errors: int
    states: int
    transitions: int
    depth: int
    megabytes: float
    seconds: float


def missing() -> list[str]:
    """Give the packages to install for the programs that are not there."""
    return [package for program, package in NEEDED.items() if shutil.which(program) is None]


def search(check: Check) -> Search:
    """Search all states of a check. An error is found, and not shown: `counterexample` does that."""
    with tempfile.TemporaryDirectory(prefix="fencepost-model-") as folder:
        _build(check, Path(folder), ("-DCOLLAPSE",) if check.optimized else ())
        return _search(check, Path(folder), _MOST_DEPTH)


def counterexample(switch: Switch) -> str:
    """Find the shortest run that goes wrong without a part of a rule, and give what it prints, step by step.

    Safety: a search in breadth meets the shortest first. Liveness: SPIN searches in depth only, so the bound of
    the depth grows until there is one.
    """
    check = switch.run
    with tempfile.TemporaryDirectory(prefix="fencepost-model-") as folder:
        here = Path(folder)
        safety = check.kind == "safety"
        _build(check, here, ("-DBFS", "-DCOLLAPSE") if safety else ())
        depths = (_MOST_DEPTH,) if safety else range(10, 400, 10)
        if not any(_search(check, here, depth).errors for depth in depths):
            raise ModelError(f"{switch.title} changes nothing: SPIN finds no counterexample in {check.title}")
        return _replay(check, here)


def _build(check: Check, here: Path, flags: Sequence[str]) -> None:
    if packages := missing():
        raise ModelError(f"SPIN or a C compiler is missing: apt-get install {' '.join(packages)}")
    _run(["spin", "-a", *_defines(check), str(_file(check))], here)
    kind = ("-DSAFETY",) if check.kind == "safety" else ("-DNFAIR=3",)
    optimized = "-O1" if check.optimized else "-O0"
    _run(["cc", optimized, "-w", f"-DMEMLIM={_MOST_MEMORY}", *kind, *flags, "-o", "pan", "pan.c"], here)


def _search(check: Check, here: Path, depth: int) -> Search:
    fair = () if check.kind == "safety" else ("-a", "-f")
    printed = _run(["./pan", *fair, f"-m{depth}", "-w20"], here)
    whole = depth < _MOST_DEPTH or "max search depth too small" not in printed
    if not whole or ("Search not completed" in printed and "errors: 0" in printed):
        raise ModelError(f"{check.title}: the search was not completed\n{printed}")
    return Search(
        int(_number(r"errors: (\d+)", printed)),
        int(_number(r"([\d.e+]+) states, stored", printed)),
        int(_number(r"([\d.e+]+) transitions", printed)),
        int(_number(r"depth reached (\d+)", printed)),
        _number(r"([\d.]+)\s+total actual memory usage", printed),
        _number(r"pan: elapsed time ([\d.e+-]+)", printed),
    )


def _number(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed)
    if found is None:
        raise ModelError(f"SPIN's checker printed nothing like {pattern!r}:\n{printed}")
    return float(found[1])


def _replay(check: Check, here: Path) -> str:
    """Replay a trail, and keep what the steps print. -T: no indentation; -B: no values of variables at the end."""
    trail = f"{_file(check).name}.trail"
    printed = _run(["spin", "-T", "-B", "-t", "-k", trail, *_defines(check), str(_file(check))], here, ok=(0, 1))
    kept = [line.rstrip() for line in printed.splitlines() if re.match(r"[A-Z-]\| |<<<<<START OF CYCLE", line)]
    failed = re.search(r"text of failed assertion: (.*)", printed)
    kept.append(f"spin: {failed[1]}" if failed else _other_error(check))
    return "\n".join(kept) + "\n"


def _other_error(check: Check) -> str:
    return "spin: invalid end state" if check.kind == "safety" else "spin: acceptance cycle"


def _file(check: Check) -> Path:
    return SCENES / f"{check.scene}.pml"


def _defines(check: Check) -> list[str]:
    return [f"-D{define}" for define in check.defines]


def _run(command: Sequence[str], here: Path, ok: Sequence[int] = (0,)) -> str:
    done = subprocess.run(  # noqa: S603 - programs of Debian's packages, and the checker that they made; no shell
        command, cwd=here, capture_output=True, text=True, check=False
    )
    printed = done.stdout + done.stderr
    if done.returncode not in ok or ("Error:" in printed and ok == (0,)):
        raise ModelError(f"{command[0]} failed:\n{printed}")
    return printed
