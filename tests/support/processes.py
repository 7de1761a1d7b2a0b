"""Finding out, through /proc, which processes of a test are alive."""

from contextlib import suppress
from pathlib import Path

from tests.support.interleave import eventually


def mentioning(text: str) -> dict[int, str]:
    """Return pid and command line of the live processes whose command line mentions `text`."""
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text in command:  # a zombie has no command line
            found[int(process.name)] = command
    return found


def descendants(pid: int) -> list[int]:
    """Return the pids of a process's children, of theirs, and so on."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [found for child in children for found in (child, *descendants(child))]


def alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


async def all_gone(pids: list[int], *, within: float = 10.0) -> None:
    """Return once none of these processes runs; TimeoutError if one still does after `within` seconds."""

    async def gone() -> bool:
        return not any(alive(pid) for pid in pids)

    await eventually(gone, within=within, what=f"the end of processes {pids}")


def established(port: int, pids: list[int]) -> dict[int, set[int]]:
    """Tell which connections to our `port` on 127.0.0.1 each process holds, by the client's port."""
    clients = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if state == "01" and int(local.partition(":")[2], 16) == port:
            clients[f"socket:[{inode}]"] = int(remote.partition(":")[2], 16)
    return {pid: {clients[name] for name in _open_files(pid) if name in clients} for pid in pids}


def _open_files(pid: int) -> list[str]:
    names = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(str(file.readlink()))
    return names
