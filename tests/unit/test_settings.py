"""Settings: URLs of token sources and of the database, names in ZooKeeper, files and variables that have nothing."""

import json
import os
from base64 import b64encode
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from tests.support.asking import RSA, SECRET

from fencepost.cli.gateway import read_api_token
from fencepost.cli.shared import BadSettingError, flag, read_settings, to_environment, variable
from fencepost.server.fence.seal import parse_keys
from fencepost.server.locks import etcd, kubernetes_api
from fencepost.server.locks import zookeeper_session as zookeeper
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.locks.source import (
    KINDS,
    MOST_NATIVE,
    SourceConfigError,
    SourceContext,
    SourceError,
    make,
    seconds,
    whole,
)
from fencepost.server.locks.zookeeper import QueueNode, in_order, parent_of, token
from fencepost.server.parts import check_authentication, check_sources, read_seal_keys
from fencepost.server.settings import DECIDING, FILES, Settings
from fencepost.server.startup import StartupError

# How the URLs of token sources are read: strictly, and without a word of a password.

SIGNED = [
    "redis://user:{}@one/0",
    "rediss://user:{}@one/0?ca=/c.pem",
    "redlock://user:{}@one,two,three/0",
    "zookeeper://user:{}@one,two/root?session_timeout_s=3",
    "etcd://user:{}@one,two?prefix=a",
    "etcds://user:{}@one?ca=/c.pem",
    "postgres-advisory://user:{}@one/db?keys=hash",
]


def test_every_kind_of_source_is_looked_at() -> None:
    looked_at = {url.partition(":")[0] for url in SIGNED} | {"kubernetes"}
    assert looked_at == set(KINDS), "add a URL of each scheme to SIGNED, with user, password and all that its form has"


@pytest.mark.parametrize("url", SIGNED)
def test_a_url_is_taken_with_its_password_percent_encoded(url: str) -> None:
    assert make(url.format("sec%2Fr%3Fe%23t%40"), SourceContext("locks", "")).capabilities is not None


@pytest.mark.parametrize("password", ["sec/ret", "sec?ret", "sec#ret", "1?ret=sec", "1/sec,ret", "sec[ret"])
def test_no_message_has_a_part_of_a_password_that_was_written_badly(password: str) -> None:
    broken = [url.partition("?")[0] + "?unknown=1" for url in SIGNED] + [url.replace("one", "one:x") for url in SIGNED]
    for url in (*SIGNED, *broken, "kubernetes://user:{}@in-cluster/a?names=own"):
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


# The ZooKeeper source's names, orders, handles and URLs, without a server.


def test_a_lock_is_one_node_below_the_root() -> None:
    assert parent_of("/fencepost", "orders/order-123") == "/fencepost/orders%2Forder-123"
    assert parent_of("/fencepost", "..") == "/fencepost/%2E%2E"
    assert parent_of("/fencepost", "%2E%2E") == "/fencepost/%252E%252E"
    assert parent_of("/fencepost", "a.b") == "/fencepost/a.b"


def test_the_queue_is_in_order_also_where_its_counter_overflows() -> None:
    rising = ["2147483646", "2147483647", "-2147483648", "-2147483647"]
    names = [f"{guid}__lock__{number}" for guid, number in zip("dbca", rising, strict=True)]
    assert in_order("it", reversed(names)) == names
    assert in_order("it", names[2:] + names[:2]) == names
    around_zero = ["a__lock__-000000001", "b__rlock__0000000000", "c__lock__0000000001"]
    assert in_order("it", reversed(around_zero)) == around_zero


@pytest.mark.parametrize("child", ["config", "_c_7-lock-0000000001", "x__lock__", "x__lock__0000000001x"])
def test_what_is_no_place_in_a_queue_is_named(child: str) -> None:
    with pytest.raises(SourceError, match=child) as error:
        in_order("the lock", ["a__lock__0000000001", child])
    assert "the lock" in str(error.value)


@pytest.mark.parametrize("session", [0x1000_0000_0000_0001, -(2**63), -1, 2**63 - 1])
def test_a_handle_has_it_all(session: int) -> None:
    place = QueueNode("1f__lock__0000000003", 2**33 + 1, session, "wörker")
    assert QueueNode.from_handle("it", place.handle) == place
    assert place.guid == "1f"


@pytest.mark.parametrize(
    "change", [{"node": "../x"}, {"node": "a/b__lock__0000000001"}, {"czxid": None}, {"session": 3}]
)
def test_a_handle_of_something_else_is_refused(change: dict[str, object]) -> None:
    handle = {**json.loads(QueueNode("1f__lock__0000000003", 1, 1, "us").handle), **change}
    for wrong in (json.dumps(handle), "7", "", "[]"):
        with pytest.raises(SourceError, match="handle of lock 'it'"):
            QueueNode.from_handle("it", wrong)


def test_a_number_that_is_too_large_is_no_token() -> None:
    assert token("it", MOST_NATIVE) == MOST_NATIVE
    with pytest.raises(SourceError, match="epoch"):
        token("it", MOST_NATIVE + 1)


# A database URL is read strictly, and what is wrong with it is said without its password.

ADDRESS = "postgresql://me:s3cret@127.0.0.1:5432"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:s3cret%zz@127.0.0.1/db", "a % without two hexadecimal digits"),
        ("postgresql://me:s3cret%4@127.0.0.1/db", "a % without two hexadecimal digits"),
        ("postgresql://me:s3cret%00@127.0.0.1/db", "NUL"),
        ("postgresql://me:s3cret@more@127.0.0.1/db", "a # or an @ where none may be"),
        ("postgresql://u:s3@x@db/x", "a # or an @ where none may be"),
        ("postgresql://u:s3#cret@db/x", "a # or an @ where none may be"),
        ("postgresql://u:s3/x@db/x", "a # or an @ where none may be"),
        (f"{ADDRESS}/db\nsecond", "a blank, or more than one line"),
        (f"{ADDRESS}/db ", "a blank, or more than one line"),
        ("postgresql://u:s3 cret@db/x", "a blank, or more than one line"),
        (f"{ADDRESS}/db\x00", "a blank, or more than one line"),
        ("postgresql:u:s3cret@db/x", "it is postgresql://user"),
        ("u:s3cret@db/x", "it is postgresql://user"),
        ("mysql://u:s3cret@db/x", "it is postgresql://user"),
        ("host=a", "it is postgresql://user"),
        ("postgresql://u:s3cret@a:1,/x", "host number 2"),
        ("postgresql://u:s3cret@a,b:99999/x", "host number 2"),
        ("postgresql://u@a,b:0/x", "host number 2"),
        ("postgresql://u:s3cret@a:1:2/x", "host number 1"),
        ("postgresql://u:s3cret@[::1/x", "host number 1"),
        ("postgresql://u:s3cret@a/x?sslmode", "no name=value"),
        ("postgresql://u@a/x?a=b&", "no name=value"),
        (f"{ADDRESS}/db/more/path", "its path is the name of a database"),
        (f"{ADDRESS}/db?sslmode=bogus", "sslmode: it is one of disable, allow,"),
        (f"{ADDRESS}/db?target_session_attrs=foo", "target_session_attrs: it is one of any, primary,"),
        (f"{ADDRESS}/db?connect_timeout=abc", "connect_timeout: a parameter that psql has"),
        (f"{ADDRESS}/db?port=5432,99999", "port: it is a number from 1"),
        (f"{ADDRESS}/db?sslrootcert=/no/such%20file", "sslrootcert: there is no file '/no/such file'"),
        (f"{ADDRESS}/db?sslkey=/nope&sslmode=require", "sslkey: there is no file '/nope'"),
    ],
)
def test_what_is_wrong_is_named_without_the_url(url: str, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(database_url=SecretStr(url))
    assert message in str(raised.value)
    assert "s3" not in str(raised.value)


def test_what_may_be_right_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "root.crt"
    file.touch()
    for url in (
        "postgresql://",
        "postgresql:///shop",
        "postgres://%2Frun%2Fpostgresql/db",
        "postgresql:///shop?host=/run/postgresql",
        "postgresql:///db?host=/run/postgresql&port=5433",
        "postgresql://u@[::1]:5432/x",
        "postgresql://a:1,b:2/x?target_session_attrs=read-write",
        "postgresql://me:p%25%2F%40@[::1]:5432,other:5433/d%2Fb",
        "postgres://u:p%40%2F@db-1.example:5432/shop",
        "postgresql://u:p%40%2F@db-1.example:5432/shop?sslmode=require&application_name=x",
        f"{ADDRESS}/db?application_name=x&search_path=a,b&statement_timeout=5s&options=-c%20geqo%3Doff&my.own=1",
        f"{ADDRESS}/db?sslmode=verify-full&sslrootcert={file}&target_session_attrs=read-write",
        f"{ADDRESS}/db?sslmode=disable&sslrootcert=/nope",
        f"{ADDRESS}/?sslcert=&sslmode=verify_ca",
        ADDRESS,
    ):
        assert Settings(database_url=SecretStr(url)).database_url is not None, url


# Files and variables that should have a secret, a URL or keys, and have nothing: none of them means "off".

EMPTY = [b"", b"\n", b" \t\r\n ", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("content", [*EMPTY, *[b"\0" * 64, "a secret of more than 32 bytes".encode("utf-16")]])
def test_a_file_without_content_is_refused_by_its_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_bytes(content)
    why = "it is empty" if content in EMPTY else "it is no text"
    for name in FILES:
        with pytest.raises(BadSettingError) as caught:
            read_settings({name: str(file)})
        assert f"{flag(name)} ({variable(name)}): " in caught.value.message
        assert (str(file) in caught.value.message, why in caught.value.message) == (True, True), caught.value.message
    with pytest.raises(BadSettingError, match=f"@{file}: .*{why}"):
        read_settings({"jwt_secret": f"@{file}"})
    with pytest.raises(StartupError, match=f"JWT JWKS: '{file}': .*{why}"):
        check_authentication(read_settings({"jwt_jwks": str(file)}))


def test_a_file_without_a_jwks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("<html></html>")
    with pytest.raises(StartupError, match=f"JWT JWKS: '{tmp_path}/s': the JWKS cannot be read"):
        check_authentication(read_settings({"jwt_jwks": f"{tmp_path}/s"}))


def test_a_file_without_content_has_no_token(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("\n")
    with pytest.raises(Exception, match=f"{tmp_path}/s: it is empty"):
        read_api_token(str(tmp_path / "s"))


@pytest.mark.parametrize("content", [SECRET, f"{SECRET}\n", f"\ufeff{SECRET}\r\n", f"@{SECRET}", f"{{@'{SECRET}"])
def test_a_good_file_is_read_once_and_handed_on(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, content.encode())
    os.close(writing)
    settings = read_settings({"jwt_secret_file": f"/dev/fd/{reading}"})
    os.close(reading)
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    for each in (settings, Settings()):
        assert each.jwt_secret is not None
        assert each.jwt_secret.get_secret_value().strip() == content.strip().removeprefix("\ufeff")


@pytest.mark.parametrize("name", DECIDING)
def test_an_empty_variable_is_as_if_not_set_and_an_empty_option_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, str | None] = dict.fromkeys(Settings.model_fields)
    without = read_settings(options)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(variable(name), "")
    assert read_settings(options) == without
    assert capsys.readouterr().err == f"WARNING  set, but empty, and so as if not set: {variable(name)}\n"
    read_settings({})
    assert capsys.readouterr().err == "", "a command that does not take it"
    with pytest.raises(BadSettingError, match="it is empty"):
        read_settings({**options, name: ""})
    for value in (" ", ", ,"):
        monkeypatch.setenv(variable(name), value)
        with pytest.raises(BadSettingError, match="nothing but blanks and commas"):
            read_settings(options)


def test_an_empty_variable_is_not_named_where_a_file_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s").write_text(SECRET)
    monkeypatch.setenv("FENCEPOST_JWT_SECRET", "")
    read_settings({"jwt_secret_file": str(tmp_path / "s"), "jwt_secret": None})
    assert capsys.readouterr().err == ""


def test_a_public_key_seals_nothing(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(f"one:{b64encode(RSA.as_pem(private=False)).decode()}")
    with pytest.raises(StartupError, match="the key one looks like a key or certificate"):
        read_seal_keys(Settings(seal_keys_file=tmp_path / "s"))
    good = f"one:{b64encode(b'k' * 32).decode()}"
    (tmp_path / "s").write_text(f"\ufeff{good}\n")
    assert read_seal_keys(Settings(seal_keys_file=tmp_path / "s")) == parse_keys(good)


async def test_a_service_account_without_namespace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    for name, content in (("token", "t"), ("ca.crt", "c"), ("namespace", "\n")):
        (tmp_path / name).write_text(content)
    with pytest.raises(SourceConfigError, match="namespace: it is empty"):
        await kubernetes_api.read(kubernetes_api.InCluster(tmp_path))


def test_leases_have_the_limits_that_settings_have_by_default() -> None:
    here, limits = Settings(), LeaseLimits()
    assert (limits.ttl_ms, limits.wait_ms) == (here.max_ttl * 1000, here.max_wait * 1000)
    assert limits.tokens == here.max_tokens
