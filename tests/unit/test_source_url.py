"""How the URLs of token sources are read: strictly, and without a word of a password."""

import pytest

from fencepost.locks.registry import KINDS, SourceContext, make
from fencepost.locks.source import SourceConfigError
from fencepost.locks.source_url import seconds, whole

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


def test_numbers_are_in_their_bounds() -> None:
    for text in ("", "-1", "+1", "1.0", "1_0", " 1", "\u0661", "100", "1\n"):
        with pytest.raises(ValueError, match="a whole number from 1 to 99"):
            whole(1, 99)(text)
    for text in ("", "-1", "nan", "inf", "1e1", "0.9", ".5", "1.", "10.01", "\u0661"):
        with pytest.raises(ValueError, match="seconds from 1 to 10"):
            seconds(1, 10)(text)
    assert (whole(1, 99)("99"), seconds(1, 10)("1"), seconds(1, 10)("2.5")) == (99, 1.0, 2.5)
