"""docker-compose.yml: each profile has a gateway that can read its source's or queue's URL, and servers that forget
nothing.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from fencepost.server.parts import read_queues, read_source
from fencepost.server.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = YAML(typ="safe", pure=True).load(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODES = {"redis": 1, "redlock": 5, "etcd": 3, "zookeeper": 3}
PORTS = {"redis": 6379, "redlock": 6379, "etcd": 2379, "zookeeper": 2181}


def of(profile: str) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in SERVICES.items() if service.get("profiles") == [profile]}


def test_there_is_a_profile_for_each_service_that_compose_can_run() -> None:
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    assert profiles == {*NODES, "kafka"}, "a new profile of a lock service gets a line in NODES and in PORTS"


def test_the_profile_of_a_queue_has_a_topic_a_gateway_that_submits_and_a_consumer() -> None:
    services = of("kafka")
    assert services.keys() == {"kafka", "kafka-topic", "gateway-kafka", "consumer-kafka"}
    for name in ("gateway-kafka", "consumer-kafka"):
        service = services[name]
        (queue,) = read_queues(Settings(queues=service["environment"]["FENCEPOST_QUEUES"]))
        assert queue.name == "kafka:orders"
        assert {each: how["condition"] for each, how in service["depends_on"].items()} == {
            "postgres": "service_healthy",
            "migrate": "service_completed_successfully",
            "kafka": "service_healthy",
            "kafka-topic": "service_completed_successfully",
        }
    assert services["consumer-kafka"]["command"][:2] == ["consume", "kafka:orders"]
    assert services["consumer-kafka"]["healthcheck"] == {"disable": True}, "it has no /readyz"
    assert "--topic orders --partitions 8" in services["kafka-topic"]["command"]
    broker = services["kafka"]["environment"]
    assert (broker["KAFKA_PROCESS_ROLES"], broker["KAFKA_LOG_FLUSH_INTERVAL_MESSAGES"]) == ("broker,controller", "1")


@pytest.mark.parametrize("profile", NODES)
def test_the_gateway_of_a_profile_names_all_nodes_and_waits_for_them(profile: str) -> None:
    services = of(profile)
    gateway = services.pop(f"gateway-{profile}")
    assert len(services) == NODES[profile]
    text = gateway["environment"]["FENCEPOST_SOURCES"]
    assert read_source(text, "").kind == profile
    hosts = urlsplit(text.partition("=")[2]).netloc.split(",")
    assert {host.partition(":")[0] for host in hosts} == set(services)
    assert {int(host.partition(":")[2] or PORTS[profile]) for host in hosts} == {PORTS[profile]}
    waits_for = gateway["depends_on"]
    assert {name for name, how in waits_for.items() if how["condition"] == "service_healthy"} == {*services, "postgres"}
    assert waits_for["migrate"]["condition"] == "service_completed_successfully"


def test_gateways_know_their_callers_by_a_secret_that_is_the_users_own() -> None:
    gateways = {name: service for name, service in SERVICES.items() if "--allow-remote" in service.get("command", [])}
    assert gateways.keys() == {"gateway", "gateway-kafka", *(f"gateway-{profile}" for profile in NODES)}
    for service in gateways.values():
        assert service["environment"]["FENCEPOST_JWT_SECRET"].startswith("${FENCEPOST_JWT_SECRET:?"), "no default"
        assert service["environment"]["FENCEPOST_DATABASE_URL"]
    assert "FENCEPOST_JWT_SECRET" not in SERVICES["migrate"]["environment"]


def test_every_redis_keeps_what_it_acknowledged() -> None:
    for name, service in (of("redis") | of("redlock")).items():
        if not name.startswith("gateway"):
            command = " ".join(service["command"])
            assert "--appendonly yes --appendfsync always" in command, name
            assert "--maxmemory-policy noeviction" in command, name
