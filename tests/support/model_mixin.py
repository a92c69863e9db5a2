"""The contract that every model has to pass: `ModelContract`, subclassed once for each model.

A subclass makes the input, has the settings of the job, and checks that the model has learnt; the
contract runs it on clusters of real processes.  Jobs that are only compared with each other share
one cluster: starting processes is most of the cost of a small job.
"""

import contextlib
import signal
from typing import ClassVar

import numpy as np
import pytest
from processes import Cluster, environment, run_well
from test_cluster import figures_of

from snailps import local_cluster
from snailps.local.offline_export import CheckpointSource
from snailps.local.table_export import export_tables
from snailps.master.job.input import BLOCKS_LEAST
from snailps.store.checkpoint.folder import CheckpointFolder

COMMON = {"epochs", "blocks", "blocks_per_epoch", "loss_by_epoch", "train_loss", "train_s"}
COMMON |= {"survey_s", "wall_s", "progress", "peak_rss_mb", "rows", "servers", "workers", "files"}


class ModelContract:
    """The tests that every model must pass."""

    job: ClassVar = {}
    """Settings of the job, `worker_class` included; the input is ``input`` in the job's folder."""

    kind = "examples"
    """What the model counts."""

    units = 0
    """How many of them the input has."""

    results = ()
    """Names of the result files."""

    optimizers = ()
    """Values of `optimizer` that the model supports."""

    shapes = ((2, 2),)
    """Servers and workers of clusters; that any number will do is shown with one model."""

    interrupted_workers = 1
    """Of the job that is interrupted; 2 where one alone first pushes after 250,000 examples."""

    @staticmethod
    def write_input(folder):
        """Writes ``input`` (and whatever else the job reads) into the folder."""
        raise NotImplementedError

    def check_learnt(self, folder, figures):
        """Asserts that the results in the folder come from a model that has learnt.

        Several workers that do not wait for each other never end twice alike: bounds lie halfway
        to what an untrained model has, which no run comes near by luck.

        Returns
        -------
        dict
            Figures of how much it has learnt, which tests/quality holds to what others had.
        """
        raise NotImplementedError

    def run(self, folder, servers=1, workers=1, **settings):
        """Runs the job in a new folder; the figures of the run."""
        folder.mkdir(exist_ok=True)
        self.write_input(folder)
        job = {"input": "input", "output": "out", **self.job, **settings}
        return figures_of(run_well(folder, job=job, servers=servers, workers=workers))

    @classmethod
    @contextlib.contextmanager
    def session(cls, folder):
        """A cluster for several jobs, one after the other, in a folder with the input."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
            patch.chdir(folder)
            cls.write_input(folder)
            with local_cluster(threads=1, shard_num=1) as cluster:
                yield cluster

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory):
        """The cluster shared by all jobs that are only compared with each other."""
        with cls.session(tmp_path_factory.mktemp("session")) as cluster:
            yield cluster

    def results_of(self, cluster, folder, jobs):
        """Bytes of the result files of jobs of two epochs, one after the other.

        Parameters
        ----------
        jobs : sequence of dict
            The settings in which the jobs differ.
        """
        files = []
        for number, settings in enumerate(jobs):
            job = {"input": "input", **self.job, "epochs": 2, **settings}
            job |= {key: value.split(", ") for key, value in job.items() if ", " in str(value)}
            output = folder / f"job{number}"
            cluster.train(job.pop("worker_class"), **job, output=output / "out")
            files.append([(output / name).read_bytes() for name in self.results])
        return files

    def test_model_on_cluster_of_any_shape_learns(self, tmp_path, servers, workers):
        figures = self.run(tmp_path, servers, workers)
        self.check_learnt(tmp_path, figures)
        unit = self.kind[:-1]
        expected = {self.kind, f"{self.kind}_per_s", f"block_{self.kind}_max", f"bytes_per_{unit}"}
        assert figures.keys() >= COMMON | expected
        epochs = figures["epochs"]
        assert figures[self.kind] == epochs * self.units
        # In a rotation partitions are blocks, too.
        assert figures["blocks"] >= epochs * figures["blocks_per_epoch"]
        assert figures["blocks_per_epoch"] * epochs >= min(10 * epochs, BLOCKS_LEAST)
        assert figures["progress"] == 1.0
        assert (figures["servers"], figures["workers"]) == (servers, workers)
        assert figures[f"bytes_per_{unit}"] > 0
        losses = figures["loss_by_epoch"]
        assert len(losses) == epochs
        assert losses[-1] == figures["train_loss"]
        if workers == 1:  # several workers' deltas add up, which on so little text may overshoot
            assert losses[-1] < losses[0]
        assert figures["files"] == list(self.results)

    def test_model_with_same_seed_gives_identical_files_and_with_other_seed_others(
        self, tmp_path, cluster
    ):
        jobs = [{"seed": 1}, {"seed": 1}, {"seed": 2}]
        first, again, other = self.results_of(cluster, tmp_path, jobs)
        assert first == again
        if self.job.get("model"):  # what draws random numbers
            assert all(one != two for one, two in zip(first, other, strict=True))

    def test_model_with_every_optimizer_it_supports_learns_differently(self, tmp_path, cluster):
        if len(self.optimizers) > 1:
            jobs = [{"optimizer": name} for name in self.optimizers]
            results = self.results_of(cluster, tmp_path, jobs)
            assert len({first for first, *_ in results}) == len(jobs)

    def test_model_with_backup_period_and_interrupt_saves_both(self, tmp_path):
        self.write_input(tmp_path)
        job = {"input": "input", "output": "out", **self.job, "epochs": 100_000}
        job |= {"param_backup_period": 1, "param_backup_root": "backups"}
        with Cluster(tmp_path, job=job, workers=self.interrupted_workers) as cluster:
            master = cluster.master()
            servers, workers = cluster.nodes()
            master.wait_line(r"checkpoint \d+: ")
            master.send(signal.SIGINT)
            assert cluster.codes() == [130, *[0] * len(servers + workers)], master.stderr
        for checkpoint in CheckpointFolder(tmp_path / "backups").found():
            assert checkpoint.state == "good", checkpoint.why
            export_tables(
                CheckpointSource(checkpoint.path), str(tmp_path / "tables"), overwrite=True
            )
            with np.load(tmp_path / "tables.npz") as saved:
                names = {name.rpartition(".")[0] for name in saved}
                for table in names:
                    assert len(saved[f"{table}.keys"]) == len(saved[f"{table}.rows"])
                    assert np.isfinite(saved[f"{table}.rows"]).all()
                # That of the texts of a rotation is empty: one worker does not rotate.
                assert {name for name in names if len(saved[f"{name}.keys"])} == set(self.tables)
        for name in self.results:
            assert (tmp_path / name).stat().st_size > 0

    tables = ()
    """Names of its tables."""
