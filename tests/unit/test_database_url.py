"""A database URL is read strictly, and what is wrong with it is said without its password."""

from pathlib import Path

import pytest

from fencepost.server.settings import database_url_fault

ADDRESS = "postgresql://me:topsecret@127.0.0.1:5432"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:topsecret%zz@127.0.0.1/db", "a % without two hexadecimal digits"),
        ("postgresql://me:topsecret%4@127.0.0.1/db", "a % without two hexadecimal digits"),
        ("postgresql://me:topsecret%00@127.0.0.1/db", "NUL"),
        ("postgresql://me:topsecret@more@127.0.0.1/db", "a # or an @ where none may be"),
        (f"{ADDRESS}/db/more/path", "its path is the name of a database"),
        (f"{ADDRESS}/db?sslmode=bogus", "sslmode: it is one of disable, allow,"),
        (f"{ADDRESS}/db?target_session_attrs=foo", "target_session_attrs: it is one of any, primary,"),
        (f"{ADDRESS}/db?connect_timeout=abc", "connect_timeout: a parameter that psql has"),
        (f"{ADDRESS}/db?port=5432,99999", "port: it is a number from 1"),
        (f"{ADDRESS}/db?sslrootcert=/no/such%20file", "sslrootcert: there is no file '/no/such file'"),
        (f"{ADDRESS}/db?sslkey=/nope&sslmode=require", "sslkey: there is no file '/nope'"),
    ],
)
def test_what_is_wrong_is_named(url: str, message: str) -> None:
    fault = database_url_fault(url)
    assert fault is not None
    assert message in fault
    assert "topsecret" not in fault


def test_what_may_be_right_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "root.crt"
    file.touch()
    for url in (
        "postgresql://",
        "postgres://%2Frun%2Fpostgresql/db",
        "postgresql:///db?host=/run/postgresql&port=5433",
        "postgresql://me:p%25%2F%40@[::1]:5432,other:5433/d%2Fb",
        f"{ADDRESS}/db?application_name=x&search_path=a,b&statement_timeout=5s&options=-c%20geqo%3Doff&my.own=1",
        f"{ADDRESS}/db?sslmode=verify-full&sslrootcert={file}&target_session_attrs=read-write",
        f"{ADDRESS}/db?sslmode=disable&sslrootcert=/nope",
        f"{ADDRESS}/?sslcert=&sslmode=verify_ca",
        ADDRESS,
    ):
        assert database_url_fault(url) is None, url
