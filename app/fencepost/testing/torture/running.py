"""One run, from its servers to its report."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fencepost.testing.checker import NothingToCheckError, UndecidedError, Verdict, check
from fencepost.testing.history import BadHistoryError, read
from fencepost.testing.servers.directories import server_directory
from fencepost.testing.torture.config import HISTORY, REPORT, UNJUDGED, Config
from fencepost.testing.torture.errors import BadInputError, RunFailedError
from fencepost.testing.torture.interruption import Interruption, heeding_interrupts
from fencepost.testing.torture.merging import Merged, Voided, merge
from fencepost.testing.torture.play import Play, Progress, silent
from fencepost.testing.torture.report import write_report
from fencepost.testing.torture.report.facts import COMMAND
from fencepost.testing.torture.stages.foreign import foreign_stage
from fencepost.testing.torture.stages.own import own_stage
from fencepost.testing.torture.tables import Fenced
from fencepost.testing.torture.workloads import Workload


def run(config: Config, progress: Progress = silent) -> Verdict:
    """Run, check, and write history and report to `config.out`. See `run_in_words`."""
    return run_in_words(config, progress)[0]


def first_step(config: Config) -> str:
    """Say what is done before the workload begins: of a gateway that runs already no server is started."""
    return "starting servers" if config.url is None else "making tables"


def run_in_words(config: Config, progress: Progress = silent) -> tuple[Verdict, str]:
    """Do so, and give the report's short form for a terminal as well. Call it in the main thread.

    Ctrl-C (and SIGTERM) ends the workload early; what ran is checked and reported. A second one raises
    KeyboardInterrupt. Raises BadInputError and RunFailedError. Files are written whole or not at all; the history of a
    run that cannot be judged is `unjudged.jsonl` in `config.out`.
    """
    with heeding_interrupts() as interruption, workshop_for(config.out) as workshop:
        header = _header(config)
        files, outcome, voided = _play(config, workshop, interruption, progress)
        whole = workshop / HISTORY
        progress("merging", 1.0, None)
        merged = merge(files, whole, header | outcome, voided)
        progress("checking", 1.0, None)
        try:
            verdict = judge(whole)
            if verdict.valid:
                require_shown(config.play, merged)
        except RunFailedError as error:
            kept = keep(whole, config.out)
            raise RunFailedError(f"{error}. The history of the run is kept: {kept}") from error
        progress("reporting", 1.0, None)
        words = write_report(whole, verdict, workshop / REPORT) + of_the_control(config.play, verdict)
        _publish(workshop, config.out)
    return verdict, words


def judge(history: Path) -> Verdict:
    """Check the history of a run. Raises RunFailedError when it has nothing to check, or cannot be judged."""
    try:
        return check(read(history))
    except (BadHistoryError, NothingToCheckError, UndecidedError) as error:
        raise RunFailedError(f"the run cannot be judged: {error}") from error


def keep(history: Path, out: Path) -> Path:
    """Put the history of a run that cannot be judged where it is found."""
    out.mkdir(parents=True, exist_ok=True)
    return history.replace(out / UNJUDGED)


def of_the_control(workload: Workload, verdict: Verdict) -> str:
    """Say what a verdict on the control means, for a terminal; nothing for other workloads."""
    if not workload.loses:
        return ""
    if verdict.valid:
        return (
            "\n\nThis is the control, and has lost nothing: the run is too short or too mild to show what a fence does."
        )
    return "\n\nThis is the control, which has no fence: to lose members is what it has to show."


def _play(
    config: Config, workshop: Path, interruption: Interruption, progress: Progress
) -> tuple[list[Path], dict[str, str], list[Voided]]:
    """Run the workload; returns the parts of the history, what its header says of the run's end, and void tokens."""
    prefix = f"torture_{secrets.token_hex(4)}"
    made = [Fenced(prefix, kind) for kind in config.play.tables]
    open_stage = own_stage if config.url is None else foreign_stage
    with server_directory() as servers:
        progress(first_step(config), 0.0, None)
        with open_stage(config, servers, prefix, made) as stage:
            play = Play(config, stage, workshop, prefix, interruption, progress)
            return play.play(), play.outcome, play.voided


def require_shown(workload: Workload, merged: Merged) -> None:
    """Raise RunFailedError if nothing that the workload is about was accepted: nothing can be wrong with that."""
    ops = workload.promised
    if any(merged.accepted[op] for op in ops):
        return
    refused = [f"{count} as {reason}" for (op, reason), count in merged.refused.most_common() if op in ops]
    raise RunFailedError(
        f"the run cannot be judged: no {' and no '.join(sorted(ops))} was accepted ({', '.join(refused) or 'none'}"
        " refused), so it shows nothing. Was it ended too early, or may the gateway not write?"
    )


def _header(config: Config) -> dict[str, object]:
    return {
        "seed": config.seed,
        "workload": config.workload,
        "source": config.source,
        "started": datetime.now(tz=UTC).isoformat(timespec="seconds"),  # noqa: TID251 - for people who read the report
        "faults": config.faults,
        COMMAND: config.command,
        "gateway": config.url or f"{config.gateways} of this run",
    }


@contextmanager
def workshop_for(out: Path) -> Iterator[Path]:
    """Give a directory for files that are not whole yet, on the file system of `out`; it is gone afterwards.

    It is in `out`, which may be a mount of its own, or else in what there is of the way to it. Raises BadInputError.
    """
    place = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    try:
        workshop = Path(tempfile.mkdtemp(prefix=".torture-", dir=place))
    except OSError as error:
        raise BadInputError(f"nothing can be written to {out}, the directory of --out: {error}.") from error
    try:
        yield workshop
    finally:
        shutil.rmtree(workshop)


def _publish(workshop: Path, out: Path) -> None:
    """Put the whole files where they belong."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (HISTORY, REPORT):
        (workshop / name).replace(out / name)
