"""Look for known vulnerabilities in what the locks name: `python -m tools.audit`, a part of `make check`.

pip-audit asks pypi.org for advisories. Where they cannot be had (a mirror without them, no network) nothing is audited:
this passes, is named as skipped, and once more at the end of `make test-all`, and so of `.ci/run`. Whatever else keeps
pip-audit from its report fails: where pypi.org can be reached, an audit was made. With FENCEPOST_NO_SKIPS a skip fails.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = ("requirements.txt", "requirements-dev.txt")
NOT_AUDITED: Final = ROOT / ".not-audited"
"""Where it stands why the last audit was skipped. After another end there is no such file."""
_UNREACHED: Final = re.compile(
    r"HTTPSConnectionPool\(host='pypi\.org'|Could not connect to PyPI|[45]\d\d (?:Client|Server) Error: .*pypi\.org"
)
"""What pip-audit says where a network, a proxy or a firewall keeps it from pypi.org."""
_SECONDS: Final = 120


def main() -> int:
    """Audit. Returns the exit code."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--disable-pip", "--require-hashes", "--format=json"]
    command += ["--progress-spinner=off", "--timeout=15", *(f"--requirement={name}" for name in LOCKS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=_SECONDS)  # noqa: S603 - no shell
    except subprocess.TimeoutExpired:
        return _skip(f"pip-audit took more than {_SECONDS} s")
    return say(_read(done.stdout), done.stderr)


def say(dependencies: list[dict[str, Any]] | None, errors: str) -> int:
    """Print what came of it. `dependencies`: of pip-audit's report; None: there is none. `errors`: what else it said.
    Returns the exit code.
    """
    NOT_AUDITED.unlink(missing_ok=True)
    found = [f"{each['name']} {each['version']}: {_ids(each)}" for each in dependencies or () if each.get("vulns")]
    skipped = [each["skip_reason"] for each in dependencies or () if "skip_reason" in each]
    for line in found:
        click.echo(f"audit: {line}")
    if found:
        return 1
    if not dependencies:
        said = (errors.strip().splitlines() or ["it said nothing"])[-1]
        return _skip(said) if _UNREACHED.search(errors) else _fail(f"pip-audit made no report: {said}")
    if len(skipped) == len(dependencies):
        return _skip(skipped[0])
    if skipped:
        return _fail(f"{len(skipped)} packages could not be audited: {skipped[0]}")
    click.echo(f"audit: no advisory is known for any of {len(dependencies)} packages")
    return 0


def _skip(why: str) -> int:
    line = f"the dependencies were not compared with known vulnerabilities: pypi.org's list cannot be had here ({why})"
    click.echo(f"audit: not done: {line}")
    NOT_AUDITED.write_text(line)
    return 1 if os.environ.get("FENCEPOST_NO_SKIPS") else 0


def _fail(why: str) -> int:
    click.echo(f"audit: {why}")
    return 1


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
