"""What the figures were measured on."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, TypedDict

from benchmarks.processes import REPOSITORY, BenchmarkError, run

_SYNCS: Final = 500
_LOOKED_FOR: Final = 0.3  # seconds


class Machine(TypedDict):
    """The machine as far as it matters; load averages are those before the run."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    revision: str
    filesystem: str
    fdatasync_us: float
    fdatasync_measured_with: str
    load_average_before: tuple[float, float, float]


def describe(bin_dir: Path, directory: Path) -> Machine:
    """Look around. `directory` is on the file system that PostgreSQL writes to."""
    load_average = os.getloadavg()
    fdatasync, how = _fdatasync(bin_dir, directory)
    return {
        "cpu": _found(r"model name\s*: (.*)", Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(_found(r"MemTotal:\s+(\d+)", Path("/proc/meminfo"))) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "revision": _revision(),
        "filesystem": _filesystem(directory),
        "fdatasync_us": round(fdatasync, 1),
        "fdatasync_measured_with": how,
        "load_average_before": load_average,
    }


def busy() -> float:
    """Look for a moment how much of all cores is in use: by others, when nothing of ours runs."""
    before = _cpu_times()
    time.sleep(_LOOKED_FOR)
    total, idle = (after - earlier for after, earlier in zip(_cpu_times(), before, strict=True))
    return 1 - idle / total if total else 0.0


def _cpu_times() -> tuple[int, int]:
    """Read all CPU time and the idle part of it; waiting for a disk is idle."""
    times = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times), times[3] + times[4]


def source_digest() -> str:
    """Name the code that is measured: its servers are started anew for every cell, from files that may change."""
    digest = hashlib.sha256()
    for file in sorted((REPOSITORY / "app").rglob("*.py")):
        digest.update(str(file.relative_to(REPOSITORY)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _found(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text())
    return found[1] if found else "0"


def _revision() -> str:
    try:
        return run(["git", "-C", REPOSITORY, "describe", "--always", "--dirty"], within=10).strip()
    except (BenchmarkError, OSError):
        return "unknown"


def _filesystem(directory: Path) -> str:
    """Name the type of the file system: on tmpfs a commit costs nothing."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1]


def _fdatasync(bin_dir: Path, directory: Path) -> tuple[float, str]:
    """Measure an 8 kB write with fdatasync, in µs: what a commit waits for."""
    program = bin_dir / "pg_test_fsync"
    found = _ask_pg_test_fsync(program, directory / "fsync") if shutil.which(program) else None
    if found is not None:
        return found, "pg_test_fsync"
    file = os.open(directory / "fsync", os.O_RDWR | os.O_CREAT)
    try:
        os.write(file, bytes(8192))
        begin = time.perf_counter()
        for _ in range(_SYNCS):
            os.pwrite(file, bytes(8192), 0)
            os.fdatasync(file)
        return (time.perf_counter() - begin) / _SYNCS * 1e6, "os.fdatasync"
    finally:
        os.close(file)


def _ask_pg_test_fsync(program: Path, file: Path) -> float | None:
    """Run it as far as its first line about fdatasync: the rest takes half a minute and is not asked for."""
    process = subprocess.Popen(  # noqa: S603 - a program of ours, no shell
        [program, "-s", "1", "-f", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            for line in process.stdout or ():
                if found := re.search(r"^\s*fdatasync\b.*?(\d+) usecs/op", line):
                    return float(found[1])
        finally:
            process.terminate()
    return None
