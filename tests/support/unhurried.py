"""Times of the gateways that tests run: what a refusal is explained with is waited for, on a busy machine, too."""

from typing import Final

from fencepost.testing.servers.waiting import PATIENCE
from fencepost.times import RequestTimes, Times

UNHURRIED: Final = Times(requests=RequestTimes(explain_within=PATIENCE))
