"""No package index has Fencepost: no document and no message may claim that pip finds it there."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
BY_NAME = re.compile(r"""(?:pip3? install|uv add|pipx install|uv pip install)[^\n`]*[\s'"]fencepost\b""")


def texts() -> dict[str, str]:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    wanted = [name for name in tracked if name.endswith((".md", ".py", ".toml", ".yaml", ".yml")) or "/" not in name]
    read = {name: ROOT / name for name in wanted if not name.startswith("tests/") and (ROOT / name).is_file()}
    return {name: path.read_text(errors="replace") for name, path in read.items()}


def test_fencepost_is_installed_from_its_clone() -> None:
    assert BY_NAME.search("pip install 'fencepost[redis]'")
    assert BY_NAME.search("pip install fencepost")
    output = {name: found[0] for name, text in texts().items() if (found := BY_NAME.search(text))}
    assert output == {}
