"""What in Kafka's settings may lose or repeat messages, for `fencepost doctor`."""

from collections.abc import Mapping
from typing import Final

from fencepost.server.queues.kafka.cluster import LOG_APPEND_TIME, Cluster, largest_letter
from fencepost.server.queues.kafka.url import KafkaSettings

_DAY_MS: Final = 86_400_000
_LEAST_RETENTION_MS: Final = 3 * _DAY_MS
"""As long as a database is away in a bad weekend: what is deleted before it was applied is lost."""
_ENOUGH_REPLICAS: Final = 3


async def advice(cluster: Cluster, settings: KafkaSettings) -> list[str]:
    """List it, one sentence each. Raises LogUnavailableError."""
    described = await cluster.described()
    replicas = min(len(each.replicas) for each in described.partitions)
    found = await cluster.settings_of(settings.topic)
    largest = await cluster.largest_of_dead_topic()
    return [
        *_replication(settings.topic, replicas, found),
        *_deletion(settings.topic, found),
        *_times(settings.topic, found),
        *_letters(settings.dead_topic, largest, largest_letter(found)),
    ]


def _times(topic: str, found: Mapping[str, str]) -> list[str]:
    if found.get("message.timestamp.type") == LOG_APPEND_TIME:
        return []
    return [
        f"message.timestamp.type of topic {topic} is {found.get('message.timestamp.type')}: its producers say when a"
        f" message came, and so how old it is; set it to {LOG_APPEND_TIME}."
    ]


def _letters(topic: str, largest: int | None, wanted: int) -> list[str]:
    if largest is None or largest >= wanted:
        return []
    return [
        f"max.message.bytes of topic {topic} is {largest}: the dead letter of a larger message is kept without its"
        f" value, and cannot be retried; set it to {wanted}."
    ]


def _replication(topic: str, replicas: int, found: Mapping[str, str]) -> list[str]:
    sentences = []
    in_sync = int(found.get("min.insync.replicas", "1"))
    if replicas < _ENOUGH_REPLICAS:
        sentences.append(
            f"Topic {topic} has {replicas} replica{'s' * (replicas > 1)}: a write that was acknowledged is lost with"
            f" {'that broker' if replicas == 1 else 'these brokers'}; three replicas with"
            " min.insync.replicas=2 are usual."
        )
    if replicas > 1 and in_sync == 1:
        sentences.append(
            f"min.insync.replicas of topic {topic} is 1: with the others behind, one broker alone acknowledges writes,"
            " and they are lost with it; 2 is usual."
        )
    if 1 < replicas == in_sync:
        sentences.append(
            f"min.insync.replicas of topic {topic} is {in_sync}, as many as its replicas: no write is taken while one"
            " broker is away."
        )
    if found.get("unclean.leader.election.enable") == "true":
        sentences.append(
            f"unclean.leader.election.enable of topic {topic} is true: a replica that is behind may become the leader,"
            " which loses acknowledged writes and quarantines the queue; set it to false."
        )
    return sentences


def _deletion(topic: str, found: Mapping[str, str]) -> list[str]:
    sentences = []
    policy = {each.strip() for each in found.get("cleanup.policy", "delete").split(",")}
    if "compact" in policy:
        sentences.append(
            f"Topic {topic} is compacted: earlier writes of a resource are deleted before they are applied; set"
            " cleanup.policy=delete."
        )
    retention = int(found.get("retention.ms", "-1"))
    if "delete" in policy and 0 <= retention < _LEAST_RETENTION_MS:
        sentences.append(
            f"retention.ms of topic {topic} is {retention}: writes that wait longer, as for a database that is away,"
            f" are deleted before they are applied; {_LEAST_RETENTION_MS} or more is usual."
        )
    if "delete" in policy and int(found.get("retention.bytes", "-1")) >= 0:
        sentences.append(
            f"retention.bytes of topic {topic} is {found['retention.bytes']}: under load writes are deleted before they"
            " are applied; set it to -1."
        )
    return sentences
