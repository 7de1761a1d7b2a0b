"""Files and variables that should have a secret, a URL or keys, and have nothing: none of them means "off"."""

import os
from base64 import b64encode
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from tests.support.asking import RSA, SECRET

from fencepost.cli.gateway import read_api_token
from fencepost.cli.shared import BadSettingError, flag, read_settings, to_environment, variable
from fencepost.server.fence.seal import parse_keys
from fencepost.server.locks import kubernetes_api
from fencepost.server.locks.source import SourceConfigError
from fencepost.server.parts import check_authentication, read_seal_keys
from fencepost.server.settings import DECIDING, FILES, Settings
from fencepost.server.startup import StartupError

EMPTY = [b"", b"\n", b" \t\r\n ", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"]
NO_TEXT = [b"\0" * 64, "a secret of more than 32 bytes".encode("utf-16")]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("content", [*EMPTY, *NO_TEXT])
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


async def test_a_service_account_without_a_namespace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    for name, content in (("token", "t"), ("ca.crt", "c"), ("namespace", "\n")):
        (tmp_path / name).write_text(content)
    with pytest.raises(SourceConfigError, match="namespace: it is empty"):
        await kubernetes_api.read(kubernetes_api.InCluster(tmp_path))


SOUND = "postgresql://u:p%40%2F@db-1.example:5432/shop"


def test_a_database_url_is_one_url_and_its_fault_is_said_without_it() -> None:
    good_urls = (
        *(
            SOUND,
            SOUND.replace("postgresql", "postgres"),
            f"{SOUND}?sslmode=require&application_name=x",
            "postgresql:///shop",
        ),
        *("postgresql://u@[::1]:5432/x", "postgresql://a:1,b:2/x?target_session_attrs=read-write"),
        "postgresql:///shop?host=/run/postgresql",
    )
    for good in good_urls:
        assert Settings(database_url=SecretStr(good)).database_url is not None
    bad_urls = {
        "a blank, or more than one line": (
            f"{SOUND}\nsecond",
            f"{SOUND} ",
            "postgresql://u:s3 cret@db/x",
            f"{SOUND}\x00",
        ),
        "postgresql://user": ("postgresql:u:s3cret@db/x", "u:s3cret@db/x", "mysql://u:s3cret@db/x", "host=a"),
        "a # or an @ where none": (
            "postgresql://u:s3@x@db/x",
            "postgresql://u:s3#cret@db/x",
            "postgresql://u:s3/x@db/x",
        ),
        "host number 2": (
            "postgresql://u:s3cret@a:1,/x",
            "postgresql://u:s3cret@a,b:99999/x",
            "postgresql://u@a,b:0/x",
        ),
        "host number 1": ("postgresql://u:s3cret@a:1:2/x", "postgresql://u:s3cret@[::1/x"),
        "no name=value": ("postgresql://u:s3cret@a/x?sslmode", "postgresql://u@a/x?a=b&"),
    }
    for fault, urls in bad_urls.items():
        for bad in urls:
            with pytest.raises(ValidationError) as raised:
                Settings(database_url=SecretStr(bad))
            assert fault in str(raised.value), bad
            assert "s3" not in str(raised.value), bad
