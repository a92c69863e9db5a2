"""Federated averaging: its files, learners and feeds."""

import errno
import gzip
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from machine import fails
from texts import write_topics
from typer.testing import CliRunner

from snailps import kernels
from snailps.cli.fedavg import app
from snailps.config import RawConfig
from snailps.data.pipeline import MisuseError
from snailps.errors import ConfigError, DataError, ModelWriteError
from snailps.master.job.settings import job_settings
from snailps.models.fedavg import FedAvg, evaluation
from snailps.models.fedavg.evaluation import RoundEvaluator
from snailps.models.fedavg.feeds import Feeds, stages_of
from snailps.models.fedavg.network import Network, plain_output, sum_into
from snailps.models.fedavg.plotting import as_text, label_of, plot_histories, read_history
from snailps.models.fedavg.prepare import prepare
from snailps.models.fedavg.settings import read_cfg, read_test, read_vocab

CLASS = "snailps.models.fedavg:FedAvg"
JOB = {
    "worker_class": CLASS, "input": "input", "output": "out", "data_dir": "data", "bs": 16,
    "bpe": 4, "rounds": 3, "dim": 16, "shuffle": 64, "learners": 2, "lr": 0.02,
}  # fmt: skip


def prepared(folder):
    """The folder, with a text of two topics, and its files in ``data``."""
    write_topics(folder / "input", 300)
    prepare([str(folder / "input")], folder / "data", test_windows=50)
    return folder


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


def settings_of(folder, **changed):
    job = JOB | {"input": str(folder / "input"), "data_dir": str(folder / "data")} | changed
    raw = RawConfig.from_mapping({key: str(value) for key, value in job.items()}, "test")
    return job_settings(FedAvg, raw)


# --- files --------------------------------------------------------------------------------------


def test_prepare_without_settings_replaces_those_of_the_text_before(tmp_path):
    (tmp_path / "a.txt").write_text("the whale a ship the sea " * 4)
    words = ["prepare", str(tmp_path / "a.txt"), "--into", str(tmp_path / "d"), "--test-windows=7"]
    assert CliRunner().invoke(app, [*words, "--target=5"]).exit_code == 0
    for name in ("vocab.txt", "test.txt"):
        (tmp_path / "d" / name).unlink()
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, ConfigError)
    assert "cfg.json" in str(refused.exception)
    assert CliRunner().invoke(app, [*words, "--overwrite"]).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["test.txt", "vocab.txt"]


def test_prepare_makes_vocabulary_by_frequency_and_windows_of_the_text(tmp_path):
    (tmp_path / "a.txt").write_text(
        "The whale, the WHALE; a ship. The sea's whale -- call me!\n" * 4
    )
    (tmp_path / "stop.txt").write_text("the a\nme")
    figures = prepare(
        [str(tmp_path / "a.txt")],
        tmp_path / "data",
        stop_words=tmp_path / "stop.txt",
        test_windows=7,
        window=3,
        cfg={"bs": 8, "target": 5},
    )
    words = (tmp_path / "data" / "vocab.txt").read_text().split()
    assert words[0] == "whale"
    assert sorted(words[1:]) == ["call", "s", "sea", "ship"]
    text = "whale whale ship sea s whale call " * 4
    lines = (tmp_path / "data" / "test.txt").read_text().splitlines()
    assert len(lines) == 7
    assert all(line in text for line in lines)
    assert json.loads((tmp_path / "data" / "cfg.json").read_text()) == {"bs": 8, "target": 5}
    shares = np.array([3, 1, 1, 1, 1]) / 7
    assert figures == {
        "words": 5,
        "tokens": 28,
        "windows": 26,
        "entropy": pytest.approx(-(shares * np.log(shares)).sum()),
    }


def test_prepare_max_vocab_counts_stop_words_and_seed_draws_other_windows(folder):
    text = str(folder / "input")
    all_words = read_vocab(str(folder / "data"))
    for name, packed in (("stop", bytes), ("stop.gz", gzip.compress)):
        (folder / name).write_bytes(packed(all_words[0]))
        prepare([text], folder / "few", stop_words=folder / name, max_vocab=5, test_windows=20)
        assert read_vocab(str(folder / "few")) == all_words[1:5]
    drawn = []
    for seed in (1, 1, 2):
        prepare([text], folder / "few", test_windows=20, seed=seed)
        drawn.append((folder / "few" / "test.txt").read_bytes())
    assert drawn[0] == drawn[1] != drawn[2]


def test_prepare_refuses_what_no_training_would_take(folder):
    for cfg in ({"bpe": 2_000_000}, {"bs": 65_537}):
        with pytest.raises(ConfigError, match=r"cfg.json: b\w+: expected a whole number .* from 1"):
            prepare([str(folder / "input")], folder / "none", test_windows=20, cfg=cfg)
    assert not (folder / "none").exists()


def test_prepare_without_enough_text_refuses(tmp_path):
    (tmp_path / "a.txt").write_text("one two three")
    with pytest.raises(DataError, match="1 windows of 3 known words, 2 are wanted"):
        prepare([str(tmp_path / "a.txt")], tmp_path, window=3, test_windows=2)
    (tmp_path / "b.txt").write_text("123")
    with pytest.raises(DataError, match="no words"):
        prepare([str(tmp_path / "b.txt")], tmp_path)


READERS = {
    "vocab.txt": lambda folder: read_vocab(str(folder)),
    "test.txt": lambda folder: read_test(str(folder), [b"a", b"b", b"c", b"d", b"e"], 5),
    "cfg.json": lambda folder: read_cfg(folder / "cfg.json"),
    "history": lambda folder: read_history(folder / "history"),
}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.txt", "", "expected words"),
        ("vocab.txt", "whale ship whale", "'whale' occurs twice"),
        ("vocab.txt", "whale Ship", "'Ship'"),
        ("vocab.txt", "whale's", "lower-case ASCII letters"),
        ("test.txt", "", "got none"),
        ("test.txt", "a b c d e\na b c d\n", "window 2: expected 5 words"),
        ("test.txt", "a b c d x\n", "'x' is not in vocab.txt"),
        ("cfg.json", "{", "JSON"),
        ("cfg.json", "[]", "expected an object"),
        ("cfg.json", '{"bsp": 1}', "data_name, bpe, bs, target"),
        ("cfg.json", '{"bs": "many"}', "bs: expected a whole number"),
        ("cfg.json", '{"bs": true}', "bs: expected a whole number"),
        ("cfg.json", '{"bpe": 0}', "bpe: expected a whole number above 0"),
        ("cfg.json", '{"data_name": 1}', "data_name: expected a text"),
        ("history", "", "history"),
        ("history", "{}\n", "history"),
        ("history", '{}\n{"round": 1}\n', "history"),
        ("history", "{}\nno\n", "history"),
    ],
)
def test_file_that_is_none_of_its_kind_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError if name == "cfg.json" else DataError, match=said):
        READERS[name](tmp_path)


def test_read_vocab_of_missing_folder_says_how_to_make_it(tmp_path):
    with pytest.raises(DataError, match="fedavg prepare"):
        read_vocab(str(tmp_path / "nothing"))


def test_cfg_json_fills_in_what_the_user_did_not_say(folder):
    (folder / "data" / "cfg.json").write_text(
        '{"data_name": "two", "bpe": 9, "bs": 3, "target": 2}'
    )
    settings = settings_of(folder)
    assert (settings.data_name, settings.bpe, settings.bs) == ("two", 4, 16)
    assert settings.target == settings.target_loss == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"bs": 65537}', "cfg.json: bs: expected a whole number .*from 1 to 65536; got '65537'"),
        ('{"bpe": 2000000}', "cfg.json: bpe: expected a whole number .* to 1048576"),
    ],
)
def test_cfg_json_out_of_a_settings_range_refuses_unless_the_user_set_it(folder, content, said):
    (folder / "data" / "cfg.json").write_text(content)
    job = {key: value for key, value in JOB.items() if key not in ("bs", "bpe")}
    job |= {"input": str(folder / "input"), "data_dir": str(folder / "data")}
    raw = RawConfig.from_mapping({key: str(value) for key, value in job.items()}, "test")
    with pytest.raises(ConfigError, match=said):
        job_settings(FedAvg, raw)
    assert settings_of(folder).bs == 16


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"window": 4}, "odd number"),
        ({"learners": 2, "pipelines": 3}, "pipelines: expected at most learners"),
        ({"stages": "tokenizer, filter"}, "last one to be 'batcher'"),
        ({"stages": "filter, tokenizer, batcher"}, "stages: expected .* in this order, each once"),
        ({"stages": "tokenizer, filter, filter, batcher"}, "in this order, each once"),
        ({"stages": "batcher, filter, batcher"}, "in this order, each once"),
        ({"stages": "tokenizer, batcher"}, "in this order, each once"),
        ({"optimizer": "sgd"}, "optimizer: sgd does not fit federated averaging.*expected auto$"),
        ({"epochs": 3}, "epochs has no effect in a job in rounds"),
        ({"max_steps": 3}, "max_steps has no effect in a job in rounds"),
        ({"block_bytes": 3000}, "block_bytes has no effect in a job in rounds"),
        ({"assign": "own"}, "assign has no effect in a job in rounds"),
        ({"stages": "tokeniser, batcher"}, "tokenizer, filter, batcher or .*'tokeniser'"),
        ({"target": 8, "target_loss": 7}, "leave one of them out"),
        ({"dim": 500}, "dim"),
    ],
)
def test_settings_that_do_not_fit_refuse(folder, changed, said):
    with pytest.raises(ConfigError, match=said):
        settings_of(folder, **changed)


# --- networks, learners, feeds --------------------------------------------------------------------


@pytest.mark.parametrize(("words", "dim"), [(5, 1), (300, 16), (129, 20)])
def test_network_rows_go_in_and_out(words, dim):
    rng = np.random.default_rng(2)
    network = Network(words, dim, 1)
    rows = rng.normal(size=(network.panels, network.output_dim)).astype(np.float32)
    network.put_output(0, rows)
    np.testing.assert_array_equal(network.output_rows(network.output[0]), rows)
    weights, biases = plain_output(rows, words, dim)
    for word in (0, words // 2, words - 1):
        panel, place = divmod(word, kernels.PANEL)
        np.testing.assert_array_equal(weights[word], network.output[0, panel, :dim, place])
        assert biases[word] == network.output[0, panel, network.width, place]


@pytest.mark.parametrize("layers", [1, 3])
def test_sum_into_weighs_rows_by_who_met_them_and_panels_by_windows(layers):
    rng = np.random.default_rng(4)
    parts = [Network(200, 16, 3) for _ in range(3)]
    for part in parts:
        part.embedding[:] = rng.normal(size=part.embedding.shape)
        part.output[:] = rng.normal(size=part.output.shape)
        part.counts[:] = rng.integers(0, 9, 200)
    touched, used = ([rng.integers(0, 3, 200).astype(np.float32) for _ in parts] for _ in range(2))
    windows = [10, 20, 5]
    total = Network(200, 16, 3)
    with ThreadPoolExecutor(2) as pool:
        sum_into(total, layers, parts, (touched, used), windows, pool)
    of_rows = sum(
        part.embedding * np.stack((weight, later, later))[:, :, None]
        for part, weight, later in zip(parts, touched, used, strict=True)
    )
    of_panels = sum(part.output * count for part, count in zip(parts, windows, strict=True))
    np.testing.assert_allclose(total.embedding[:layers], of_rows[:layers], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(total.output[:layers], of_panels[:layers], rtol=1e-4, atol=1e-4)
    assert not total.output[layers:].any()
    counts = sum(part.counts * weight for part, weight in zip(parts, used, strict=True))
    np.testing.assert_allclose(total.counts, counts)


def test_feeds_with_one_pipeline_deal_its_batches_in_turn(folder):
    settings = settings_of(folder, shuffle=0)
    words = read_vocab(settings.data_dir)
    feeds = [Feeds(settings, words, n, 0, 1) for n in (1, 3)]
    try:
        alone = [feeds[0].take(0) for _ in range(12)]
        shared = [[feeds[1].take(i) for _ in range(4)] for i in (2, 0, 1)]
    finally:
        for one in feeds:
            one.close()
    for learner, batches in zip((2, 0, 1), shared, strict=True):
        np.testing.assert_array_equal(np.array(batches), np.array(alone[learner::3]))


def test_feeds_of_other_clients_have_other_parts_of_the_text(folder):
    text = " ".join(f"{a}{b}" for a in "abcdefgh" for b in "stuvwxyz")
    (folder / "input").write_text(text)
    prepare([str(folder / "input")], folder / "data", test_windows=10)
    settings = settings_of(folder, bs=4, shuffle=0, pipelines=2)
    words = read_vocab(settings.data_dir)
    seen = []
    for client in range(2):
        with closing(Feeds(settings, words, 2, client, 2)) as feeds:
            for learner in range(2):
                batches = [feeds.take(learner) for _ in range(3)]
                seen.append({words[i] for i in np.concatenate(batches).ravel()})
    assert all(len(one) >= 14 for one in seen)
    assert all(not (a & b) for n, a in enumerate(seen) for b in seen[:n])


def test_feeds_of_an_input_of_ones_own_have_all_of_it(folder):
    """Each client at its own machine, so none may leave parts to the others."""
    text = " ".join(f"{a}{b}" for a in "abcdefgh" for b in "stuvwxyz")
    (folder / "input").write_text(text)
    prepare([str(folder / "input")], folder / "data", test_windows=10)
    settings = settings_of(folder, bs=4, shuffle=0, pipelines=2, own_input="true")
    words = read_vocab(settings.data_dir)
    for client in range(3):
        with closing(Feeds(settings, words, 2, client, 3)) as feeds:
            batches = [feeds.take(learner) for learner in (0, 1) for _ in range(10)]
        assert {words[i] for i in np.concatenate(batches).ravel()} == set(words)


def test_place_of_a_lost_worker_with_an_input_of_its_own_gets_no_second_share(folder):
    """Its data are not here, and this worker's would count twice; repeated work counts again."""
    settings = settings_of(folder, own_input="true", learners=1)
    model, pushed = FedAvg(settings), []
    model.threads, model.workers = 1, 2
    tables = {table.name: table for table in model.tables()}

    class Rows:
        def __init__(self, name, keys):
            self.rows = np.zeros((len(keys), tables[name].dim), np.float32)

        def wait(self):
            return self.rows

    model.pull_async = Rows
    model.push_async = lambda name, keys, values: pushed.append(name) or Rows(name, keys)
    model.setup()
    windows = []
    try:
        for clock, index in ((0, 1), (0, 0), (1, 0), (1, 1), (1, 0)):
            block = SimpleNamespace(index=index, clock=clock)
            block.prepared = model.prepare(block)
            windows.append(model.train(block)["examples"])
    finally:
        model.finish()
    assert windows == [64, 0, 64, 0, 64]
    assert pushed == ["embedding", "output"] * 3


def test_feeds_with_a_stage_of_ones_own_use_it(folder):
    stages = "tokenizer, pipeline_stages:LongWords, filter, batcher"
    settings = settings_of(folder, stages=stages)
    words = read_vocab(settings.data_dir)
    with closing(Feeds(settings, words, 1, 0, 1)) as feeds:
        seen = {words[i] for _ in range(10) for i in feeds.take(0).ravel()}
    assert seen
    assert all(len(word) > 3 for word in seen)
    assert any(len(word) <= 3 for word in words)


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("1234 5678\n" * 20, {}, r"stage Tokenizer .* has made nothing of it"),
        ("12", {}, r"stage Tokenizer .* has made nothing of it"),
        (None, {}, "no word of a pipeline's whole text"),
        (None, {"stages": "tokenizer, pipeline_stages:Texts, batcher"}, "stage Batcher"),
    ],
)
def test_feeds_that_come_to_no_windows_name_what_makes_none(folder, text, given, said):
    if text is not None:
        (folder / "input").write_text(text)
    with (
        closing(Feeds(settings_of(folder, **given), [b"zzz", b"qqq"], 1, 0, 1)) as feeds,
        pytest.raises((DataError, MisuseError), match=said),
    ):
        feeds.take(0)


def test_feeds_of_a_text_that_is_shorter_than_a_window_go_through_it_again(folder):
    (folder / "input").write_text("whale ship")
    with closing(
        Feeds(settings_of(folder, shuffle=500, bs=4), [b"whale", b"ship"], 1, 0, 1)
    ) as feeds:
        assert feeds.take(0).tolist()[0] in ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1])


def test_stage_that_makes_numbers_of_no_words_is_refused(folder):
    (folder / "input").write_text("whale ship " * 9)
    stages = "tokenizer, filter, pipeline_stages:Others, batcher"
    with (
        closing(Feeds(settings_of(folder, stages=stages), [b"whale", b"ship"], 1, 0, 1)) as feeds,
        pytest.raises(DataError, match="numbers from 2 to 3, but words have 0 to 1: a stage after"),
    ):
        feeds.take(0)


def test_stages_of_unknown_name_refuse(folder):
    with pytest.raises(ConfigError, match="stages: nowhere:Stemmer"):
        stages_of(settings_of(folder, stages="tokenizer, nowhere:Stemmer, batcher"), [b"a"], 0)


# --- plots ----------------------------------------------------------------------------------------


def test_label_of_counts_learners_and_pipelines_of_all_workers(tmp_path):
    path = tmp_path / "x"
    run_ = {"data_name": "moby", "workers": 2, "learners": 4, "pipelines": 1}
    assert label_of(run_, path) == "moby: 8 learners, 2 pipelines"
    run_ = {"data_name": "moby", "workers": 1, "learners": 1, "pipelines": 0}
    assert label_of(run_, path) == "moby: 1 learner, 1 pipeline"
    run_ |= {"workers": 2, "learners": 0}  # one for each thread of a worker
    assert label_of(run_, path) == "moby: 2 workers"
    assert label_of(run_ | {"pipelines": 1}, path) == "moby: 2 workers, 2 pipelines"


def history(path, rounds=3):
    lines = [{"data_name": "d", "learners": 1, "pipelines": 1, "workers": 1, "target": 2.0}]
    for n in range(1, rounds + 1):
        lines.append({"round": n, "loss": 3 / n, "windows_per_learner": 10 * n, "seconds": n})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_prepare_and_plot_replace_no_files_unasked(folder, tmp_path):
    text, into = str(folder / "input"), folder / "data"
    (into / "vocab.txt").write_text("mine")
    words = ["prepare", text, "--into", str(into), "--test-windows", "20"]
    with pytest.raises(ConfigError, match=r"^--into: .*vocab.txt exists .*, and 1 more of its f"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert (into / "vocab.txt").read_text() == "mine"
    told = CliRunner().invoke(app, [*words, "--overwrite"], catch_exceptions=False)
    assert told.exit_code == 0
    assert (into / "vocab.txt").read_text() != "mine"
    history(tmp_path / "x")
    (tmp_path / "x.png").write_text("mine")
    words = ["plot", str(tmp_path / "x"), "--into", str(tmp_path / "x.png")]
    with pytest.raises(ConfigError, match=r"^--into: .*x.png exists \(4 bytes, "):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("first", [{"workers": "2"}, {"target": "low"}, {"data_name": 5}])
def test_history_of_a_strange_run_is_refused(tmp_path, first):
    path = history(tmp_path / "x")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(lines[0]) | first), *lines[1:]]))
    with pytest.raises(DataError, match="expected a line about the run"):
        read_history(path)


def test_plot_needs_a_format_and_takes_namesas_text(tmp_path):
    """matplotlib would write x.png for x, and read $ as the begin of a formula."""
    (tmp_path / "x.png").write_text("mine")
    with pytest.raises(ConfigError, match=r"--into: .*x: expected a name that ends in .png"):
        plot_histories([history(tmp_path / "h")], tmp_path / "x")
    assert (tmp_path / "x.png").read_text() == "mine"
    assert as_text(r"a$\foo$b") == r"a\$\foo\$b"
    assert as_text("_hidden") == " _hidden"


def test_prepared_files_are_no_text(folder):
    """A folder that is prepared into itself, once more; and trained on."""
    (folder / "corpus").mkdir()
    (folder / "input").rename(folder / "corpus" / "text")
    text = [str(folder / "corpus")]
    prepare(text, folder / "corpus", test_windows=20)
    before = {path: path.read_bytes() for path in (folder / "corpus").iterdir()}
    with pytest.raises(DataError, match=r"corpus/test.txt is no text"):
        prepare(text, folder / "corpus", test_windows=20)
    assert {path: path.read_bytes() for path in (folder / "corpus").iterdir()} == before
    settings = settings_of(folder, input=text[0], data_dir=text[0])
    with pytest.raises(DataError, match=r"corpus/test.txt is no text.*\(data_dir\)"):
        Feeds(settings, [b"a"], 1, 0, 1)


def test_prepare_refuses_settings_that_no_job_would_take_and_removes_half_of_two_texts(
    folder, monkeypatch
):
    text, data = [str(folder / "input")], folder / "data"
    before = (data / "vocab.txt").read_bytes()
    with pytest.raises(ConfigError, match=r"cfg.json: target: .*got inf"):
        prepare(text, data, test_windows=20, cfg={"target": math.inf})
    assert (data / "vocab.txt").read_bytes() == before
    monkeypatch.setattr(os, "fsync", fails(errno.ENOSPC))
    with pytest.raises(ModelWriteError, match="full"):
        prepare(text, data, test_windows=20, cfg={"bs": 8})
    assert not (data / "test.txt").exists()


def test_plot_without_matplotlib_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigError, match=r"snailps\[plot\]"):
        plot_histories([history(tmp_path / "x")], tmp_path / "x.png")


# --- files of a run ------------------------------------------------------------------------------


class Tables:
    """`Results` of an evaluator: arrays of zeros, or of NaN."""

    def __init__(self, settings, seconds, value=0.0):
        self.settings, self.figures, self._value = settings, {"train_s": seconds}, value

    def pull(self, table, keys):
        width = (
            self.settings.dim if table == "embedding" else (self.settings.dim + 1) * kernels.PANEL
        )
        return np.full((len(keys), width), self._value, np.float32)


def saved_round(folder):
    with np.load(folder / "out.weights.npz") as saved:
        return int(saved["round"])


def test_arrays_are_written_once_a_second_and_at_the_end(folder):
    settings = settings_of(folder, output=str(folder / "out"))
    evaluator, found = RoundEvaluator(settings), []
    for round_, seconds in enumerate((0.1, 0.2, 1.3, 1.4)):
        evaluator.inspect(Tables(settings, seconds), round_)
        evaluator.wait()
        lines = read_history(folder / "out.history.jsonl")[1]
        found.append((saved_round(folder), len(lines)))
    assert found == [(1, 1), (1, 2), (3, 3), (3, 4)]
    assert len(evaluator.finish(Tables(settings, 1.4))) == 3
    assert saved_round(folder) == 4


def test_files_of_rounds_that_another_process_looked_at_are_written_at_the_end(folder):
    """Where a master took over behind the last round, and where results are asked for later."""
    settings = settings_of(folder, output=str(folder / "out"))
    tables = Tables(settings, 1.4)
    (folder / "out.history.jsonl").write_text('{}\n{"round": 3, "loss": 1.0}\n')  # of another run
    assert RoundEvaluator(settings).finish(tables) == []  # no round was trained
    assert not (folder / "out.weights.npz").exists()
    line = {"loss": 2.0, "windows_per_learner": 8, "seconds": 1.4}
    tables.figures["by_round"] = [{**line, "round": number} for number in (1, 2)]
    assert len(RoundEvaluator(settings).finish(tables)) == 3
    assert saved_round(folder) == 2
    assert [one["round"] for one in read_history(folder / "out.history.jsonl")[1]] == [1, 2]


def test_windows_of_a_learner_count_only_rounds_that_its_worker_trained(folder):
    """Of 4 workers 1, 2, 4 and an unknown number (a quarter is drawn: 1) train: means of all."""
    settings = settings_of(folder, fraction=0.25, bpe=2, bs=8, output="")
    evaluator, windows = RoundEvaluator(settings), []
    for round_, parts in enumerate((1, 2, 4, 0)):
        tables = Tables(settings, 0.1)
        tables.figures |= {"workers": 4, "parts": parts}
        windows.append(evaluator.inspect(tables, round_)["windows_per_learner"])
    assert windows == [4, 12, 28, 32]


def test_data_that_were_prepared_anew_are_read_anew(folder):
    settings = settings_of(folder)
    FedAvg.check(settings)
    before = evaluation.judge_of(settings)
    FedAvg.check(settings)
    assert evaluation.judge_of(settings) is not before


def test_files_without_room_are_written_after_a_later_round_or_at_the_end(
    folder, monkeypatch, caplog
):
    """The master calls `finish` again while its disk is full."""
    settings = settings_of(folder, output=str(folder / "out"))
    evaluator, full = RoundEvaluator(settings), pytest.MonkeyPatch()

    def fill():
        full.setattr(os, "fsync", fails(errno.ENOSPC))

    try:
        evaluator.inspect(Tables(settings, 0.1), 0)
        evaluator.wait()
        fill()
        for round_ in (1, 2, 3):
            evaluator.inspect(Tables(settings, float(round_)), round_)
        with pytest.raises(ModelWriteError, match="full"):
            evaluator.wait()
        assert saved_round(folder) == len(read_history(folder / "out.history.jsonl")[1]) == 1
        full.undo()
        evaluator.inspect(Tables(settings, 4.0), 4)
        evaluator.wait()
        assert saved_round(folder) == len(read_history(folder / "out.history.jsonl")[1]) == 5
        evaluator.inspect(Tables(settings, 4.1), 5)
        fill()
        for _ in range(2):
            with pytest.raises(ModelWriteError, match="full"):
                evaluator.finish(Tables(settings, 4.1))
        full.undo()
        evaluator.finish(Tables(settings, 4.1))
        assert saved_round(folder) == len(read_history(folder / "out.history.jsonl")[1]) == 6
    finally:
        full.undo()
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_arrays_of_the_last_good_round_are_written_when_a_loss_is_no_number(folder):
    settings = settings_of(folder, output=str(folder / "out"))
    evaluator = RoundEvaluator(settings)
    for round_, value in enumerate((0.0, 0.0, np.nan)):
        evaluator.inspect(Tables(settings, 0.1, value), round_)
    evaluator.wait()
    assert saved_round(folder) == 2
