"""Estimators without a cluster: parameters, conventions, reports, displays; jobs are made up."""

import contextlib
import inspect
import io
import pickle
from pathlib import Path

import numpy as np
import pytest

import snailps
from snailps import estimators
from snailps.errors import (
    ClusterError,
    ConfigError,
    DataError,
    ModelFileError,
    NotFitted,
    ParameterError,
)
from snailps.estimators import base, display
from snailps.estimators.corpus import corpus
from snailps.estimators.jobs import FinishedJob
from snailps.estimators.monitor import Monitor
from snailps.vectors.fasttext_bin import BinHeader, write_bin

FastText, Word2Vec = estimators.FastText, estimators.Word2Vec
SENTENCES = [["north", "wind"], ["south", "wind"]]


# --- parameters ---------------------------------------------------------------------------------


def test_names_are_public():
    assert snailps.FastText is FastText
    assert snailps.Word2Vec is Word2Vec
    assert {"FastText", "Word2Vec"} <= set(dir(snailps))
    with pytest.raises(AttributeError, match="has no attribute 'Fast'"):
        estimators.Fast  # noqa: B018


def test_parameters_are_the_settings_of_the_model_that_are_no_paths():
    names = list(FastText().get_params())
    assert names[:3] == ["dim", "model", "loss"]
    assert names[-4:] == ["cluster", "workers", "callbacks", "verbose"]
    assert {"epochs", "seed", "minn", "bucket", "consistency"} <= set(names)
    for left_out in ("input", "output", "continue_from", "checkpoint_dir", "formats"):
        assert left_out not in names
    assert not {"minn", "maxn", "bucket"} & set(Word2Vec().get_params())


def test_signature_has_all_parameters_by_keyword():
    shown = inspect.signature(FastText)
    assert list(shown.parameters) == list(FastText().get_params())
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in shown.parameters.values())
    assert shown.parameters["dim"].default == 100
    assert list(inspect.signature(FastText.__init__).parameters)[:2] == ["self", "dim"]
    with pytest.raises(TypeError):
        FastText(100)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dmi", "dim"), ("vector_size", "dim"), ("learning_rate", "lr"), ("epoch", "epochs"),
        ("minCount", "min_count"), ("wordNgrams", ""), ("random_state", "seed"),
        ("n_jobs", "workers"), ("qqqqqq", ""),
    ],
)  # fmt: skip
def test_unknown_parameter_is_refused_with_the_one_that_is_meant(name, meant):
    match = rf"FastText: unknown parameter '{name}'; " + (
        rf"did you mean '{meant}'\?" if meant else "it has dim, model"
    )
    for make in (lambda: FastText(**{name: 3}), lambda: FastText().set_params(**{name: 3})):
        with pytest.raises(ParameterError, match=match) as caught:
            make()
        assert isinstance(caught.value, (TypeError, ValueError))
        assert isinstance(caught.value, snailps.SnailError)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("output", r"give it to save\(path\)"), ("input", r"give it to fit\(X\)"),
        ("continue_from", r"give it to load\(path\), then partial_fit\(X\)"),
        *((name, rf"it is a cluster's: with snailps.local_cluster\({name}=...\) as cluster")
          for name in ("threads", "servers", "shard_num", "checkpoint_dir")),
    ],
)  # fmt: skip
def test_setting_that_is_no_parameter_is_refused_with_where_it_is_given(name, where):
    with pytest.raises(ParameterError, match=rf"^FastText: unknown parameter '{name}'; {where}"):
        snailps.FastText(**{name: 3})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"dim": "3"}, "FastText: dim: expected a whole number from 1 to 4096; got '3'"),
        ({"dim": 0}, "FastText: dim: expected a whole number from 1 to 4096; got '0'"),
        ({"dim": True}, "dim: expected a whole number"),
        ({"dim": 2.0}, "dim: expected a whole number"),
        ({"lr": "fast"}, "lr: expected auto, or a number from"),
        ({"sample": None}, "sample: expected a number from"),
        ({"loss": "softmax"}, "loss: expected one of ns, nce, hs; got 'softmax'"),
        ({"minn": 9}, r"minn: expected 1 to maxn \(6, from default of maxn\), got 9"),
        (
            {"cluster": 3},
            "cluster: expected one of snailps.cluster, connect or local_cluster; got 3",
        ),
        ({"workers": 0}, "workers: expected a whole number of at least 1, or None; got 0"),
        ({"callbacks": [3]}, "callbacks: expected functions that take a dict, got 3"),
        (
            {"verbose": "loud"},
            "verbose: expected True, False, 'auto' or a number from 0 on; got 'loud'",
        ),
    ],
)
def test_values_are_checked_when_fit_is_called(given, text):
    with pytest.raises(ParameterError, match=text):
        FastText(**given).fit(SENTENCES)


def test_settings_of_a_job_are_those_that_differ_from_the_models():
    settings = FastText.parameters.settings
    assert settings(FastText().get_params(), "FastText") == {"formats": ("bin",)}
    changed = FastText(dim=np.int64(3), lr=np.float64(0.1), worker_memory="1G", epochs=5)
    assert settings(changed.get_params(), "FastText") == {
        "dim": 3, "lr": 0.1, "worker_memory": 1 << 30, "formats": ("bin",),
    }  # fmt: skip
    given = FastText(lr=0.05, optimizer="adagrad").get_params()
    assert settings(given, "FastText")["lr"] == 0.05  # adagrad's is another one by default
    assert settings(FastText(**given).get_params(), "FastText")["lr"] == 0.05
    found = Word2Vec.parameters.settings(Word2Vec().get_params(), "Word2Vec")
    assert found == {"maxn": 0, "formats": ("bin",)}


def test_parameters_are_stored_untouched_and_shown_where_they_differ():
    callbacks = [print]
    model = FastText(dim=8, callbacks=callbacks, lr="auto")
    assert model.callbacks is callbacks
    assert repr(model) == "FastText(dim=8, callbacks=[<built-in function print>])"
    assert repr(Word2Vec()) == "Word2Vec()"
    assert model.set_params(dim=100, callbacks=()) is model
    assert repr(model) == "FastText()"
    assert "array" in repr(FastText(dim=np.arange(3)))
    clone = model.set_params(cluster=object()).__sklearn_clone__()
    assert clone.cluster is model.cluster


# --- data ---------------------------------------------------------------------------------------


def test_corpus_leaves_paths_as_they_are(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("north wind\n")
    for given, paths in [
        (str(file), [str(file)]), (file, [str(file)]), (tmp_path, [str(tmp_path)]),
        ([file, file], [str(file)] * 2), (f"{tmp_path}/*.txt", [f"{tmp_path}/*.txt"]),
    ]:  # fmt: skip
        with corpus(given) as found:
            assert (found.input, found.settings) == (paths, {})


def test_corpus_refuses_csv_with_names_of_columns_unless_one_is_named(tmp_path):
    file = tmp_path / "reviews.csv"
    file.write_text('text,stars\n"good, very",5\n')
    said = r"names of columns .*text, stars.*column='text'"
    with pytest.raises(DataError, match=said), corpus(file):
        pass
    for labels, more in ((None, {}), ("stars", {"label_column": "stars"})):
        with corpus(file, column="text", labels=labels) as found:
            assert found.input == [str(file)]
            assert found.settings == {"column": "text", **more}
    with (
        pytest.raises(DataError, match="y: expected the name of the column of labels"),
        corpus(file, column="text", labels=["a", "b"]),
    ):
        pass


def test_corpus_spools_the_rest():
    with corpus(iter(["north wind", ["south", "wind"]])) as found:
        assert Path(found.input.path).read_bytes() == b"north wind\nsouth wind\n"
    assert not Path(found.input.path).exists()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("north wind", r"'north wind' is no file, folder.*A str is taken as a path; text is given"),
        ("north/*.nope", r"the pattern 'north/\*\.nope' matches no file"),
        (Path("north.txt"), r"'north\.txt' is no file, folder, glob or URL \(seen from .*\)$"),
        ("", "'' is no file"),
        ([__file__, __file__], r"list of names of files.*pathlib\.Path"),
        ([], "empty"),
        ([1.5], "float"),
        ([["north", None]], "None"),
    ],
)
def test_corpus_refuses_what_is_no_text(data, text):
    with pytest.raises(DataError, match=text), corpus(data):
        pass


def test_corpus_refuses_labels_beside_paths(tmp_path):
    match = "y: expected none with the path"
    with pytest.raises(DataError, match=match), corpus(tmp_path, labels=["a"]):
        pass


# --- fitting, with jobs that are made up ----------------------------------------------------------


class Jobs:
    """In the place of `run_job`: writes the model of the words that it is given."""

    def __init__(self):
        self.asked = []
        self.fails = False

    @contextlib.contextmanager
    def __call__(self, worker_class, settings, given, monitor, *, cluster, workers, packed):
        text = Path(given.path).read_text().split()
        self.asked.append((worker_class, settings, cluster, workers))
        if self.fails:
            raise ClusterError("the worker was lost")
        epochs = settings.get("epochs", 5)
        figures = {"words": 10, "words_per_s": 5.0, "train_loss": 1.0}
        history = [{"epoch": n + 1, "loss": 1.0, "words_per_s": 5.0} for n in range(epochs)]
        monitor.finish(figures, history)
        words = sorted({word.encode() for word in text})
        dim, maxn = settings.get("dim", 4), settings.get("maxn", 6)
        header = BinHeader(dim=dim, minn=3 if maxn else 0, maxn=maxn, bucket=7 if maxn else 0)
        rows = np.arange((len(words) + header.bucket) * dim, dtype=np.float32).reshape(-1, dim)
        path = Path(self.folder, "model.bin")
        counts = np.ones(len(words), np.int64)
        write_bin(path, header, words, counts, [rows], [rows[: len(words)]])
        yield FinishedJob(figures, [path])
        path.unlink()


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    made = Jobs()
    made.folder = tmp_path
    monkeypatch.setattr(base, "run_job", made)
    return made


def test_fit_gives_vectors_history_and_figures(jobs):
    model = FastText(dim=4, epochs=2, bucket=7, workers=3)
    assert model.fit(SENTENCES) is model
    assert list(model.wv) == ["north", "south", "wind"]
    assert model.history_ == [
        {"epoch": 1, "loss": 1.0, "words_per_s": 5.0},
        {"epoch": 2, "loss": 1.0, "words_per_s": 5.0},
    ]
    assert model.figures_["words"] == 10
    worker_class, settings, cluster, workers = jobs.asked[0]
    assert worker_class == "snailps.models.word_vectors:WordVectors"
    assert settings == {"dim": 4, "epochs": 2, "bucket": 7, "formats": ("bin",)}
    assert (cluster, workers) == (None, 3)
    assert model.transform(["north", ["wind", "south"]]).shape == (2, 4)
    assert model.transform([]).shape == (0, 4)
    assert model.fit_transform(SENTENCES).dtype == np.float32
    assert model.get_feature_names_out()[:2].tolist() == ["fasttext0", "fasttext1"]


def test_fit_that_fails_leaves_the_model_as_it_was(jobs):
    model = FastText(dim=4, bucket=7).fit(SENTENCES)
    before, history = model.wv, model.history_
    jobs.fails = True
    with pytest.raises(ClusterError, match="the worker was lost"):
        model.fit(["other words"])
    assert (model.wv, model.history_) == (before, history)


def test_partial_fit_continues_from_the_model_with_its_shape(jobs, monkeypatch):
    model = FastText(dim=4, epochs=1, bucket=7, lr=0.1)
    assert model.partial_fit(SENTENCES) is model
    assert "continue_from" not in jobs.asked[0][1]
    seen = {}
    run = jobs.__call__

    def look(worker_class, settings, *others, **more):
        seen["file"] = snailps.load(settings["continue_from"]).words
        return run(worker_class, {**settings, "dim": 4}, *others, **more)

    monkeypatch.setattr(base, "run_job", look)
    model.partial_fit(["east wind"])
    settings = jobs.asked[1][1]
    assert list(seen["file"]) == ["north", "south", "wind"]
    assert settings["lr"] == 0.1
    assert not {"bucket", "minn", "maxn", "model"} & set(settings)
    assert not Path(settings["continue_from"]).exists()
    assert [one["epoch"] for one in model.history_] == [1, 2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dim": 8}, "FastText: dim: the fitted model has 4, got 8: partial_fit continues"),
        ({"maxn": 0, "bucket": "auto"}, "FastText: maxn: the fitted model has 6, got 0"),
        ({"model": "cbow"}, "model: the fitted model has 'skipgram', got 'cbow'"),
    ],
)
def test_partial_fit_of_another_shape_is_refused(jobs, change, text):
    model = FastText(dim=4, bucket=7).fit(SENTENCES).set_params(**change)
    with pytest.raises(ParameterError, match=text):
        model.partial_fit(SENTENCES)


def test_model_that_is_not_fitted_says_so():
    model = FastText()
    assert not hasattr(model, "wv")
    assert not model.__sklearn_is_fitted__()
    for ask in (
        lambda: model.wv,
        lambda: model.transform(["a"]),
        lambda: model.save("x.bin"),
        lambda: model.plot(),
        lambda: model.get_feature_names_out(),
    ):
        with pytest.raises(NotFitted, match=r"FastText: .* needs a fitted model: call fit first"):
            ask()


def test_model_goes_through_files_and_pickle(jobs, tmp_path):
    model = FastText(dim=4, bucket=7).fit(SENTENCES)
    for other in (pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(FastText(dim=4)))):
        assert other.dim == 4
    other = pickle.loads(pickle.dumps(model))
    assert (other.wv["wind"] == model.wv["wind"]).all()
    assert other.history_ == model.history_
    path = tmp_path / "words.bin"
    other.save(path)
    loaded = FastText.load(path, lr=0.2)
    assert (loaded.dim, loaded.bucket, loaded.minn, loaded.maxn, loaded.lr) == (4, 7, 3, 6, 0.2)
    assert (loaded.wv["windy"] == model.wv["windy"]).all()
    with pytest.raises(ParameterError, match=r"FastText: dim: expected 4, as in .*; got 5"):
        FastText.load(path, dim=5)
    with pytest.raises(ParameterError, match=r"Word2Vec: maxn: expected 6, as in .*; got 0"):
        Word2Vec.load(path)
    with pytest.raises(ModelFileError, match="missing"):
        FastText.load(tmp_path / "missing.bin")


def test_loaded_model_goes_on_with_the_settings_of_its_file_or_those_that_are_given(jobs, tmp_path):
    path, row = tmp_path / "m.bin", np.zeros((1, 4), np.float32)
    header = BinHeader(dim=4, window=2, negatives=9, sample=0.01, min_count=1)
    write_bin(path, header, [b"wind"], [3], [row], [row])
    of_file = {"window": 2, "negatives": 9, "sample": 0.01, "min_count": 1}
    model = Word2Vec.load(path)
    assert {name: getattr(model, name) for name in of_file} == of_file
    for given in ({}, {"window": 5, "min_count": 5}):  # defaults, which the file does not have
        Word2Vec.load(path, **given).partial_fit(SENTENCES)
        settings = jobs.asked[-1][1]
        assert {name: settings[name] for name in of_file} == {**of_file, **given}


def test_transform_of_one_sentence_is_refused(jobs):
    with pytest.raises(DataError, match=r"got one text: write \['north'\]"):
        FastText(dim=4, bucket=7).fit(SENTENCES).transform("north")


# --- what is told of it -------------------------------------------------------------------------


class Screen:
    """A display that keeps what it is shown."""

    def __init__(self):
        self.shown = []

    def show(self, report):
        self.shown.append(report)

    def close(self):
        self.shown.append("closed")


FIGURES = {"words": 9, "words_per_s": 7.0, "train_loss": 1.0}
HISTORY = [
    {"epoch": 1, "loss": 2.0, "words_per_s": 100.0},
    {"epoch": 2, "loss": 1.0, "words_per_s": 7.0},
]


def status(progress=0.0, epoch=1, phase="training", **more):
    told = {"training": f"epoch {epoch} of 2"}.get(phase, "")
    return {
        "phase": phase, "progress": progress, "pass_": told, "loss": 2.0, "lr": 0.1,
        "unit": "words", "units": 10, "units_per_s": 100.0 * epoch, **more,
    }  # fmt: skip


def monitor_of(*callbacks, first=0):
    now = [0.0]
    screen = Screen()
    return Monitor(callbacks, screen, first, clock=lambda: now[0]), screen, now


def test_monitor_tells_of_news_a_few_times_a_second():
    heard = []
    monitor, screen, now = monitor_of(heard.append)
    monitor.update(status(phase="ready"))
    for progress in range(10):
        now[0] += 0.05
        assert monitor.update(status(progress / 20))
    assert len(heard) == 3
    monitor.update(status(0.5, epoch=2))  # at once
    assert heard == screen.shown
    assert heard[-1]["epoch"] == 2
    assert heard[0] == {
        "phase": "training", "epoch": 1, "epochs": 2, "at_most": False, "progress": 0.0,
        "loss": 2.0, "lr": 0.1, "words": 10, "words_per_s": 100.0, "seconds": 0.0,
    }  # fmt: skip
    now[0] += 1
    monitor.update(status(0.5, epoch=2))  # nothing new
    assert len(heard) == 4


def test_monitor_counts_bytes_while_reading():
    stream = io.StringIO()
    heard = []
    monitor = Monitor((heard.append,), display.LineDisplay("FastText", stream))
    monitor.update(status(0.5, phase="survey", units=4_000_000, units_per_s=2_500_000.0))
    assert (heard[0]["words"], heard[0]["words_per_s"]) == (0, 0)
    assert (heard[0]["bytes"], heard[0]["bytes_per_s"]) == (4_000_000, 2_500_000)
    assert display.line_of(heard[0]) == "loss 2.0000, 2.5 MB/s"


def test_monitor_keeps_the_epoch_while_saving():
    heard = []
    monitor, _, now = monitor_of(heard.append)
    monitor.update(status(0.9, epoch=2))
    now[0] += 1
    monitor.update(status(0.1, phase="exporting"))
    assert (heard[-1]["phase"], heard[-1]["epoch"]) == ("saving", 2)


def test_monitor_counts_epochs_on():
    heard = []
    monitor, _, _ = monitor_of(heard.append, first=3)
    monitor.update(status(0.2))
    monitor.finish(FIGURES, HISTORY)
    assert monitor.history == [
        {"epoch": 4, "loss": 2.0, "words_per_s": 100.0},
        {"epoch": 5, "loss": 1.0, "words_per_s": 7.0},
    ]
    assert heard[-1]["phase"] == "done"
    assert (heard[-1]["progress"], heard[-1]["epoch"], heard[-1]["epochs"]) == (1.0, 5, 5)


@pytest.mark.parametrize("at", [1, 2], ids=["drew no word", "not begun"])
def test_monitor_leaves_out_epochs_without_a_loss_and_counts_them(at):
    heard, history = [], [*HISTORY]
    history.insert(at, {"loss": None, "words_per_s": 7.0})
    monitor, _, _ = monitor_of(heard.append)
    monitor.finish(FIGURES, [{**one, "epoch": n} for n, one in enumerate(history, 1)])
    assert [one["epoch"] for one in monitor.history] == [n for n in (1, 2, 3) if n != at + 1]
    assert heard[-1]["epoch"] == monitor.history[-1]["epoch"]


def test_callback_that_returns_false_ends_the_training():
    monitor, _, now = monitor_of(lambda report: report["progress"] < 0.5)
    assert monitor.update(status(0.1))
    now[0] += 1
    assert not monitor.update(status(0.6))
    assert monitor.stopped
    assert not monitor.update(status(phase="exporting"))


def test_callback_that_raises_reaches_the_caller():
    def fail(report):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        monitor_of(fail)[0].update(status())


@pytest.mark.parametrize(
    ("verbose", "is_terminal", "kind"),
    [
        ("auto", False, "Display"), ("auto", True, "BarDisplay"), (True, False, "LineDisplay"),
        (False, False, "Display"), (False, True, "Display"),
        (0, False, "Display"), (np.False_, False, "Display"), (2, False, "LineDisplay"),
    ],
)  # fmt: skip
def test_display_is_quiet_where_no_person_watches(monkeypatch, verbose, is_terminal, kind):
    """Numbers are degrees of it, as with scikit-learn."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    assert type(display.display_of(verbose, "FastText")).__name__ == kind


def test_line_display_writes_a_line_an_epoch(capsys):
    stream = io.StringIO()
    shown = display.LineDisplay("FastText", stream)
    monitor = Monitor((), shown, clock=lambda: 0.0)
    for one in (status(0.1), status(0.2), status(0.6, epoch=2)):
        monitor.update(one)
    monitor.finish(FIGURES, HISTORY)
    assert stream.getvalue().splitlines() == [
        "FastText: epoch 1/2, loss 2.0000, 100 words/s",
        "FastText: epoch 2/2, loss 2.0000, 200 words/s",
        "FastText: epoch 2/2, loss 1.0000, 7 words/s, 0.0 s",
    ]


def test_bar_display_draws_on_a_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = display.BarDisplay("FastText")
    monitor = Monitor((), shown, clock=lambda: 0.0)
    monitor.update(status(0.5))
    monitor.finish(FIGURES, HISTORY)
    monitor.close()
    assert "FastText training" in stream.getvalue()
    assert "100% epoch 2/2, loss 1.0000, 7 words/s" in stream.getvalue()


class Axes:
    """In the place of matplotlib's."""

    def plot(self, *points, **_):
        self.points = points

    def set_xlabel(self, text):
        self.x = text

    set_ylabel = set_title = set_xlabel


def test_plot_draws_losses(jobs):
    model = FastText(dim=4, bucket=7, epochs=2).fit(SENTENCES)
    assert model.plot(Axes()).points == ([1, 2], [1.0, 1.0])


def test_plot_without_matplotlib_says_what_to_install(jobs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with pytest.raises(ConfigError, match=r"snailps\[plot\]"):
        FastText(dim=4, bucket=7).fit(SENTENCES).plot()


# --- conventions of others ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verbose", "is_terminal", "shown"),
    [
        (True, False, "FastText: spooling: 120 MB\n"),
        ("auto", True, "\rFastText: spooling: 120 MB\r" + " " * 26 + "\r"),
        ("auto", False, ""),
        (False, True, ""),
    ],
)
def test_spooling_is_shown_after_a_second(monkeypatch, verbose, is_terminal, shown):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stderr", stream)
    now = [0.0]
    spooling = display.SpoolDisplay(verbose, "FastText", clock=lambda: now[0])
    for now[0], size in ((0.9, 100_000_000), (1.0, 120_000_000), (1.1, 130_000_000)):
        spooling.show(size)
    spooling.close()
    assert stream.getvalue() == shown


def test_fit_of_a_generator_shows_what_is_spooled(jobs, monkeypatch, capsys):
    monkeypatch.setattr(display, "SPOOL_FIRST_S", 0.0)
    FastText(dim=4, bucket=7, verbose=True).fit(iter([["wind"] * 300_000]))
    assert capsys.readouterr().err.startswith("FastText: spooling: 2 MB\n")


def test_wrong_parameters_are_told_before_data_is_read(jobs):
    sentences = iter(SENTENCES)
    for wrong in ({"dim": "3"}, {"cluster": 3}, {"callbacks": 3}, {"verbose": -1}, {"workers": 0}):
        with pytest.raises(ParameterError):
            FastText(**wrong).fit(sentences)
    assert next(sentences) == SENTENCES[0]


def test_data_in_the_constructor_is_told_to_go_to_fit():
    with pytest.raises(ParameterError, match=r"FastText: expected parameters by name, got list"):
        FastText(SENTENCES)


def test_generator_is_not_read_twice(jobs):
    with pytest.raises(DataError, match="can be read only once"):
        FastText(dim=4, bucket=7).fit_transform(iter(SENTENCES))


def test_pickle_and_copies_leave_cluster_and_callbacks_here(jobs):
    lock = __import__("threading").Lock()
    model = FastText(dim=4, bucket=7, callbacks=[lambda _: lock]).fit(SENTENCES)
    model.cluster = lock
    other = pickle.loads(pickle.dumps(model))
    assert (other.cluster, other.callbacks) == (None, ())
    assert model.cluster is lock


def test_column_of_a_table_is_a_parameter(jobs):
    table = {"text": ["north wind", "south"], "other": ["a", "b"]}
    model = FastText(dim=4, bucket=7, column="text").fit(table)
    assert list(model.wv) == ["north", "south", "wind"]
    assert model.transform(table).shape == (2, 4)
    model = FastText(dim=4, bucket=7).fit(table, column="text")
    assert model.transform(table).shape == (2, 4)
    assert model.transform(["north"]).shape == (1, 4)
    for missing in (None, float("nan")):
        with pytest.raises(DataError, match=r"transform: element 1 of .* is missing"):
            model.transform(["north", missing])
    with pytest.raises(DataError, match=r"element 0 of .* is an int"):
        model.transform([3])


def test_set_output_gives_frames(jobs):
    pandas = pytest.importorskip("pandas")
    model = FastText(dim=2, bucket=7).fit(SENTENCES)
    found = model.set_output(transform="pandas").transform(pandas.Series(["north"], index=[7]))
    assert (list(found.columns), list(found.index)) == (["fasttext0", "fasttext1"], [7])
    assert list(model.transform(["north", "south"]).index) == [0, 1]  # lists have a method `index`
    with pytest.raises(ParameterError, match="set_output"):
        model.set_output(transform="arrow")


def test_epochs_of_a_partial_fit_go_before_the_parameter(jobs):
    FastText(dim=4, bucket=7, epochs=3).partial_fit(SENTENCES, epochs=1)
    assert jobs.asked[0][1]["epochs"] == 1


@pytest.mark.parametrize(
    ("cls", "name", "meant"),
    [
        ("LogisticRegression", "alpha", "l2"),
        ("LogisticRegression", "C", "l2', 1 / \\(n C\\) of n"),
        ("LogisticRegression", "fit_intercept", "bias"), ("FastText", "alpha", "lr"),
        ("MLPClassifier", "hidden_layer_sizes", "hidden"), ("FMRegressor", "n_factors", "factors"),
        ("LogisticRegression", "class_weights", "class_weight"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_lead_to_ours(cls, name, meant):
    with pytest.raises(ParameterError, match=f"did you mean '{meant}"):
        getattr(snailps, cls)(**{name: 1})
