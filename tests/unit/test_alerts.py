"""The alerts and the dashboard of deploy/: on metrics that exist, with rules that promtool has tried."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fencepost.server.observe.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY, RUNBOOK = ROOT / "deploy", ROOT / "docs" / "runbook.md"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"


def known() -> set[str]:
    """Give the names that `/metrics` has, with those of the parts of histograms."""
    described = Metrics().exposition().decode()
    types = re.findall(r"^# TYPE (\S+) (\S+)$", described, re.MULTILINE)
    parts = {name + part for name, kind in types if kind == "histogram" for part in ("_bucket", "_count", "_sum")}
    return {name for name, _ in types} | parts


@pytest.mark.parametrize("file", [ALERTS, DEPLOY / "grafana" / "fencepost.json"], ids=lambda file: file.name)
def test_each_metric_exists(file: Path) -> None:
    text = file.read_text("utf-8")
    named = set(re.findall(r"\bfencepost_[a-z_]+", text))
    assert len(named) > 8
    assert named <= known()
    if file.suffix == ".json":
        assert len(json.loads(text)["panels"]) > 8


def test_each_alert_leads_to_a_part_of_the_runbook() -> None:
    headings = re.findall(r"^## (.+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    parts = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    alerts = ALERTS.read_text("utf-8")
    named = re.findall(r"runbook: docs/runbook.md#(\S+)", alerts)
    assert len(named) == alerts.count("- alert: ")
    assert set(named) <= parts


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
def test_the_rules_fire_where_they_should_and_nowhere_else() -> None:
    tests = ALERTS.with_name("alerts_test.yml")
    done = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
