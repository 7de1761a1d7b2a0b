"""What an install without extras can do: the client, and the commands that need no more. What is missing is named.

The libraries are installed here, and so are hidden from a new process.
"""

import re
import subprocess
import sys
import tomllib

import pytest
from tests.unit.test_docs_names import ROOT

from fencepost.cli.main import COMMANDS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OF_THE_SERVER = [re.split(r"[^\w-]", each)[0].replace("-", "_") for each in PROJECT["optional-dependencies"]["server"]]
ALONE = {"batch", "elect", "lock", "mint"}
HIDE = f"import sys; sys.modules.update(dict.fromkeys({[*OF_THE_SERVER, 'pydantic', 'pytest']!r}))\n"
WINDOWS = """
import asyncio, click, getpass, httpx, os, signal, subprocess, sys
for name in "waitid getuid geteuid killpg tcsetpgrp".split():
    delattr(os, name)
for name in "pthread_sigmask SIGCHLD SIGHUP SIGTSTP SIGQUIT".split():
    delattr(signal, name)
sys.modules.update(dict.fromkeys(("pwd", "fcntl", "termios", "resource")))
sys.platform = "win32"
"""
COMMAND = "from fencepost.cli.main import main; main({!r}, prog_name='fencepost')"


def run(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_client_and_its_commands_need_no_library_of_the_server() -> None:
    assert run(f"{HIDE}from fencepost import Client, SyncClient; import fencepost.client") == (0, "")
    for name in sorted(ALONE):
        code, said = run(HIDE + COMMAND.format([name, "--help"]))
        assert code == 0, said
    code, said = run(HIDE + COMMAND.format(["--help"]))
    assert code == 0, said
    assert said.count("needs the extra") == len(COMMANDS) - len(ALONE) - 1, said  # torture says so when it runs


@pytest.mark.parametrize("name", ["serve", "protect", "check", "torture"])
def test_a_command_whose_libraries_are_missing_names_the_extra(name: str) -> None:
    code, said = run(HIDE + COMMAND.format([name, "orders"] if name in {"protect", "check"} else [name]))
    extra = "testing" if name in {"check", "torture"} else "server"
    assert code == 2, said
    assert f"pip install '.[{extra}]'" in said
    assert "Traceback" not in said


def test_a_system_that_cannot_wait_for_a_commands_processes_says_so() -> None:
    """A mock of Windows: what its Python has not is taken away. Nobody has run Fencepost there."""
    client = "from fencepost.client.lease import default_owner; assert '@' in default_owner()\n"
    code, said = run(WINDOWS + client + COMMAND.format(["lock", "x", "--", "true"]))
    assert (code, "this system cannot" in said) == (2, True), said
    for arguments in (["mint", "--help"], ["batch", "--help"], ["--help"]):
        code, said = run(WINDOWS + COMMAND.format(arguments))
        assert code == 0, said
