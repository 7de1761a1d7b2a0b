"""The plugin in a project of its own, which has installed Fencepost's wheel in a fresh environment."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.testing.test_plugin import PROJECTS, passed

ROOT = Path(__file__).parents[2]
TESTS = 9
"""As in test_plugin.py: 7 with threads, and one for each library of coroutines."""


@pytest.mark.long("installations of the wheel")
def test_a_project_that_installed_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        [*(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"), "-w", tmp_path, ROOT],
        check=True,
    )
    (wheel,) = tmp_path.glob("fencepost-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    # Versions are those of this run; hashes of the constraints would ask for one of the wheel itself.
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(_versions(ROOT / "requirements.txt", ROOT / "requirements-dev.txt")))
    subprocess.run(
        [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "-c",
            constraints,
            f"{wheel}[testing]",
            "pytest-asyncio",
            "pytest-xdist",
        ],
        check=True,
    )
    project = tmp_path / "project"
    project.mkdir()
    for name in ("threads", "with_asyncio", "with_anyio"):
        (project / f"test_{name}.py").write_text((PROJECTS / f"{name}.py").read_text())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FENCEPOST_"))}
    for workers in ((), ("-n", "2")):
        done = subprocess.run(
            [python, "-m", "pytest", "-q", *workers],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert passed(done.stdout) == TESTS


def _versions(*locks: Path) -> set[str]:
    """Read which versions lock files name, without hashes."""
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    return {line.rstrip(" \\") for line in lines if line[:1].isalnum() and "==" in line}
