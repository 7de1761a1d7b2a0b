"""`make test-servers` installs what tests name when they skip for want of it; in CI a skipped test fails the run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASKED_FOR = re.compile(r"apt-get install ([a-z0-9 .+-]+)")
OF_A_PROGRAM = re.compile(r'program_of\("[a-z-]+", "([a-z0-9.+-]+)"\)')
IN_A_TABLE = re.compile(r'"[a-z-]+"[:,] "([a-z0-9.+-]+)"')
ALWAYS_THERE = {"util-linux", "default-jre-headless"}
"""The latter by default-jdk-headless."""


def installed() -> set[str]:
    listed = re.search(r"packages=\((.*?)\n\)", (ROOT / ".ci" / "test-servers").read_text(), re.DOTALL)
    assert listed is not None
    return set(re.sub(r"#.*", "", listed[1]).split())


def asked_for() -> set[str]:
    found = set[str]()
    for file in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "app/fencepost/testing/servers").rglob("*.py")]:
        text = file.read_text("utf-8")
        found |= set(OF_A_PROGRAM.findall(text))
        found |= {package for names in ASKED_FOR.findall(text) for package in names.split()}
        for line in re.findall(r"for program, package in .*", text):
            found |= set(IN_A_TABLE.findall(line))
    return found - ALWAYS_THERE


def test_every_package_that_a_test_asks_for_is_installed() -> None:
    assert {"redis-server", "etcd-client", "openssl"} <= asked_for(), "they are found"
    assert asked_for() <= installed(), "add to .ci/test-servers what a test says to install"
