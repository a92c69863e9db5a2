"""Settings that stand where no process reads them: one line each, and where they belong."""

import re

import pytest
from cluster_models import COUNTER

from snailps import models
from snailps.cli.common import read_config, remarks, role_settings
from snailps.config import (
    ClusterSettings,
    JobSettings,
    MasterSettings,
    ServerSettings,
    WorkerSettings,
    settings_of,
)
from snailps.config.legacy import IGNORED
from snailps.errors import ConfigError

ROLES = {"master": MasterSettings, "server": ServerSettings, "worker": WorkerSettings}
OWN = {
    "master": (MasterSettings, models.SETTINGS["word2vec"]),
    "server": (ServerSettings,),
    "worker": (WorkerSettings,),
}


def names_of(*classes):
    """Every name under which these classes know a setting, with the setting."""
    return {
        name: setting
        for cls in classes
        for setting in settings_of(cls).values()
        for name in (setting.name, *(alias.name for alias in setting.aliases))
    }


EVERYTHING = names_of(*models.SETTINGS.values(), JobSettings, *ROLES.values())


@pytest.fixture
def said_by(capsys, tmp_path):
    """The lines of a process that reads this file."""

    def read(role, text, *sets, launched=False):
        (tmp_path / "node.conf").write_text(text)
        raw = read_config(tmp_path / "node.conf", sets)
        role_settings(raw, ROLES[role], launched=launched)
        return capsys.readouterr().err.splitlines()

    return read


@pytest.mark.parametrize("role", ROLES)
def test_setting_of_another_process_gets_one_line_and_its_own_get_none(role):
    raw = read_config(None, [f"{key}=x" for key in EVERYTHING])
    told = [text for _, text in remarks(raw, f"a {role}", OWN[role])]
    for key in EVERYTHING.keys() - names_of(*OWN[role]):
        line = next(one for one in told if f" {key}=x: " in one)
        told.remove(line)
        assert line.startswith(f"--set {key}=x: {key} has no effect in a {role}: "), key
        assert re.search(r'"[^"]+"\. It belongs to .*file \(\w+\.conf\)', line), key
    assert told == []


@pytest.mark.parametrize(
    ("role", "key", "parts"),
    [
        ("server", "adagrad", ["what a push does", "(master.conf)", "there called optimizer"]),
        ("server", "param_backup_root", ["checkpoints", "(master.conf)", "called checkpoint_dir"]),
        ("server", "param_backup_period", ["checkpoint is made", "(master.conf)"]),
        ("worker", "num_iters", ["Number of training passes", "(master.conf)", "called epochs"]),
        ("worker", "frag_num", ["fragments", "(master.conf)"]),
        ("worker", "shard_num", ["shard threads", "(server.conf)"]),
        ("worker", "listen_addr", ["listens on", "(master.conf) or a server's (server.conf)"]),
        ("worker", "port_range", ["Ports to choose from", "(server.conf)"]),
        ("server", "async_channel_thread_num", ["(worker.conf)", "there called threads"]),
        ("server", "len_vec", ["(master.conf), with a job of fasttext or word2vec", "called dim"]),
    ],
)
def test_setting_in_the_file_of_another_process_is_told_with_its_place(said_by, role, key, parts):
    (line,) = said_by(role, f"\n{key}: 1\n")
    assert f"node.conf:2: {key} has no effect in a {role}: " in line
    for part in parts:
        assert part in line


def test_listen_addr_for_all_processes_gets_no_line_of_its_own_at_a_worker(said_by, tmp_path):
    (tmp_path / "common.conf").write_text("listen_addr: 10.0.0.1:0\n")
    (line,) = said_by("worker", "import common.conf\n")
    assert "common.conf: not read by a worker, but listen_addr from" in line


def test_setting_assigned_twice_gets_one_line(said_by):
    (line,) = said_by("server", "epochs: 1\nepochs: 2\n")
    assert "node.conf:2: epochs" in line


def test_unknown_setting_is_refused_with_a_suggestion(said_by):
    with pytest.raises(ConfigError, match="did you mean 'param_backup_root'"):
        said_by("server", "param_backup_rot: x")


@pytest.mark.parametrize("role", ROLES)
def test_old_setting_without_effect_anywhere_gets_one_line(said_by, role):
    lines = said_by(role, "".join(f"{key}: 1\n" for key in IGNORED))
    assert len(lines) == len(IGNORED)
    for key in IGNORED:
        assert sum(f" {key} has no effect: " in line for line in lines) == 1


JOB = f"""
worker_class: {COUNTER}
input: in.txt
epochs: 3
frag_num: 64
shard_num: 1
threads: 1
"""


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        ("master", ["shard_num", "threads"]),
        ("server", ["worker_class", "input", "epochs", "frag_num", "threads"]),
        ("worker", ["worker_class", "input", "epochs", "frag_num", "shard_num"]),
    ],
)
def test_file_of_all_roles_gets_one_line(said_by, role, keys):
    (line,) = said_by(role, JOB)
    assert "node.conf: not read by " in line
    assert set(keys) <= set(re.findall(r"\w+", line.partition(" but ")[2]))


@pytest.mark.parametrize("role", ["server", "worker"])
def test_file_that_is_imported_gets_one_line_besides_the_importing_one(said_by, tmp_path, role):
    (tmp_path / "common.conf").write_text("epochs: 3\ndim: 5\nlog_level: info\nlr: 2\n")
    lines = said_by(role, "import common.conf\nparam_backup_period: 100\nlr: 1\n")
    assert len(lines) == 3
    assert [line for line in lines if "node.conf:2: param_backup_period has no effect" in line]
    assert [line for line in lines if "node.conf:3: lr has no effect" in line]
    (shared,) = [line for line in lines if "common.conf: not read by" in line]
    assert "epochs from the master's file (master.conf); dim from the master's" in shared
    assert "lr" not in shared


def test_environment_gets_one_line(said_by, monkeypatch):
    monkeypatch.setenv("SNAILPS_EPOCHS", "3")
    monkeypatch.setenv("SNAILPS_DIM", "3")
    (line,) = said_by("server", "")
    assert "environment: not read by a server, but " in line


@pytest.mark.parametrize("role", ROLES)
def test_process_that_ours_has_started_says_nothing(said_by, role):
    assert said_by(role, "num_iters: 3\nzlib: 1\nthreads: 2\n", launched=True) == []


def test_old_name_of_a_setting_of_the_job_is_told_by_the_master(said_by):
    (line,) = said_by("master", f"worker_class: {COUNTER}\nnum_iters: 3\n")
    assert "node.conf:2: num_iters is called epochs here; taken as 'epochs: 3'" in line


def test_setting_of_another_model_is_told_by_the_master(said_by):
    (line,) = said_by("master", "", f"worker_class={COUNTER}", "bucket=5")
    assert "--set bucket=5: bucket has no effect in the master: " in line
    assert "with a job of fasttext or word2vec" in line


def test_settings_of_every_process_belong_to_every_process():
    for key in names_of(ClusterSettings):
        for role, own in OWN.items():
            assert remarks(read_config(None, [f"{key}=x"]), role, own) == []
