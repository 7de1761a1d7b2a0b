"""The plugin in a project of its own, which has installed Fencepost's wheel in a fresh environment."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.testing.test_plugin import passed, project, run_pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


@pytest.mark.long("installations of the wheel")
def test_a_project_that_installed_the_wheel(tmp_path: Path) -> None:
    def run(*command: object) -> None:
        subprocess.run([*map(str, command)], check=True, cwd=tmp_path)

    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("fencepost-*.whl")
    run(UV, "venv", "--quiet", "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # Versions are those of this run; hashes of the constraints would ask for one of the wheel itself.
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(_versions(ROOT / "requirements.txt", ROOT / "requirements-dev.txt")))
    run(UV, "pip", "install", "--quiet", "--python", python, "-c", constraints, f"{wheel}[testing]", "pytest-asyncio")
    (tmp_path / "project").mkdir()
    files = [project(tmp_path / "project", name) for name in ("threads", "with_asyncio", "with_anyio")]
    assert passed(run_pytest(tmp_path / "project", *files, python=python)) == 6


def _versions(*locks: Path) -> set[str]:
    """Read which versions lock files name, without hashes."""
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    return {line.rstrip(" \\") for line in lines if line[:1].isalnum() and "==" in line}
