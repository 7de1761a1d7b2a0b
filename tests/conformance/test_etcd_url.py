"""etcd:// and etcds:// URLs, passwords and certificates."""

import subprocess
from pathlib import Path

import pytest
from tests.conformance.etcd.asking import granted
from tests.conformance.etcd_bench import EtcdBench, running

from fencepost.server.locks.etcd import EtcdApi, EtcdRefusedError, EtcdSource, parse
from fencepost.server.locks.source import Source, SourceConfigError, SourceContext, SourceUnavailableError, make


async def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    source = make(f"etcds://one?ca={tmp_path}/none.pem", SourceContext("locks", ""))
    with pytest.raises(SourceConfigError, match="locks"):
        await source.open()


async def signed(bench: EtcdBench) -> None:
    """Make a user who may touch the locks and nothing else, and ask for passwords from now on."""
    for command in (
        "user add root:root",
        "user grant-role root root",
        "role add locks",
        "role grant-permission locks --prefix=true readwrite fencepost/",
        "user add gate:secret",
        "user grant-role gate locks",
        "auth enable",
    ):
        await bench.ctl(*command.split())


class Forgetful(EtcdApi):
    def forget(self) -> None:
        """Go on with a session that etcd does not know."""
        self._token = "unknown.1"


async def test_passwords(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("auth")) as bench:
        (place,) = bench.endpoints
        api = Forgetful(parse(f"etcd://gate:secret@{place}", "locks"))
        source: Source = EtcdSource(api)
        await source.open()
        before = await granted(source, "a/b", ttl_ms=60_000)  # the server asks for no password yet
        await signed(bench)
        assert await source.renew("a/b", before.handle, 60_000) is True
        api.forget()
        assert await source.mint("a/b", before.handle, 1) is not None
        await source.release("a/b", before.handle)
        assert await source.inspect("a/b") is None
        await source.close()

        for url, says in (
            (f"etcd://gate:wrong@{place}", "authentication failed"),
            (f"etcd://gate:secret@{place}?prefix=other/", "permission denied"),
            (f"etcd://{place}", "user name is empty"),
        ):
            source = make(url, SourceContext("locks", ""))
            await source.open()
            with pytest.raises(EtcdRefusedError, match=says) as error:
                await granted(source, "a/b")
            assert "locks" in str(error.value), (url, says)
            assert "wrong" not in str(error.value), (url, says)
            await source.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Make one that signs itself, and its key."""
    made = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(made.split(), cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "cert.pem", tmp_path / "key.pem"


async def test_tls_with_certificates_on_both_sides(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with running(tmp_path, tls=certificate) as bench:
        source = make(f"{bench.url}?ca={cert}&cert={cert}&key={key}", SourceContext("locks", ""))
        await source.open()
        grant = await granted(source, "a")
        assert await source.mint("a", grant.handle, 1) is not None
        await source.close()
        stranger = make(f"{bench.url}?ca={cert}", SourceContext("locks", ""))
        await stranger.open()
        with pytest.raises(SourceUnavailableError):
            await stranger.inspect("a")
        await stranger.close()
