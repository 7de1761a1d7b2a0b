"""What doctor shows of a queue in Redis."""

from pathlib import Path

from pydantic import SecretStr
from tests.conformance.redis_bench import redis_server

from fencepost.cli.doctor_queues import examine_queues, read_configured_queues
from fencepost.settings import Settings
from fencepost.testing.servers.ports import free_port


def settings(*urls: str) -> Settings:
    return Settings(queues=SecretStr(" ".join(urls)))


async def test_doctor_shows_what_a_queues_server_may_lose(tmp_path: Path) -> None:
    port = free_port()
    with redis_server(tmp_path / "redis", port, "--save", ""):
        (finding,) = await examine_queues(read_configured_queues(settings(f"redis://127.0.0.1:{port}/orders")))
    assert (finding.level, finding.subject) == ("warning", "queue redis:orders")
    assert "keeps no journal" in finding.text


async def test_a_queue_that_cannot_be_asked_is_an_error(port: int) -> None:
    healthy, away = f"redis://127.0.0.1:{port}/orders", f"redis://127.0.0.1:{free_port()}/other"
    (finding,) = await examine_queues(read_configured_queues(settings(away, healthy)))
    assert (finding.level, finding.subject) == ("error", "queue redis:other")
    assert "cannot be asked" in finding.text
