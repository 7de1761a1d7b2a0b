"""`fencepost lock --help`, and the timings that it refuses."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from fencepost.cli.lock import margin_for
from fencepost.cli.main import main


def test_the_help_shows_the_exit_codes_and_the_environment() -> None:
    answer = CliRunner().invoke(main, ["lock", "--help"])
    assert answer.exit_code == 0
    assert "lock NAME [OPTIONS] [--] COMMAND [ARGS]..." in answer.output
    for code in ("2", "69", "75", "79", "126", "127", "128+n"):
        assert f" {code}  " in answer.output, code
    for variable in ("FENCE_TOKEN", "FENCE_LOCK", "FENCEPOST_URL", "FENCEPOST_LEASE", "FENCEPOST_LEASE_SECRET"):
        assert f"  {variable}  " in answer.output, variable


def test_lock_and_mint_load_no_server() -> None:
    code = (
        "import sys; from fencepost.cli.main import main\n"
        "for name in ('lock', 'mint', 'batch'): main.get_command(None, name)\n"
        "print([name for name in ('fastapi', 'sqlalchemy', 'asyncpg', 'alembic', 'pydantic') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("ttl", "grace", "margin"), [(30.0, 5.0, 6.5), (6.0, 1.0, 1.3), (0.3, 0.05, 0.07), (30.0, 0.0, 1.5)]
)
def test_trust_ends_by_the_grace_and_the_clients_own_margin_early(ttl: float, grace: float, margin: float) -> None:
    assert margin_for(ttl, grace) == pytest.approx(margin)


@pytest.mark.parametrize(("ttl", "grace"), [(30.0, 13.6), (30.0, -1.0), (30.0, float("nan")), (10.0, 5.0)])
def test_a_grace_that_does_not_fit_into_the_ttl_is_refused(ttl: float, grace: float) -> None:
    with pytest.raises(ValueError, match=r"--grace .* does not fit into --ttl"):
        margin_for(ttl, grace)
