"""Programs in C are compiled when they are first needed, and once more whenever their source has changed."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from benchmarks.processes import BenchmarkError, run

BUILD: Final = Path(__file__).parent / "build"
"""What the benchmarks build; git ignores it."""

_FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")


def compiled(source: Path) -> Path:
    """Return the program of a C source, compiled with `cc` (or $CC) unless it is there already."""
    text = source.read_bytes()
    program = BUILD / f"{source.stem}-{hashlib.sha256(text + repr(_FLAGS).encode()).hexdigest()[:16]}"
    if program.exists():
        return program
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise BenchmarkError("no C compiler for the load generator: apt-get install gcc libc6-dev")
    BUILD.mkdir(exist_ok=True)
    half_done = program.with_name(f"{program.name}.{os.getpid()}")
    run([compiler, *_FLAGS, "-o", half_done, source], within=60)
    half_done.rename(program)  # two who compile at once both win
    return program
