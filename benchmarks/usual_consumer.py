"""A Kafka consumer as most would write it, the one that `fencepost consume` is compared with.

It polls one message, does one UPDATE, commits it, and says to Kafka that it is done: `each` commits the offset after
every message, and waits for that; `auto` leaves offsets to librdkafka, which commits them every five seconds. It has no
fence, no triggers, no dead letters, and keeps no answers. `python -m benchmarks.usual_consumer` reads a Plan as JSON
from stdin, and writes how many messages it applied a second.
"""

import json
import secrets
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import psycopg
from confluent_kafka import Consumer, KafkaException

from benchmarks.cells import PLAIN
from benchmarks.processes import BenchmarkError, run

COMMITS: Final = ("each", "auto")
_UPDATE: Final = f"UPDATE {PLAIN} SET status = %s WHERE order_id = %s"
_MODULE: Final = "benchmarks.usual_consumer"
_JOINS_WITHIN: Final = 20.0  # seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What to consume: from the topic's beginning, `warmup` and then `seconds` long. `commit`: one of COMMITS."""

    dsn: str
    bootstrap: str
    topic: str
    commit: str
    warmup: float
    seconds: float


def applied_per_second(plan: Plan) -> float:
    """Run the plan in a process of its own. BenchmarkError when the topic has too few messages for it."""
    within = plan.warmup + plan.seconds + _JOINS_WITHIN + 20
    given = json.dumps(asdict(plan))
    return float(run([sys.executable, "-m", _MODULE], within=within, given=given))


def consume(plan: Plan) -> float:
    """Run the plan; return the rate."""
    consumer = Consumer(
        {
            "bootstrap.servers": plan.bootstrap,
            "group.id": f"usual-{secrets.token_hex(4)}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": plan.commit == "auto",
        }
    )
    consumer.subscribe([plan.topic])
    try:
        with psycopg.connect(plan.dsn) as connection:
            return _consume(plan, consumer, connection)
    finally:
        consumer.close()


def _consume(plan: Plan, consumer: Consumer, connection: "psycopg.Connection[tuple[object, ...]]") -> float:
    _apply_next(plan, consumer, connection, _JOINS_WITHIN)
    until = time.perf_counter() + plan.warmup
    while time.perf_counter() < until:
        _apply_next(plan, consumer, connection, 1.0)
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + plan.seconds:
        _apply_next(plan, consumer, connection, 1.0)
        count += 1
    return count / (now - begin)


def _apply_next(
    plan: Plan, consumer: Consumer, connection: "psycopg.Connection[tuple[object, ...]]", within: float
) -> None:
    message = consumer.poll(within)
    if message is None:
        raise BenchmarkError("the topic has too few messages")
    if (error := message.error()) is not None:
        raise KafkaException(error)
    order_id = (message.key() or b"").decode().partition("/")[2]
    change = json.loads(message.value() or b"")
    if connection.execute(_UPDATE, (change["status"], order_id)).rowcount != 1:
        raise BenchmarkError(f"there is no order {order_id}")
    connection.commit()
    if plan.commit == "each":
        consumer.commit(message=message, asynchronous=False)


if __name__ == "__main__":
    sys.stdout.write(f"{consume(Plan(**json.load(sys.stdin)))}\n")
