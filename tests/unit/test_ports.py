"""The ports of loopback that servers of tests get."""

import itertools

from fencepost.testing.servers.ports import range_of


def test_no_two_workers_share_a_port_and_no_outgoing_connection_has_one() -> None:
    ranges = [range_of(worker, 32768) for worker in ("", *(f"gw{n}" for n in range(15)))]
    for one, other in itertools.combinations(ranges, 2):
        assert not set(one) & set(other)
    assert max(map(max, ranges)) < 32768
    assert range_of("gw0", 1024) == range(1), "the system chooses"
