"""A source in a package of its own: installed as pip does it, found by its entry point."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support.lease_http import post, release
from tests.support.serving import serving

from fencepost.testing.servers.waiting import PATIENCE

PACKAGE = Path(__file__).parents[1] / "third_party"


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
    async with serving(short_dir, **variables) as gateway, _client(gateway.url) as api:
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


def _add(source: str, installed: Path) -> str:
    """Run `fencepost source add`, which must fail; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", "source", "add", source],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "FENCEPOST_DATABASE_URL": "postgresql://x@x/x"},
    )
    assert done.returncode == 1, done
    return done.stderr


def test_a_scheme_that_no_package_brings_is_refused_and_those_that_are_there_are_named(installed: Path) -> None:
    output = _add("shop=acne:///locks.db", installed)
    assert "acne:// is no token source that is installed: acme://, etcd://" in output


def test_what_the_package_reports_of_its_url_is_shown(installed: Path) -> None:
    assert "shop needs a file, as in acme:///var/lib/acme/locks.db" in _add("shop=acme:", installed)
