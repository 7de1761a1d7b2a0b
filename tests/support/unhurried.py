"""Times of the gateways that tests run: what explains a refusal, or /readyz and /metrics show, is waited for, on a busy
machine, too. And the consumer that a gateway has by default hears soon that it is to stop: it waits for its log first,
else half a second.
"""

from typing import Final

from fencepost.server.times import ConsumingTimes, HealthTimes, RequestTimes, Times
from fencepost.testing.servers.processes import PATIENCE

UNHURRIED: Final = Times(
    requests=RequestTimes(explain_within=PATIENCE),
    health=HealthTimes(answer_within=PATIENCE, ask_for=PATIENCE),
    consuming=ConsumingTimes(take_for=0.1),
)
