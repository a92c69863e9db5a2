"""docs/metrics.md, the dashboard and the alerts name metrics that exist, and labels they have."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from waiting import LIMIT_S

from snailps.node.metrics import FAMILIES, describe

TREE = Path(__file__).parents[2]
PAGE = TREE / "docs" / "metrics.md"
DASHBOARD = TREE / "tools" / "grafana" / "snailps.json"
ALERTS = TREE / "tools" / "prometheus" / "alerts.yml"
ALERT_TESTS = TREE / "tests" / "repo" / "alerts_test.yml"
LABELS = {family.name: set(family.labels) for family in FAMILIES}
for family in FAMILIES:
    if family.kind == "histogram":
        LABELS |= {f"{family.name}_bucket": {*family.labels, "le"}}
        LABELS |= {f"{family.name}_{suffix}": set(family.labels) for suffix in ("sum", "count")}
OF_PROMETHEUS = {"job", "instance"}


def test_page_has_the_table_of_all_metrics():
    """After a change: replace the table by what `snailps.node.metrics.describe` returns."""
    assert PAGE.read_text().endswith(describe())


def metrics_in(query):
    """Names of ours in a query, each with the labels that it is asked for."""
    for name, matchers in re.findall(r"\b((?:snailps|process)_\w+)(?:\{([^}]*)\})?", query):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def check_query(query):
    found = list(metrics_in(query))
    assert found or query.strip().startswith("up"), query
    names = set()
    for name, labels in found:
        assert name in LABELS, f"{query}: there is no metric {name}"
        assert labels <= LABELS[name] | OF_PROMETHEUS, query
        names |= LABELS[name]
    grouped = re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", query)
    asked = {label.strip() for labels in grouped for label in labels.split(",")} - {""}
    assert asked <= names | OF_PROMETHEUS, query


def panels(of):
    for panel in of.get("panels", []):
        yield panel
        yield from panels(panel)


def test_dashboard_asks_for_metrics_that_exist():
    board = json.loads(DASHBOARD.read_text())
    shown = [panel for panel in panels(board) if panel["type"] != "row"]
    assert len(shown) >= 10
    for panel in shown:
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            check_query(target["expr"].replace("$job", "snailps").replace("$__rate_interval", "1m"))
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in shown]
    assert len(set(places)) == len(places)
    assert all(x + w <= 24 for x, _, w, _ in places)
    # A figure is that of now: over a range there would be one of each phase that there has been.
    assert all(t["instant"] for panel in shown if panel["type"] == "stat" for t in panel["targets"])
    assert len({panel["id"] for panel in panels(board)}) == len(list(panels(board)))


def test_alerts_ask_for_metrics_that_exist():
    text = ALERTS.read_text()
    queries = re.findall(r"^\s*expr: (.+)$", text, re.MULTILINE)
    assert len(queries) >= 5
    for query in queries:
        check_query(query)


def promtool(*arguments):
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alerts_are_valid_rules():
    assert "SUCCESS" in promtool("check", "rules", ALERTS)


def test_alerts_fire_when_they_should_and_not_before():
    assert "SUCCESS" in promtool("test", "rules", ALERT_TESTS)
