"""Which source a URL names, and the error for one that names none."""

import pytest

from fencepost.locks.registry import SourceContext, make
from fencepost.locks.source import SourceConfigError
from fencepost.settings import Settings
from fencepost.source_wiring import check_sources
from fencepost.startup import StartupError

CONTEXT = SourceContext("s", "")


@pytest.mark.parametrize("url", ["etcd://[::1", "redis://u:hunter2℀@h/0", "nowhere://u:hunter2@h", "", "redis"])
def test_a_url_that_names_no_source_is_not_repeated(url: str) -> None:
    with pytest.raises(SourceConfigError) as error:
        make(url, CONTEXT)
    assert "hunter2" not in str(error.value)
    assert str(error.value)


def test_the_gateways_own_database_may_be_one_that_is_not_there_yet() -> None:
    """`serve` reads the sources before its embedded PostgreSQL runs, and advisory locks may be that one's."""
    check_sources(Settings.model_validate({"sources": "locks=postgres-advisory:"}))
    with pytest.raises(StartupError, match="FENCEPOST_SOURCES"):
        check_sources(Settings.model_validate({"sources": "locks=nowhere://x"}))
