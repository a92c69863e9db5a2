"""Training on of knowledge graphs and factorisations: which rows stay, what is taken and refused.

Whole cycles of a job's class at the master, on shards in this process; commands and estimators are
compared in cluster/test_continue_examples.py.
"""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from connected import block_of, connected, flush, results_of, train

import snailps
from snailps.config import RawConfig, to_mapping
from snailps.data.name_columns import Names
from snailps.errors import ConfigError, DataError, ModelFileError, NotFitted, ParameterError
from snailps.estimators import base
from snailps.estimators.jobs import FinishedJob
from snailps.master.job.settings import job_settings
from snailps.models.embeddings import files
from snailps.models.embeddings.kge import KnowledgeGraph
from snailps.models.embeddings.mf import MatrixFactorization
from snailps.models.embeddings.worker import TABLE

TRIPLES = b"".join(b"e%d\tr%d\te%d\n" % (i % 7, i % 2, (i * 3 + 1) % 7) for i in range(40))
MORE_TRIPLES = b"new\tr0\te1\nnew\tr2\tother\n" * 9 + b"e6\tr2\te5\n"
RATINGS = b"".join(b"u%d,i%d,%d\n" % (i % 5, i * i % 6, 20 * (1 + i % 5)) for i in range(60))
MORE_RATINGS = b"new,i1,7\nu3,other,9\nnew,i2,8\n" * 5
CASES = {
    "kge": (KnowledgeGraph, {"dim": 6}, TRIPLES, MORE_TRIPLES),
    "kge_sgd": (KnowledgeGraph, {"dim": 6, "optimizer": "sgd", "lr": 0.01}, TRIPLES, MORE_TRIPLES),
    "ratings": (MatrixFactorization, {"dim": 4}, RATINGS, MORE_RATINGS),
    "rankings": (MatrixFactorization, {"dim": 4, "loss": "softmax"}, RATINGS, MORE_RATINGS),
}


def settings_of(cls, **given):
    values = {key: str(value) for key, value in given.items()}
    values["worker_class"] = f"{cls.__module__}:{cls.__qualname__}"
    return job_settings(cls, RawConfig.from_mapping(values, "--set {key}"))


def trained(cls, given, data, output, loads=False):
    """A job of three blocks, as its master has it: survey, load, train, export; the result's path.

    With the rows and state that a loaded job begins with.
    """
    settings = settings_of(cls, output=output, **given)
    part = cls(settings).survey_part()
    part.add(block_of(data))
    surveyor = cls.surveyor(settings)
    surveyor.add(part.take())
    summary, begun = surveyor.result(), None
    with connected(cls) as make:
        model = make(settings, summary=summary)
        results = results_of(model, summary)
        if loader := cls.loader(settings):
            loader(results)
            begun = [
                np.concatenate([rows for _, rows in results.packed(TABLE, pieces)])
                for kind, names in enumerate(Names(summary).names)
                for pieces in [[cls.keys_of_kind(kind, len(names))]]
            ]
        for _ in range(3):
            train(model, data)
        flush(model)
        cls.export(results)
    return f"{output}.npz", begun


def table_of(model, kind):
    """Names, rows and state of a file."""
    return model._texts[kind], model._rows[kind], model._states.get(kind)


@pytest.mark.parametrize("case", CASES)
def test_training_goes_on_with_rows_state_and_numbers_of_the_file(tmp_path, case):
    cls, given, data, more = CASES[case]
    first, _ = trained(cls, given, data, tmp_path / "a")
    before = snailps.load(first)
    second, begun = trained(cls, {"continue_from": first}, more, tmp_path / "b")
    after = snailps.load(second)
    for place, kind in enumerate(cls.kinds):
        (names, found, state), (later, _, _) = table_of(before, kind), table_of(after, kind)
        n, dim = found.shape
        assert later[:n] == names
        assert len(later) > n
        rows = cls.as_trained(before.settings, found)
        assert np.array_equal(begun[place][:n, :dim], rows)
        if given.get("optimizer") == "sgd" or case == "ratings":
            assert begun[place].shape[1] == dim
        else:
            assert np.array_equal(begun[place][:n, dim:], state)
            assert begun[place][:n, dim:].any()
            assert not begun[place][n:, dim:].any()
    assert after.settings.dim == given["dim"]
    assert after.settings.optimizer == given.get("optimizer", "auto")
    if case == "ratings":  # in the units of the first input
        assert after.mean == before.mean
        assert after.settings.encoding == before.settings.encoding != ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dim": 8}, "--set dim: dim: expected 6, as in .*a.npz"),
        ({"model": "distmult"}, "model: expected complex"),
        ({"optimizer": "sgd"}, "optimizer: expected adagrad"),
        ({"normalize": "true"}, "normalize: expected false"),
    ],
)
def test_another_shape_than_that_of_the_file_is_refused(tmp_path, given, said):
    first, _ = trained(KnowledgeGraph, {"dim": 6, "model": "complex"}, TRIPLES, tmp_path / "a")
    with pytest.raises(ConfigError, match=said):
        settings_of(KnowledgeGraph, continue_from=first, **given)


def test_a_message_names_an_option_once(tmp_path):
    first, _ = trained(KnowledgeGraph, {"dim": 6}, TRIPLES, tmp_path / "a")
    options = RawConfig.from_mapping({"dim": "8"}, "--{key}")
    names = {"worker_class": f"{KnowledgeGraph.__module__}:KnowledgeGraph", "continue_from": first}
    with pytest.raises(ConfigError, match=r"^--dim: expected 6, as in"):
        job_settings(KnowledgeGraph, RawConfig.from_mapping(names, "a test").merged(options))


def test_settings_that_are_not_set_are_those_of_the_file_and_phases_keep_their_unit(tmp_path):
    before = {"dim": 6, "model": "rotate", "margin": 4, "negatives": 5, "seed": 3}
    first, _ = trained(KnowledgeGraph, before, TRIPLES, tmp_path / "a")
    found = settings_of(KnowledgeGraph, continue_from=first, margin=9, lr=0.05)
    assert (found.model, found.dim, found.negatives, found.seed) == ("rotate", 6, 5, 3)
    assert (found.margin, found.lr, found.epochs, found.keep_state) == (9, 0.05, 0, "always")
    assert found.first_scale == settings_of(KnowledgeGraph, **before).first_scale
    with pytest.raises(ConfigError, match="scale: expected 2, the unit of the phases"):
        settings_of(KnowledgeGraph, continue_from=first, scale=1)


def test_file_that_cannot_be_gone_on_from_is_refused_with_the_reason(tmp_path):
    first, _ = trained(KnowledgeGraph, {"dim": 6, "keep_state": "never"}, TRIPLES, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"rows without the state .* keep_state: always"):
        settings_of(KnowledgeGraph, continue_from=first)
    with pytest.raises(
        ConfigError, match=r"expected a model of MatrixFactorization, got one of .*kg"
    ):
        settings_of(MatrixFactorization, continue_from=first)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ModelFileError, match=r"text: continue_from: expected the \.npz"):
        settings_of(KnowledgeGraph, continue_from=tmp_path / "text")
    with pytest.raises(ModelFileError, match="none: continue_from: No such file"):
        settings_of(KnowledgeGraph, continue_from=tmp_path / "none")
    rated, _ = trained(MatrixFactorization, {"dim": 4}, RATINGS, tmp_path / "r")
    settings, arrays = files.read(rated, "x", MatrixFactorization.Settings, ("users", "items"))
    old = files.write(str(tmp_path / "old.npz"), replace(settings, encoding=""), arrays)
    with pytest.raises(ConfigError, match="an earlier version wrote the file"):
        settings_of(MatrixFactorization, continue_from=old)


def test_lines_that_are_not_utf8_are_refused_with_their_place():
    part = KnowledgeGraph(settings_of(KnowledgeGraph)).survey_part()
    with pytest.raises(DataError, match=r"text, line 2: expected names in UTF-8, got b'caf\\xe9"):
        part.add(block_of("für\tin\tx\n".encode() + b"caf\xe9\tin\tparis\n"))


# --- estimators -------------------------------------------------------------------------------


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """In the place of `run_job`: trains in this process; the settings that jobs were given."""
    asked = []

    @contextlib.contextmanager
    def run(worker_class, settings, given, monitor, **_):
        cls = KnowledgeGraph if worker_class.endswith("Graph") else MatrixFactorization
        asked.append(settings)
        with open(given[0] if isinstance(given, list) else given.path, "rb") as file:
            path, _ = trained(cls, settings, file.read(), tmp_path / f"job{len(asked)}")
        monitor.finish({"train_loss": 1.0}, [{"epoch": 1, "loss": 1.0}])
        yield FinishedJob({"train_loss": 1.0}, [path])

    monkeypatch.setattr(base, "run_job", run)
    return asked


def rows_of(data, separator):
    return [tuple(line.split(separator)) for line in data.decode().splitlines()]


def test_partial_fit_goes_on_from_memory_and_from_a_saved_file(jobs, tmp_path):
    first, more = rows_of(TRIPLES, "\t"), rows_of(MORE_TRIPLES, "\t")
    graph = snailps.KnowledgeGraph(model="complex", dim=6, verbose=False).partial_fit(first)
    graph.save(tmp_path / "g.npz")
    loaded = snailps.KnowledgeGraph.load(tmp_path / "g.npz", verbose=False)
    for one in (graph, loaded):
        one.partial_fit(more, epochs=2)
        assert {"new", "other", "e1"} <= {*one.graph_.entities}
        assert jobs[-1]["epochs"] == 2
    assert np.array_equal(graph.graph_.entity_rows, loaded.graph_.entity_rows)
    assert len(graph.history_) == 2
    graph.set_params(lr=0.01).partial_fit(more)  # and again
    assert jobs[-1]["lr"] == 0.01
    with pytest.raises(ParameterError, match="dim: the fitted model has 6, got 8"):
        graph.set_params(dim=8).partial_fit(more)
    with pytest.raises(ParameterError, match="optimizer: the fitted model has 'auto', got 'sgd'"):
        graph.set_params(dim=6, optimizer="sgd").partial_fit(more)


def test_names_that_were_whole_numbers_stay_so_while_new_ones_are(jobs):
    model = snailps.MatrixFactorization(dim=2, verbose=False).fit([(1, "a", 5), (2, "b", 3)] * 5)
    assert model.partial_fit([(3, "c", 4)] * 5).factors_.users[-1] == 3
    assert model.partial_fit([("x", "c", 4)] * 5).factors_.users[0] == "1"


def test_estimator_of_rows_alone_cannot_go_on(jobs, tmp_path):
    first, _ = trained(KnowledgeGraph, {"dim": 6, "keep_state": "never"}, TRIPLES, tmp_path / "a")
    with pytest.raises(NotFitted, match="without the optimizer's state"):
        snailps.KnowledgeGraph.load(first).partial_fit(rows_of(TRIPLES, "\t"))
    assert to_mapping(snailps.load(first).settings)["keep_state"] == "never"
