"""A real Prometheus scrapes a real cluster, loads the rules, and raises the alert of a loss.

It takes Debian's `prometheus`, with `promtool`; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_models import gated_job
from processes import LIMIT_S, Cluster, Gate, free_port
from test_ends import Observer
from waiting import until

from snailps.node.metrics import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "tools" / "grafana" / "snailps.json"
ALERTS = ROOT / "tools" / "prometheus" / "alerts.yml"

if shutil.which("prometheus") is None or shutil.which("promtool") is None:
    pytest.skip(
        "no Prometheus here: it takes prometheus and promtool (apt-get install prometheus)",
        allow_module_level=True,
    )


class Prometheus:
    """One that scrapes these addresses each second, with our rules."""

    def __init__(self, folder: Path, addresses: list[str]) -> None:
        self._port = free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "snailps", "static_configs": [{"targets": addresses}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        subprocess.run(
            ["promtool", "check", "config", str(folder / "prometheus.yml")],
            check=True, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
        self._log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'series'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def get(self, path: str, **parameters: str) -> Any:
        """What its interface answers; None while it starts."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}", timeout=LIMIT_S
            ) as answer:
                return json.load(answer)["data"]
        except OSError:
            assert self.process.poll() is None, "prometheus has ended: see prometheus.log"
            return None

    def values(self, query: str) -> list[float]:
        """The values of a query now."""
        found = self.get("query", query=query)
        return [float(one["value"][1]) for one in found["result"]] if found else []

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def panels() -> Iterator[tuple[str, str]]:
    """Title and query of each panel of the dashboard that has one, of the last seconds."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$job", "snailps").replace("$__rate_interval", "5s")
            if "snailps_words_total" not in query:  # the job counts examples
                yield panel["title"], query


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Cluster, Gate]]:
    """Two servers and a worker that stands in the training until its gate is opened."""
    job = gated_job(tmp_path)
    gate = Gate(tmp_path / "gates", 2)
    settings = {"metrics_addr": "127.0.0.1:0"}
    with Cluster(tmp_path, settings, job=job, servers=2, workers=1) as made:
        made.master()
        made.nodes()
        gate.meet()
        yield made, gate


def test_prometheus_scrapes_a_cluster_and_raises_the_alert_of_a_lost_server(
    cluster: tuple[Cluster, Gate], tmp_path: Path
) -> None:
    made, gate = cluster
    with Observer(made) as observer:
        status = observer.until(
            lambda s: (
                all(node["metrics"] for node in s["nodes"])
                and len(s["nodes"]) == 3
                and all(shard["state"] == "ready" for shard in s["shards"])
            )
        )
        addresses = [status["master"]["metrics"], *(n["metrics"] for n in status["nodes"])]
        for address in addresses:
            text = urllib.request.urlopen(f"http://{address}/metrics", timeout=LIMIT_S).read()
            told = subprocess.run(
                ["promtool", "check", "metrics"], input=text, capture_output=True,
                timeout=LIMIT_S, check=False,
            )  # fmt: skip
            assert (told.returncode, told.stdout + told.stderr) == (0, b"")
        prometheus = Prometheus(tmp_path, addresses)
        try:
            until(lambda: prometheus.values("sum(up)") == [4.0], "all four processes are scraped")
            names = set(prometheus.get("label/__name__/values"))
            # What only some jobs have: examples, a loss, a session, checkpoints, a standby behind.
            assert {f.name for f in FAMILIES if f.kind != "histogram"} - names <= {
                "snailps_words_total", "snailps_learning_rate", "snailps_jobs_total",
                "snailps_checkpoint_age_seconds", "snailps_waits_seconds", "snailps_loss",
            }  # fmt: skip
            types = prometheus.get("metadata")
            assert all(types[f.name][0]["type"] == f.kind for f in FAMILIES if f.name in types)
            rules = prometheus.get("rules")["groups"][0]["rules"]
            assert len(rules) >= 5
            assert all(rule["health"] in ("ok", "unknown") for rule in rules)
            until(lambda: prometheus.values("snailps_shards_without_standby") == [0.0], "standbys")
            # This job has no checkpoints, no loss, no learning rate and, now and then, no wait.
            spared = {"Checkpoint age", "Loss", "Loss and learning rate", "Waits"}
            wanted = [query for title, query in panels() if title not in spared]
            assert len(wanted) > 10
            until(lambda: all(map(prometheus.values, wanted)), "a value in each panel")
            rows = prometheus.values('sum(snailps_shard_rows{copy="primary"})')
            assert rows[0] > 0

            server = next(node for node in status["nodes"] if node["role"] == "server")
            os.kill(server["pid"], signal.SIGKILL)
            until(
                lambda: prometheus.values('snailps_events_total{kind="lost"}') == [1.0],
                "the loss is counted",
            )
            until(
                lambda: (
                    "SnailpsProcessLost"
                    in {one["labels"]["alertname"] for one in prometheus.get("alerts")["alerts"]}
                ),
                "the alert is raised",
            )
        finally:
            prometheus.close()
            gate.open()


def test_promtool_takes_the_rules_and_their_tests() -> None:
    tests = ROOT / "tests" / "repo" / "alerts_test.yml"
    for words in (["check", "rules", str(ALERTS)], ["test", "rules", str(tests)]):
        told = subprocess.run(
            ["promtool", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (told.returncode, "SUCCESS" in told.stdout) == (0, True), told.stderr
