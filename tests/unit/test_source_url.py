"""How the URLs of token sources are read: strictly, and without a word of a password."""

import pytest

from fencepost.server.locks import etcd
from fencepost.server.locks import zookeeper_session as zookeeper
from fencepost.server.locks.source import KINDS, SourceConfigError, SourceContext, make, seconds, whole
from fencepost.server.parts import check_sources
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

SIGNED = [
    "redis://user:{}@one/0",
    "rediss://user:{}@one/0?ca=/c.pem",
    "redlock://user:{}@one,two,three/0",
    "zookeeper://user:{}@one,two/root?session_timeout_s=3",
    "etcd://user:{}@one,two?prefix=a",
    "etcds://user:{}@one?ca=/c.pem",
    "postgres-advisory://user:{}@one/db?keys=hash",
]
BROKEN = [url.partition("?")[0] + "?unknown=1" for url in SIGNED] + [url.replace("one", "one:x") for url in SIGNED]


def test_every_kind_of_source_is_looked_at() -> None:
    looked_at = {url.partition(":")[0] for url in SIGNED} | {"kubernetes"}
    assert looked_at == set(KINDS), "add a URL of each scheme to SIGNED, with user, password and all that its form has"


@pytest.mark.parametrize("url", SIGNED)
def test_a_url_is_taken_with_its_password_percent_encoded(url: str) -> None:
    assert make(url.format("sec%2Fr%3Fe%23t%40"), SourceContext("locks", "")).capabilities is not None


@pytest.mark.parametrize("password", ["sec/ret", "sec?ret", "sec#ret", "1?ret=sec", "1/sec,ret", "sec[ret"])
def test_no_message_has_a_part_of_a_password_that_was_written_badly(password: str) -> None:
    for url in (*SIGNED, *BROKEN, "kubernetes://user:{}@in-cluster/a?names=own"):
        with pytest.raises(SourceConfigError, match=r"the URL of source locks|the URL cannot be read") as refused:
            make(url.format(password), SourceContext("locks", ""))
        words = str(refused.value).replace("seconds", "")
        assert "sec" not in words, url
        assert "ret" not in words, url
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__


@pytest.mark.parametrize("url", ["REDISS://one/0?ca=/c.pem", "Kubernetes://in-cluster?serviceaccount=/x"])
def test_an_option_is_known_whatever_the_case_of_the_scheme(url: str) -> None:
    assert make(url, SourceContext("locks", "")).capabilities is not None


WRONG = {
    # Of every source, by one reader.
    "etcd://": "wrong at host 1",
    "etcd://one,": "wrong at host 2",
    "zookeeper://us:hunter2@h1,,h2": "wrong at host 2",
    "zookeeper://h1:": "wrong at host 1",
    "redis://h:0/0": "wrong at host 1",
    "redis://h:65536/0": "wrong at host 1",
    "redis://h:6379x/0": "wrong at host 1",
    "redis://:hunter2": "wrong at host 1",
    "redis://a,b/0": "takes one host",
    "redis://h/0#x": "has a #",
    "redis://:hunter2/x@h/0": "an @ after its hosts",
    "redis://h/0?prefx=a": "unknown option prefx",
    "redis://h/0?prefix=a&prefix=b": "option prefix twice",
    "redis://h/0?prefix=": "prefix without a value",
    "redis://h/0?prefix": "that is not name=value",
    "redis://h/0?ca=/etc/ca.pem": "the option ca, which is for rediss:// only",
    "zookeeper://us@h1": "password",
    "zookeeper://:hunter2@h1": "user",
    # Of one.
    "redis://h/0/1": "the path '/0/1'",
    "redis://h/zero": "the path '/zero'",
    "redis://h/0?prefix=a%20b": "prefix=a b: it takes 1 to 64",
    "redis://h/0?wait_ms=5": "the option wait_ms, which needs replicas=",
    "redis://h/0?replicas=-1": "replicas=-1: it takes a whole number from 0 to 99",
    "redis://h/0?replicas=1&wait_ms=3000": "wait_ms=3000: it takes a whole number from 1 to 2000",
    "redlock://a,b/0": "3 or more different hosts",
    "redlock://a,b,c,c:6379/0": "3 or more different hosts",
    "redlock://a,b,c/0?replicas=1": "unknown option replicas",
    "redlock://a,b,c/0?node_timeout_ms=1001": "node_timeout_ms=1001",
    "etcd://one/path": "the path",
    "etcds://one?cert=/a.pem": "together",
    "zookeeper://h1/a//b": "the path",
    "zookeeper://h1/a/../b": "the path",
    "zookeeper://h1/a%00": "the path",
    "zookeeper://h1?session_timeout_s=0.5": "session_timeout_s",
    "zookeeper://h1?session_timeout_s=601": "session_timeout_s",
    "postgres-advisory://h/db?keys=both": "keys=both",
    "postgres-advisory://h/db?sessions=0": "sessions=0",
    "postgres-advisory://h/db?sslmode=on": "sslmode=on",
    "postgres-advisory://h": "one host and one database",
    "postgres-advisory://h/db/more": "the path",
    "postgres-advisory:?sslmode=require": "belongs into",
    "postgres-advisory:": "no database",
    "kubernetes://me:hunter2@in-cluster/locks": "something else than in-cluster or kubeconfig",
    "kubernetes://in-cluster/a/b": "the path '/a/b'",
    "kubernetes://in-cluster?context=x": "context, which is for kubernetes://kubeconfig only",
    "kubernetes://kubeconfig?names=other": "names=other: it is one of hashed, own",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_url_is_named_without_its_password(url: str) -> None:
    with pytest.raises(SourceConfigError) as error:
        make(url, SourceContext("locks", ""))
    assert WRONG[url] in str(error.value)
    assert "source locks" in str(error.value)
    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("url", ["redis://u:hunter2@[::1", "redis://u:hunter2℀@h/0", "nowhere://u:hunter2@h", "redis"])
def test_a_url_that_names_no_source_is_not_repeated(url: str) -> None:
    with pytest.raises(SourceConfigError, match=r"is no token source|cannot be read") as error:
        make(url, SourceContext("locks", ""))
    assert "hunter2" not in str(error.value)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name="kazoo")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(SourceConfigError, match=r"needs the library kazoo: pip install '\.\[zookeeper\]'"):
        make("zookeeper://h", SourceContext("locks", ""))


def test_urls_with_everything() -> None:
    found = etcd.parse("etcds://us%40er:p%2Fw@[::1]:7,[fe80::1]?prefix=/locks/&ca=/c.pem&cert=/a.pem&key=/b.pem", "s")
    assert found.endpoints == ("https://[::1]:7", "https://[fe80::1]:2379")
    assert (found.user, found.password, found.prefix) == ("us@er", "p/w", "/locks/")
    assert (found.ca, found.cert, found.key) == ("/c.pem", "/a.pem", "/b.pem")
    assert "p/w" not in f"{found!r} {found}"
    settings = zookeeper.parse("zookeeper://us:p%40ss@h1,[::1]:7,h3:2182/a/b/?session_timeout_s=2.5", "zk")
    assert (settings.where, settings.root) == ("h1:2181,[::1]:7,h3:2182", "/a/b/fencepost")
    assert (settings.session_timeout_s, settings.credentials) == (2.5, "us:p@ss")
    assert "p@ss" not in repr(settings)
    assert zookeeper.parse("zookeeper://h", "zk").root == "/fencepost"


def test_a_ttl_of_redlock_is_long_against_the_time_limit_of_a_node() -> None:
    least = {"redlock://a,b,c": 500, "redlock://a,[::1]:7000,c/2?node_timeout_ms=20": 200}
    for url, milliseconds in least.items():
        assert make(url, SourceContext("locks", "")).capabilities.least_ttl_ms == milliseconds


def test_the_gateways_own_database_may_be_one_that_is_not_there_yet() -> None:
    """`serve` reads the sources before its embedded PostgreSQL runs, and advisory locks may be that one's."""
    check_sources(Settings.model_validate({"sources": "locks=postgres-advisory:"}))
    with pytest.raises(StartupError, match="FENCEPOST_SOURCES"):
        check_sources(Settings.model_validate({"sources": "locks=nowhere://x"}))


def test_numbers_are_in_their_bounds() -> None:
    for text in ("", "-1", "+1", "1.0", "1_0", " 1", "\u0661", "100", "1\n"):
        with pytest.raises(ValueError, match="a whole number from 1 to 99"):
            whole(1, 99)(text)
    for text in ("", "-1", "nan", "inf", "1e1", "0.9", ".5", "1.", "10.01", "\u0661"):
        with pytest.raises(ValueError, match="seconds from 1 to 10"):
            seconds(1, 10)(text)
    assert (whole(1, 99)("99"), seconds(1, 10)("1"), seconds(1, 10)("2.5")) == (99, 1.0, 2.5)
