"""What a member is called in the topic's group, how it leaves, and how it finds out that another has its name.

Members are static (KIP-345). To one that comes back under its name the group gives the partitions that it had, without
a new assignment. Where the topic has more partitions by then, no member gets those: Kafka asks the leader of the group
to look (KIP-814), and librdkafka does not know that. More partitions come with a raised generation only. So the
generation is a part of the name: a member of a new generation is a new one, and all partitions are given out anew.
"""

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from fencepost.server.queues.kafka.errors import LOGGER, place
from fencepost.server.queues.kafka.url import KafkaSettings

_LEAVES_WITHIN_S: Final = 5.0


def static_name(member: str, generation: int) -> str:
    """Name a member in the group."""
    return f"{member}.{generation}"


def leave(client: Consumer, settings: KafkaSettings, member: str) -> None:
    """Leave the group, and close the client.

    A static member that only closes keeps its partitions for the length of its session. One that unsubscribes first
    leaves, once what it did in them is committed: then it has no id any more.
    """
    try:
        client.unsubscribe()
        until = time.monotonic() + _LEAVES_WITHIN_S
        while client.memberid() and time.monotonic() < until:
            client.poll(0.05)
        client.close()
    except (KafkaException, RuntimeError) as error:
        LOGGER.warning("%s: member %s could not leave: %s", place(settings), member, error)


def is_fenced(error: KafkaError) -> bool:
    """Whether another process has joined under the member's name; a call that comes after the first has another code,
    and the same words.
    """
    return (
        error.code() == KafkaError.FENCED_INSTANCE_ID or KafkaError(KafkaError.FENCED_INSTANCE_ID).str() in error.str()
    )
