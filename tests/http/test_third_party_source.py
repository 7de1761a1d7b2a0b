"""A source in a package of its own: installed as pip does it, found by its entry point."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support.gateways import serving_process
from tests.support.lease_gateways import post, release

from fencepost.testing.servers.processes import PATIENCE

PACKAGE = Path(__file__).parents[1] / "third_party"
pytestmark = pytest.mark.long("installations of packages")


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example package into a folder of its own; no index is asked."""
    folder = tmp_path_factory.mktemp("third_party")
    arguments = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-build-isolation", "--no-deps")
    subprocess.run([sys.executable, "-m", "pip", "install", *arguments, "--target", folder, PACKAGE], check=True)
    return folder


async def test_it_grants_leases_with_tokens_that_rise(short_dir: Path, installed: Path) -> None:
    variables = {"FENCEPOST_SOURCES": f"shop=acme://{short_dir}/locks.db", "PYTHONPATH": str(installed)}
    async with serving_process(short_dir, **variables) as gateway, _client(gateway.url) as api:
        first = await post(api, "orders/order-123", source="shop", tokens=2)
        assert first.status_code == 201, first.text
        assert first.json()["tokens"] == ["1", "2"]
        assert (await post(api, "orders/order-123", source="shop")).status_code == 423
        minted = await api.post(
            f"/v1/leases/{first.json()['lease_id']}/tokens", headers={"X-Lease-Secret": first.json()["secret"]}
        )
        assert minted.json()["tokens"] == ["3"]
        await release(api, first.json())
        second = await post(api, "orders/order-123", source="shop")
        assert second.json()["token"] == "4"
