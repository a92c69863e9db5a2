"""Settings that no process reads: one line a file; that a job does not read: an error."""

import pytest
from cluster_models import COUNTER

from snailps import FastText, MatrixFactorization, models
from snailps import KnowledgeGraph as KnowledgeGraphEstimator
from snailps.cli.common import remarks, role_settings
from snailps.cli.options import read_config
from snailps.config import (
    ClusterSettings,
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    WorkerSettings,
    settings_of,
)
from snailps.config.legacy import IGNORED
from snailps.errors import ConfigError
from snailps.master.job.settings import job_settings
from snailps.models.embeddings.kge import KnowledgeGraph
from snailps.models.embeddings.settings import MfSettings

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


def job_of(text, *sets, environ=None, folder=None):
    """Settings of the job of a knowledge graph, as text and ``--set``."""
    path = None
    if folder:
        path = folder / "job.conf"
        path.write_text(text)
    raw = RawConfig.load(path, environ=environ or {}, overrides=sets)
    return job_settings(KnowledgeGraph, raw, [*models.SETTINGS.values(), *ROLES.values()])


def test_setting_of_another_model_is_refused_wherever_it_is_of_this_job_alone(tmp_path):
    with pytest.raises(ConfigError, match=r"^--set bucket=5: kge has no setting bucket"):
        job_of("", "bucket=5")
    with pytest.raises(ConfigError, match=r"job\.conf:2: kge has no setting window"):
        job_of("dim: 8\nwindow: 3\n", folder=tmp_path)


def test_file_of_all_roles_and_what_other_jobs_read_too_go_on_working(tmp_path, caplog):
    (tmp_path / "common.conf").write_text("bucket: 5\ntemperature: 2\nstaleness: 7\n")
    text = "import common.conf\nshard_num: 2\nthreads: 1\nfrag_num: 64\nzlib: 1\nloss: margin\n"
    environ = {"SNAILPS_WINDOW": "3", "SNAILPS_NORM": "l2"}
    found = job_of(text, environ=environ, folder=tmp_path)
    assert (found.loss, found.temperature) == ("margin", 2)
    assert [record.message.partition(" has no effect with ")[0] for record in caplog.records] == [
        f"{tmp_path}/common.conf:3: staleness",
        f"{tmp_path}/common.conf:2: temperature",
        "environment SNAILPS_NORM: norm",
    ]


def test_setting_that_this_job_does_not_read_is_refused_with_what_it_needs(tmp_path):
    said = "temperature has no effect with loss: margin: it needs loss: logistic. Leave it out"
    with pytest.raises(ConfigError, match=f"^--set {said}"):
        job_of("", "loss=margin", "temperature=2")
    with pytest.raises(ConfigError, match=f"job.conf:2: {said}"):
        job_of("loss: margin\ntemperature: 2\n", folder=tmp_path)
    with pytest.raises(ConfigError, match="eps has no effect with optimizer: sgd: it needs optim"):
        job_of("", "optimizer=sgd", "eps=1")
    job_of("", "loss=margin", "temperature=1")  # the default says nothing else
    solved = MfSettings(loss="als")  # perhaps what `auto` chose: that is no help
    said = "has no effect with loss: als: it needs loss: squared or softmax or pairwise"
    assert settings_of(MfSettings)["lr"].unread_text(solved) == said


UNREAD = {
    "kge": [
        ("norm=l2", ["model=complex"], ["model=transe"]),
        ("margin=9", ["model=complex"], ["model=rotate"]),
        ("margin=9", ["model=distmult", "loss=softmax"], ["model=distmult", "loss=margin"]),
        ("temperature=2", ["loss=softmax"], ["loss=logistic"]),
        ("eps=1", ["optimizer=sgd"], []),
        ("staleness=3", [], ["consistency=ssp"]),
        ("micro_batches=3", ["consistency=ssp"], ["consistency=bsp"]),
    ],
    "mf": [
        ("negatives=9", [], ["loss=softmax"]),
        ("shared=9", [], ["loss=pairwise"]),
        ("top=9", ["loss=squared"], ["loss=softmax"]),
        ("eps=1", [], ["optimizer=adagrad"]),
        ("a0=.1", ["loss=squared"], ["loss=als"]),
        ("lr=.1", ["loss=als"], []),
        ("lr_end=1", ["loss=als"], []),
        ("weights=values", ["loss=softmax"], ["loss=als"]),
    ],
    "logistic": [
        ("beta=2", ["optimizer=sgd"], ["optimizer=ftrl"]),
        ("expected_features=9", [], ["min_count=2"]),
    ],
    "fm": [("eps=1", ["optimizer=sgd"], [])],
    "mlp": [("momentum=0.5", [], ["optimizer=momentum"])],
    "classifier": [("negatives=9", [], ["loss=ns"])],
    "fasttext": [
        ("bucket=9", ["maxn=0"], ["maxn=3"]),
        ("negatives=9", ["loss=hs"], ["loss=nce"]),
        ("ns_exponent=0", ["loss=hs"], []),
    ],
}


@pytest.mark.parametrize("name", UNREAD)
def test_settings_are_read_by_the_jobs_that_their_declarations_name(name):
    cls = models.SETTINGS[name]
    declared = {key for key, known in settings_of(cls).items() if known.read_if}
    everywhere = {"staleness", "micro_batches"}
    if name != "logistic":  # which has those of every model of examples
        everywhere |= {"beta", "expected_features"}
    cases = {case.partition("=")[0] for case, _, _ in UNREAD[name]}
    assert cases - everywhere == declared - everywhere
    for case, without, with_ in UNREAD[name]:
        known = settings_of(cls)[case.partition("=")[0]]
        build = [RawConfig.load(None, environ={}, overrides=some) for some in (without, with_)]
        assert [known.is_read(raw.build(cls)) for raw in build] == [False, True], case


@pytest.mark.parametrize(
    ("text", "sets", "unread"),
    [
        ("norm: l2\nmodel: transe\n", ["model=rotate"], "norm has no effect with model: rotate"),
        ("staleness: 3\nconsistency: ssp\n", ["consistency=bsp"], "staleness has no effect with"),
        (
            "worker_class: snailps.models.word_vectors:WordVectors\nwindow: 3\n",
            ["worker_class=snailps.models.embeddings.kge:KnowledgeGraph"],
            "kge has no setting window",
        ),
    ],
)
def test_line_that_a_run_of_several_by_one_file_does_not_read_is_a_remark(
    tmp_path, caplog, text, sets, unread
):
    job_of(text, *sets, folder=tmp_path)
    assert [unread in record.message for record in caplog.records] == [True]
    with pytest.raises(ConfigError, match=unread):  # nothing else would tell of it
        job_of(text + "".join(one.replace("=", ": ") + "\n" for one in sets), folder=tmp_path)


def test_parameters_that_an_estimator_does_not_read_are_told_and_searches_go_on():
    def settings_of_job(model):
        chosen = model.parameters.settings(model.get_params(), "KnowledgeGraph")
        return {name: value for name, value in chosen.items() if name != "keep_state"}

    said = "KnowledgeGraph: norm has no effect with model: rotate: it needs model: transe"
    model = KnowledgeGraphEstimator(norm="l2", loss="margin", temperature=0.5)
    assert model.parameters.unread(model.get_params(), "KnowledgeGraph") == [
        "KnowledgeGraph: temperature has no effect with loss: margin: it needs loss: logistic",
        said,
    ]
    assert settings_of_job(model) == {"loss": "margin"}
    model.set_params(model="transe", loss="logistic")  # as the next point of a grid
    assert model.parameters.unread(model.get_params(), "KnowledgeGraph") == []
    assert settings_of_job(model) == {"model": "transe", "temperature": 0.5, "norm": "l2"}


def test_needed_numbers_of_a_range_are_not_listed():
    model = FastText(maxn=0, bucket=100)
    (said,) = model.parameters.unread(model.get_params(), "FastText")
    assert said == "FastText: bucket has no effect with maxn: 0: it needs maxn: at least 1"


def test_settings_that_only_the_model_of_partial_fit_reads_go_with_it():
    ratings = MatrixFactorization.parameters
    values = MatrixFactorization(loss="softmax", negatives=9).get_params()
    goes_on = ratings.settings(values, "MatrixFactorization", left_out=["loss", "dim"])
    assert goes_on["negatives"] == 9
    assert "loss" not in goes_on


def test_settings_of_every_process_belong_to_every_process():
    for key in names_of(ClusterSettings):
        for role, own in OWN.items():
            assert remarks(read_config(None, [f"{key}=x"]), role, own) == []
