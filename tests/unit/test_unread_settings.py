"""Settings that stand where no process reads them: one line a file."""

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
NAMES = {"master": "the master", "server": "a server", "worker": "a worker"}
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
def test_setting_of_another_process_gets_a_line_and_its_own_get_none(role):
    raw = read_config(None, [f"{key}=x" for key in EVERYTHING])
    told = {text for _, text in remarks(raw, f"a {role}", OWN[role])}
    others = EVERYTHING.keys() - names_of(*OWN[role])
    assert told == {f"--set {key}=x: not read by a {role}: {key}" for key in others}


def test_file_of_one_process_gets_one_line_with_each_name_once(said_by):
    (line,) = said_by("server", "epochs: 1\nadagrad: 1\nepochs: 2\n")
    assert line.endswith("node.conf: not read by a server: epochs, adagrad")


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
    assert line.endswith(f"node.conf: not read by {NAMES[role]}: {', '.join(keys)}")


def test_file_that_is_imported_matters_less_than_the_importing_one(tmp_path):
    (tmp_path / "common.conf").write_text("epochs: 3\ndim: 5\nlog_level: info\nlr: 2\n")
    (tmp_path / "node.conf").write_text("import common.conf\nlr: 1\n")
    raw = read_config(tmp_path / "node.conf", [])
    assert remarks(raw, "a server", OWN["server"]) == [
        (False, f"{tmp_path}/common.conf: not read by a server: epochs, dim, lr"),
        (True, f"{tmp_path}/node.conf: not read by a server: lr"),
    ]


def test_environment_gets_one_line(said_by, monkeypatch):
    monkeypatch.setenv("SNAILPS_EPOCHS", "3")
    monkeypatch.setenv("SNAILPS_DIM", "3")
    (line,) = said_by("server", "")
    assert line.endswith("environment: not read by a server: dim, epochs")


@pytest.mark.parametrize("role", ROLES)
def test_process_that_ours_has_started_says_nothing(said_by, role):
    assert said_by(role, "num_iters: 3\nzlib: 1\nthreads: 2\n", launched=True) == []


def test_old_name_of_a_setting_of_the_job_is_told_by_the_master(said_by):
    (line,) = said_by("master", f"worker_class: {COUNTER}\nnum_iters: 3\n")
    assert "node.conf:2: num_iters is called epochs here; taken as 'epochs: 3'" in line


def test_setting_of_another_model_is_told_by_the_master(said_by):
    (line,) = said_by("master", "", f"worker_class={COUNTER}", "bucket=5")
    assert line.endswith("--set bucket=5: not read by the master: bucket")


def test_settings_of_every_process_belong_to_every_process():
    for key in names_of(ClusterSettings):
        for role, own in OWN.items():
            assert remarks(read_config(None, [f"{key}=x"]), role, own) == []
