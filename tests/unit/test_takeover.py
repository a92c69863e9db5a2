"""Results that are there, journals of other versions: jobs are refused before all else."""

import socket
from types import SimpleNamespace

import pytest

from snailps.api.tables import Table
from snailps.api.worker import load_class
from snailps.config import RawConfig
from snailps.config.output import refuse_existing
from snailps.errors import ConfigError
from snailps.master.effects import Fact
from snailps.master.job.job import Job
from snailps.master.job.record import JobRecord
from snailps.master.job.session import SessionJob
from snailps.master.journal import Journal
from snailps.master.life import COMMAND, LASTING
from snailps.master.takeover import FORMAT, check_results, first_fact, unended
from snailps.models import CLASSES
from snailps.store.checkpoint.folder import Checkpoint, CheckpointFolder
from snailps.store.route import Route, ShardAddress


def job(tmp_path, model="logistic", **settings):
    (tmp_path / "in.txt").write_text("1 1:1\n0 2:1\n")
    given = {
        "worker_class": CLASSES[model],
        "input": f"{tmp_path}/in.txt",
        "output": f"{tmp_path}/out",
    }
    return Job(RawConfig.from_mapping({**given, **settings}, "the test"))


def refuse(its, *, takes_over=False):
    check_results(its.model.cls, its.settings, takes_over=takes_over)


def test_result_that_exists_is_refused_with_file_size_date_and_the_ways_on(tmp_path):
    (tmp_path / "out.npz").write_bytes(bytes(2_500_000))
    with pytest.raises(ConfigError) as refused:
        refuse(job(tmp_path))
    text = str(refused.value)
    assert f"{tmp_path}/out.npz exists (2.5 MB, written 2" in text
    for part in ("--overwrite", "another output", "no unfinished run"):
        assert part in text


def test_result_that_exists_is_replaced_when_told_or_where_the_run_goes_on(tmp_path):
    (tmp_path / "out.npz").touch()
    refuse(job(tmp_path, overwrite="true"))
    refuse(job(tmp_path), takes_over=True)
    refuse(job(tmp_path, output=""))
    refuse(job(tmp_path, output=f"{tmp_path}/other"))


@pytest.mark.parametrize(("state", "fresh", "refused"), [
    ("good", "false", False), ("good", "true", True), ("unfinished", "false", True),
])  # fmt: skip
def test_result_of_a_job_with_checkpoints_is_replaced_where_one_is_good(
    tmp_path, monkeypatch, state, fresh, refused
):
    (tmp_path / "out.npz").touch()
    manifest = SimpleNamespace(job={"progress": 0.5}) if state == "good" else None
    found = [Checkpoint(1, tmp_path / "checkpoint-000001", state, manifest=manifest)]
    monkeypatch.setattr(CheckpointFolder, "candidates", lambda folder: iter(found))
    its = job(tmp_path, checkpoint_interval="60", fresh=fresh)
    if refused:
        with pytest.raises(ConfigError, match="--overwrite"):
            refuse(its)
    else:
        refuse(its)
    with pytest.raises(ConfigError, match="--overwrite"):  # it makes no use of checkpoints
        refuse(job(tmp_path))


@pytest.mark.parametrize(("model", "endings", "settings"), [
    ("fasttext", ["vec", "npz"], {"formats": "vec, npz"}),
    ("classifier", ["bin"], {}),
    ("logistic", ["npz"], {}),
    ("fm", ["npz"], {}),
    ("sparse_net", ["npz"], {}),
    ("mlp", ["npz"], {}),
])  # fmt: skip
def test_every_model_names_its_result_files(model, endings, settings):
    its = RawConfig.from_mapping({"output": "out", **settings}, "the test")
    cls = load_class(CLASSES[model], "the test")
    assert list(cls.result_files(its.build(cls.Settings))) == [f"out.{end}" for end in endings]


def test_folder_in_the_place_of_a_result_is_refused_even_with_overwrite(tmp_path):
    (tmp_path / "out.npz").mkdir()
    with pytest.raises(ConfigError, match=r"out\.npz is a folder"):
        refuse(job(tmp_path, overwrite="true"))


def test_several_results_are_counted(tmp_path):
    for name in ("a.bin", "b.vec"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"a\.bin exists .* and 1 more of its files"):
        refuse_existing([f"{tmp_path}/{name}" for name in ("none", "a.bin", "b.vec")])


# --- journals of other versions ---------------------------------------------------------------


@pytest.fixture
def shard():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def left_by(its, folder, shard, tables=(), more=(), *, of_job=True, **about):
    """A journal of a run whose shard still listens, or that has formed no cluster; its folder."""
    first = first_fact(7, its, 16, 0.0)
    first.data.update(about)
    is_of_0_1 = not first.data["format"]
    if is_of_0_1:  # formats had no numbers, and a cluster's id another name
        del first.data["format"]
        first = Fact("life", {"life": first.data.pop("cluster_id"), **first.data})
    route = []
    if shard is not None:
        address = ShardAddress(1, *shard.getsockname()[:2])
        route = [Fact("route", {"route": Route.build(1, [address], 16).to_dict()})]
    journal = Journal(folder)
    assert not journal.take()
    facts = [
        Fact("table", {"number": number, "table": table.to_dict(), "of_job": of_job})
        for number, table in enumerate(tables, 1)
    ]
    journal.begin([first, *facts, *more, *route])
    journal.close()
    if is_of_0_1:
        (folder / "cluster").rename(folder / "life")
    return folder


def read_again(its, folder, life=COMMAND):
    journal = Journal(folder)
    try:
        return unended(journal, its, 16, life)
    finally:
        journal.close()


@pytest.mark.parametrize("written", [0, FORMAT + 1])
def test_run_of_another_version_is_not_taken_over(tmp_path, shard, written):
    its = JobRecord(job(tmp_path))
    folder = left_by(its, tmp_path / "journal", shard, format=written)
    with pytest.raises(ConfigError, match=f"format {written or 1}, this one has {FORMAT}.*--fresh"):
        read_again(its, folder)
    assert read_again(job(tmp_path, fresh="true"), folder) is None
    (folder / "facts").write_bytes(b"x" + (folder / "facts").read_bytes()[1:])
    with pytest.raises(ConfigError, match=f"format {written or 1}, "):  # the copy has it
        read_again(its, folder)


@pytest.mark.parametrize("written", [0, FORMAT + 1])
def test_run_of_another_version_that_has_formed_no_cluster_is_begun_anew(tmp_path, written):
    its = JobRecord(job(tmp_path))
    folder = left_by(its, tmp_path / "journal", None, format=written)
    assert read_again(its, folder) is None
    journal = Journal(folder)
    assert journal.take()
    journal.begin([first_fact(8, its, 16, 0.0)])
    assert journal.read()[0].data["cluster_id"] == 8
    journal.close()
    assert {path.name for path in folder.iterdir()} == {"facts", "cluster", "lock"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint_dir": "ck"}, "this one begins at the newest checkpoint in ck, if there is"),
        ({}, "this one begins anew, as checkpoint_dir is not set"),
    ],
)
def test_run_whose_servers_are_gone_is_told_from_where_the_next_begins(
    tmp_path, shard, caplog, settings, message
):
    its = JobRecord(job(tmp_path, **settings))
    folder = left_by(its, tmp_path / "journal", shard)
    shard.close()
    assert read_again(its, folder) is None
    assert message in caplog.text


def test_run_of_this_version_is_taken_over(tmp_path, shard):
    its = JobRecord(job(tmp_path))
    folder = left_by(its, tmp_path / "journal", shard)
    assert read_again(its, folder).facts[0].data["cluster_id"] == 7


def test_run_whose_tables_name_a_class_is_taken_over_only_if_the_job_declares_it(tmp_path, shard):
    its = JobRecord(job(tmp_path, worker_class="python_methods:Model"))
    own = Table("w", 2, access="python_methods:Momentum", lr=0.1)
    folder = left_by(its, tmp_path / "own", shard, [own])
    assert read_again(its, folder).facts[0].data["cluster_id"] == 7
    folder = left_by(its, tmp_path / "other", shard, [own, Table("x", 2, access="evil:Any")])
    with pytest.raises(ConfigError, match="other: table 'x' has the access method evil:Any, which"):
        read_again(its, folder)


def test_session_is_taken_over_whatever_its_jobs_declared_and_whatever_is_dropped(tmp_path, shard):
    """Its own tables need their modules; a job's are dropped if the master does not know them."""
    its = SessionJob(RawConfig([]))
    own = Table("w", 2, access="python_methods:Momentum", lr=0.1)
    folder = left_by(its, tmp_path / "jobs", shard, [own])
    assert read_again(its, folder, LASTING).facts[0].data["cluster_id"] == 7
    folder = left_by(its, tmp_path / "own", shard, [own], of_job=False)
    with pytest.raises(ConfigError, match="'w' has the access method python_methods:Momentum"):
        read_again(its, folder, LASTING)
    drop = Fact("drop", {"numbers": [1]})
    folder = left_by(its, tmp_path / "gone", shard, [own], [drop], of_job=False)
    assert read_again(its, folder, LASTING).facts[0].data["cluster_id"] == 7
