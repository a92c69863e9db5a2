"""Checkpoints in bsp and in rounds, by real processes: what follows has the same bits."""

import re
import signal

import pytest
from processes import Cluster, Gate
from test_bsp import files_of, prepare
from test_cluster import figures_of
from test_ends import Observer
from test_failures import FAILED

pytestmark = pytest.mark.limit(600)  # several clusters a test


def run(folder, job, servers, workers):
    """Runs a job in a folder to its end; the master."""
    with Cluster(folder, job=job, servers=servers, workers=workers) as cluster:
        codes, master = cluster.run()
        assert codes == [0] * (1 + servers + workers), master.stderr
    return master


def stop_at(folder, job, gate, servers, workers):
    """Kills a server once two checkpoints were made while a worker stood at a gate."""
    with Cluster(folder, job=job, servers=servers, workers=workers) as cluster:
        master = cluster.master()
        killed = cluster.nodes()[0][0]
        gate.meet()
        with Observer(cluster) as observer:
            newest = observer.status()["checkpoint"]["number"]
        line = master.wait_line(f"checkpoint {newest + 2}: ")
        killed.send(signal.SIGKILL)
        gate.open()
        codes = cluster.codes()
        assert codes[0] == FAILED
        assert "The same command goes on from checkpoint" in master.errors[0]
    return int(re.search(r": (\d+)% of", line)[1])


@pytest.mark.long(but=["logistic"])
@pytest.mark.parametrize("model", ["logistic", "words", "fm", "classifier"])
def test_bsp_job_continued_from_a_checkpoint_has_the_bits_of_one_undisturbed(tmp_path, model):
    whole, again = tmp_path / "whole", tmp_path / "again"
    whole.mkdir()
    again.mkdir()
    gates = tmp_path / "gates"  # a setting, which a model's file names
    run(whole, prepare(whole, model, gates=gates), 1, 1)
    job = prepare(again, model, checkpoint_interval=0.3, checkpoint_dir="saved", gates=gates)
    (again / "input").write_bytes((whole / "input").read_bytes())
    share = stop_at(again, job, Gate(gates, 10, "before"), 1, 2)
    assert 0 < share < 100
    master = run(again, job, 2, 3)
    master.wait_line(rf"continuing from checkpoint \d+ .* {share}% of the training")
    assert files_of(again) == files_of(whole)
    assert figures_of(master)["continued_from"] > 0


def test_bsp_job_saved_all_the_time_has_the_bits_of_one_undisturbed(tmp_path):
    whole, saved = tmp_path / "whole", tmp_path / "saved"
    whole.mkdir()
    saved.mkdir()
    run(whole, prepare(whole, "logistic"), 1, 1)
    job = prepare(saved, "logistic", checkpoint_interval=0.001, checkpoint_dir="saved")
    (saved / "input").write_bytes((whole / "input").read_bytes())
    run(saved, job, 2, 2)
    assert files_of(saved) == files_of(whole)


def test_job_in_rounds_continued_from_a_checkpoint_ends_with_the_same_model(tmp_path):
    whole, again = tmp_path / "whole", tmp_path / "again"
    job = {"worker_class": "clock_models:Mean", "output": "out", "rounds": 5}
    models = []
    for folder in (whole, again):
        folder.mkdir()
        if folder is again:
            job |= {"checkpoint_interval": 0.3, "gates": again / "gates"}
            stop_at(again, job, Gate(again / "gates", 2 * 2, "before"), 1, 2)
        master = run(folder, job, 1 + (folder is again), 2)
        figures = figures_of(master)
        models.append((figures["model"], figures.get("rounds")))
    master.wait_line(r"continuing from checkpoint \d+ .* 40% of the training")
    assert models[0] == models[1]
