"""Leaders that die, stop, or are cut off, and lock services whose own leader dies: whatever happens, no two writes of
two terms are accepted out of order, and there is a leader again.
"""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.conformance import etcd_bench, zookeeper_bench
from tests.support.elections import WITHIN, Candidate, Contest, contest
from tests.support.lease_gateways import running
from tests.support.servers import or_skipped
from tests.support.violations import promised

from fencepost.testing import Link, partitioned
from fencepost.testing.servers.lock_services import zookeeper
from fencepost.testing.servers.processes import eventually, free_port
from fencepost.testing.servers.server import Server

pytestmark = [
    pytest.mark.long("holders, leaders and gateways that are paused or killed"),
    pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True, scope="session"),
]


async def led_and_followed(contest: Contest, first_url: str, second_url: str) -> tuple[Candidate, Candidate, int]:
    """Start two candidates, one after the other; returns them when the first has written, with its term."""
    first = await contest.candidate(first_url, "first")
    term = (await first.printed("wrote"))["wrote"]
    return first, await contest.candidate(second_url, "second"), term


async def succeeded(contest: Contest, second: Candidate, term: int) -> int:
    """Return the second's term once it has written."""
    new = (await second.printed("wrote"))["wrote"]
    promised(new > term, f"the term {new} came after {term}")
    await contest.check(term, new)
    return int(new)


async def test_a_paused_leader_wakes_up_and_is_refused(database: str) -> None:
    async with running(database) as http, contest(database) as election:
        url = str(http.base_url)
        first, second, term = await led_and_followed(election, url, url)
        first.pause()
        new = await succeeded(election, second, term)
        first.resume()
        lost = await first.printed("lost")
        await election.goes_on()
        await election.check(term, new)
        assert lost == {"lost": term, "last": "FP001"}


async def test_a_leader_that_is_cut_off_from_the_gateway_is_refused_when_it_is_back(database: str) -> None:
    async with running(database) as http, contest(database) as election:
        with Link.to(str(http.base_url)) as link:
            first, second, term = await led_and_followed(election, link.url, str(http.base_url))
            with partitioned(link):
                new = await succeeded(election, second, term)
            lost = await first.printed("lost")
        await election.check(term, new)
        assert lost == {"lost": term, "last": "FP001"}


@contextmanager
def cut_off(port: int) -> Iterator[None]:
    """Drop all packets from and to a port of loopback."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        pytest.skip("no rights to cut the network: run as root, apt-get install iptables")
    rules = [("OUTPUT", "-o", "lo", "-p", "tcp", side, str(port), "-j", "DROP") for side in ("--dport", "--sport")]
    added = []
    try:
        for rule in rules:
            refused = subprocess.run(["iptables", "-w", "-I", *rule], capture_output=True, text=True, check=False)
            if refused.returncode != 0:
                pytest.skip(f"iptables does not work here: {refused.stderr.strip()}")
            added.append(rule)
        yield
    finally:
        for rule in added:
            subprocess.run(["iptables", "-w", "-D", *rule], check=True)


async def test_a_leader_whose_gateway_is_cut_off_from_the_lock_service_is_refused(
    database: str, tmp_path: Path
) -> None:
    """Its gateway still reaches PostgreSQL: nothing but the fence is in the way."""
    with etcd_bench.running(tmp_path, nodes=3) as etcd:
        alone, *others = etcd.endpoints
        async with (
            running(database, sources=f"etcd=etcd://{alone}") as here,
            running(database, sources=f"etcd=etcd://{','.join(others)}") as there,
            contest(database, "etcd") as election,
        ):
            first, second, term = await led_and_followed(election, str(here.base_url), str(there.base_url))
            with cut_off(int(alone.rpartition(":")[2])):
                new = await succeeded(election, second, term)
                lost = await first.printed("lost")
            await election.goes_on()
            await election.check(term, new)
            assert lost == {"lost": term, "last": "FP001"}


async def test_etcds_own_leader_is_killed(database: str, tmp_path: Path) -> None:
    with etcd_bench.running(tmp_path, nodes=3) as etcd:
        async with (
            running(database, sources=f"etcd={etcd.url}") as http,
            contest(database, "etcd") as election,
        ):
            url = str(http.base_url)
            first, second, term = await led_and_followed(election, url, url)
            etcd.nodes[await etcd.leader()].crash()
            await still_works(election, first, second, term)


@asynccontextmanager
async def ensemble(directory: Path) -> AsyncIterator[dict[int, Server]]:
    """Run three ZooKeeper servers; gives them by client port."""
    ports = [(free_port(), free_port(), free_port()) for _ in range(3)]
    members = [f"server.{n}=127.0.0.1:{peer}:{vote}" for n, (_, peer, vote) in enumerate(ports, 1)]
    servers = {}
    for n, (port, _, _) in enumerate(ports, 1):
        home = directory / f"server-{n}"
        with or_skipped():
            more = "\n".join(["initLimit=50", "syncLimit=25", *members])
            servers[port] = zookeeper(home, more, port=port).server
        (home / "data" / "myid").write_text(str(n))
    try:
        for server in servers.values():
            server.start()
        for server in servers.values():
            await server.serves()
        yield servers
    finally:
        for server in servers.values():
            server.crash()


async def test_zookeepers_own_leader_is_killed(database: str, tmp_path: Path) -> None:
    async with ensemble(tmp_path) as servers:
        url = f"zookeeper://{','.join(f'127.0.0.1:{port}' for port in servers)}?session_timeout_s=6"
        async with (
            running(database, sources=f"zookeeper={url}") as http,
            contest(database, "zookeeper") as election,
        ):
            gateway = str(http.base_url)
            first, second, term = await led_and_followed(election, gateway, gateway)
            leading = [port for port in servers if "Mode: leader" in zookeeper_bench.admin(port, "srvr")]
            servers[leading[0]].crash()
            await still_works(election, first, second, term)


async def still_works(election: Contest, first: Candidate, second: Candidate, term: int) -> None:
    """Writes go on, whichever leads by now, also when the leader dies."""
    await election.goes_on()
    leading = (await election.history())[-1].term
    leader, other = (first, second) if {"elected": leading} in first.lines else (second, first)
    await leader.kill()

    async def another_client_wrote() -> bool:
        return (await election.history())[-1].term > leading

    await eventually(another_client_wrote, within=WITHIN, what="the other's write")
    new = (await election.history())[-1].term
    assert {"elected": new} in other.lines
    await election.check(term, new)
