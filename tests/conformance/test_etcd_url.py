"""etcd:// and etcds:// URLs, passwords and certificates."""

import subprocess
from pathlib import Path

import pytest
from tests.conformance.etcd.asking import granted
from tests.conformance.etcd_bench import EtcdBench, running

from fencepost.locks.etcd.api import EtcdApi, EtcdRefusedError
from fencepost.locks.etcd.source import EtcdSource, from_url
from fencepost.locks.etcd.url import parse
from fencepost.locks.registry import SourceContext, make
from fencepost.locks.source import Source, SourceConfigError, SourceUnavailableError


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("etcd://one", ("http://one:2379",)),
        ("etcd://one:1,two.example:2/", ("http://one:1", "http://two.example:2")),
        ("etcds://[::1]:7,[fe80::1]", ("https://[::1]:7", "https://[fe80::1]:2379")),
    ],
)
def test_endpoints(url: str, endpoints: tuple[str, ...]) -> None:
    assert parse(url, "s").endpoints == endpoints


def test_options() -> None:
    found = parse("etcds://us%40er:p%2Fw@one?prefix=/locks/&ca=/c.pem&cert=/a.pem&key=/b.pem", "s")
    assert (found.user, found.password, found.prefix) == ("us@er", "p/w", "/locks/")
    assert (found.ca, found.cert, found.key) == ("/c.pem", "/a.pem", "/b.pem")
    assert "p/w" not in f"{found!r} {found}"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://", "host 1"),
        ("etcd://one,", "host 2"),
        ("etcd://one:x", "host 1"),
        ("etcd://one:70000", "host 1"),
        ("etcd://[::1", "brackets"),
        ("etcd://one/path", "path"),
        ("etcd://one#f", "has a #"),
        ("etcd://one?prefx=a", "prefx"),
        ("etcd://one?prefix=", "prefix without a value"),
        ("etcd://one?prefix=a&prefix=b", "twice"),
        ("etcd://one?ca=/ca.pem", "ca, which is for etcds:// only"),
        ("etcds://one?cert=/a.pem", "together"),
        ("etcd://user@one", "password"),
        ("etcd://:secret@one", "user"),
    ],
)
def test_a_wrong_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(SourceConfigError, match=says) as error:
        from_url(url, SourceContext("locks", ""))
    assert "locks" in str(error.value)


@pytest.mark.parametrize("password", ["sec/ret", "sec?ret", "sec#ret", "sec@ret", "1?ret=sec", "sec:ret", "sec[ret"])
def test_no_error_quotes_a_password_that_was_written_badly(password: str) -> None:
    with pytest.raises(SourceConfigError) as error:
        from_url(f"etcd://user:{password}@one:x?no=1", SourceContext("locks", ""))
    assert "sec" not in str(error.value)
    assert "ret" not in str(error.value)


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
