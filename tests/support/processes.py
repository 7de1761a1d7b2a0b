"""Finding out, through /proc, which processes of a test are alive."""

from contextlib import suppress
from pathlib import Path

from fencepost.testing.servers.processes import PATIENCE, alive, eventually


async def all_gone(pids: list[int], *, within: float = PATIENCE) -> None:
    """Return once none of these processes runs; TimeoutError if one still does after `within` seconds."""

    async def gone() -> bool:
        return not any(alive(pid) for pid in pids)

    await eventually(gone, within=within, what=f"the end of processes {pids}")


def established(port: int, pids: list[int]) -> dict[int, set[int]]:
    """Return which connections to our `port` on 127.0.0.1 each process holds, by the client's port."""
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
