"""Look for known vulnerabilities in what the locks name: `python -m tools.audit`, a part of `make check`.

pip-audit asks pypi.org for advisories. Where they cannot be had (a mirror without them, no network) it passes, having
audited nothing: here that is named as skipped. With FENCEPOST_NO_SKIPS it fails.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = ("requirements.txt", "requirements-dev.txt")
_SECONDS: Final = 120


def main() -> int:
    """Audit. Returns the exit code."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--disable-pip", "--require-hashes", "--format=json"]
    command += ["--progress-spinner=off", "--timeout=15", *(f"--requirement={name}" for name in LOCKS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=_SECONDS)  # noqa: S603 - no shell
    except subprocess.TimeoutExpired:
        return say(None, f"pip-audit took more than {_SECONDS} s")
    lines = done.stderr.strip().splitlines()
    return say(_read(done.stdout), lines[-1] if lines else "pip-audit said nothing")


def say(dependencies: list[dict[str, Any]] | None, why: str) -> int:
    """Print what came of it. `dependencies`: of pip-audit's report; None: there is none, and `why`. Returns the exit
    code.
    """
    found = [f"{each['name']} {each['version']}: {_ids(each)}" for each in dependencies or () if each.get("vulns")]
    skipped = [each for each in dependencies or () if "skip_reason" in each]
    for line in found:
        click.echo(f"audit: {line}")
    if found:
        return 1
    if dependencies and not skipped:
        click.echo(f"audit: no advisory is known for any of {len(dependencies)} packages")
        return 0
    if dependencies and len(skipped) < len(dependencies):
        click.echo(f"audit: {len(skipped)} packages could not be audited: {skipped[0]['skip_reason']}")
        return 1
    click.echo(
        f"audit: skipped: pypi.org's advisories cannot be had here ({skipped[0]['skip_reason'] if skipped else why})"
    )
    return 1 if os.environ.get("FENCEPOST_NO_SKIPS") else 0


def _read(output: str) -> list[dict[str, Any]] | None:
    try:
        found: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except ValueError:
        return None
    return found


def _ids(dependency: dict[str, Any]) -> str:
    return ", ".join(
        f"{each['id']} (fixed in {' or '.join(each['fix_versions']) or 'no version'})" for each in dependency["vulns"]
    )


if __name__ == "__main__":
    sys.exit(main())
