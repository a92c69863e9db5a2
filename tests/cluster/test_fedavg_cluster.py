"""Federated averaging: rounds of real processes."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from first_rows import first_row
from processes import Cluster
from test_cluster import figures_of
from test_fedavg import JOB, history, prepared, settings_of

from snailps import kernels
from snailps.errors import ConfigError
from snailps.models.fedavg.feeds import Feeds
from snailps.models.fedavg.learner import Learner
from snailps.models.fedavg.model import INIT_SCALE, MOMENT_ROUNDS
from snailps.models.fedavg.network import Network, plain_output, sum_into
from snailps.models.fedavg.plotting import plot_histories, read_history
from snailps.models.fedavg.settings import read_test, read_vocab


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


def run(folder, workers=1, servers=1, code=0, **changed):
    """Runs a job in the folder; the master, and the figures where it succeeds."""
    job = {key: value for key, value in (JOB | changed).items() if value is not None}
    with Cluster(folder, job=job, servers=servers, workers=workers) as cluster:
        codes, master = cluster.run()
        assert codes[0] == code, master.stderr
    return master, figures_of(master) if code == 0 else None


def weights_of(folder, name="out"):
    with np.load(folder / f"{name}.weights.npz") as saved:
        return {key: saved[key] for key in saved.files}


# --- rounds through servers -----------------------------------------------------------------------


def simulate(settings, clients, learners):
    """The same rounds in this process: weights of the network after each."""
    words = read_vocab(settings.data_dir)
    from snailps.models.fedavg.model import FedAvg

    model = FedAvg(settings)
    table = model.tables()[0]
    base = Network(len(words), settings.dim, 3)
    rows = [
        first_row(kernels, 1, INIT_SCALE, table.seed, key, settings.dim)
        for key in range(len(words))
    ]
    base.put_embedding(0, np.array(rows))
    feeds = [Feeds(settings, words, learners, i, clients) for i in range(clients)]
    own = [Network(len(words), settings.dim, 3) for _ in range(clients)]  # moments of each client
    teams = [[Learner(len(words), settings) for _ in range(learners)] for _ in range(clients)]
    total = Network(len(words), settings.dim, 3)
    everyone = [learner for team in teams for learner in team]
    try:
        for round_ in range(settings.rounds):
            steps, shared = round_ * settings.bpe, clients > 1 and round_ % MOMENT_ROUNDS == 0
            for client, team in enumerate(teams):
                if shared:
                    take_means(own[client], base, slice(None), slice(2, 3))
                take_means(own[client], base, slice(None), slice(0, 1))
                for number, learner in enumerate(team):
                    learner.used *= not shared
                    take = partial(feeds[client].take, number)
                    layers = (0, 1, 2) if learners > 1 else (0, 2) if shared else (0,)
                    learner.train(own[client], take, steps, layers=layers)
                touched, ends = [one.touched for one in team], round_ % MOMENT_ROUNDS == 3
                used = [one.used for one in team] if clients > 1 and ends else touched
                take_means(own[client], total, summed(total, team, touched, used), slice(1, 3))
            touched = [learner.touched for learner in everyone]
            met = summed(total, everyone, touched, touched)
            take_means(base, total, met, slice(0, 1))
            if clients > 1 and round_ % MOMENT_ROUNDS == MOMENT_ROUNDS - 1:
                met = summed(total, everyone, touched, [learner.used for learner in everyone])
                take_means(base, total, met, slice(2, 3))
    finally:
        for one in feeds:
            one.close()
    return base


def summed(total, team, touched, used):
    """Makes `total` the means of learners' networks; words that have any use."""
    windows = [learner.windows for learner in team]
    with ThreadPoolExecutor(1) as pool:
        sum_into(total, 3, [one.network for one in team], (touched, used), windows, pool)
    for uses, layers in ((touched, slice(0, 1)), (used, slice(1, 3))):
        total.embedding[layers] /= np.maximum(sum(uses), 1)[:, None]
    total.counts /= np.maximum(sum(used), 1)
    total.output /= np.float32(sum(windows))
    return sum(used) > 0


def take_means(to, means, words, layers):
    """Copies layers of a network, and counts with those of moments."""
    to.embedding[layers, words] = means.embedding[layers, words]
    to.output[layers] = means.output[layers]
    if layers.start:
        to.counts[words] = means.counts[words]


@pytest.mark.long(but=["2-1-1-1-20", "2-2-2-0-16"])
@pytest.mark.parametrize(
    ("workers", "servers", "learners", "pipelines", "dim"),
    [(1, 1, 1, 1, 16), (1, 2, 2, 1, 16), (2, 1, 1, 1, 20), (2, 2, 2, 0, 16)],
)
def test_rounds_through_servers_are_the_weighted_means(
    folder, workers, servers, learners, pipelines, dim
):
    rounds = 2 * MOMENT_ROUNDS + 1
    shape = {"learners": learners, "pipelines": pipelines, "dim": dim, "rounds": rounds}
    _, figures = run(folder, workers, servers, **shape)
    want = simulate(settings_of(folder, **shape), workers, learners)
    got = weights_of(folder)
    weights, biases = plain_output(want.output_rows(want.output[0]), want.words, dim)
    np.testing.assert_allclose(got["embedding"], want.embedding[0, :, :dim], atol=2e-5)
    np.testing.assert_allclose(got["output"], weights, atol=2e-5)
    np.testing.assert_allclose(got["bias"], biases, atol=2e-5)
    assert got["round"] == figures["rounds"] == rounds
    assert figures["examples"] == rounds * 4 * 16 * workers * learners
    assert figures["ended_by"] == "rounds"
    text = np.loadtxt(folder / "out.embedding.txt")
    np.testing.assert_allclose(text, got["embedding"], atol=6e-7)
    run_, lines = read_history(folder / "out.history.jsonl")
    assert (run_["workers"], run_["learners"]) == (workers, learners)
    assert [line["windows_per_learner"] for line in lines] == [64 * n for n in range(1, rounds + 1)]
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)
    scratch = want.scratch(5, 50)
    test = read_test(str(folder / "data"), read_vocab(str(folder / "data")), 5)
    loss = kernels.cbow_loss(test, want.embedding[0], want.output[0], scratch, batch=50) / 50
    assert lines[-1]["loss"] == pytest.approx(loss, abs=1e-4)


def test_rounds_again_with_the_same_seed_give_the_same_bits(folder):
    saved = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(folder, workers=2, output=name, seed=seed)
        saved.append(weights_of(folder, name))
    for key in saved[0]:
        np.testing.assert_array_equal(saved[0][key], saved[1][key])
    assert (saved[0]["output"] != saved[2]["output"]).any()


@pytest.mark.parametrize("learners", [1, 2])
def test_rounds_in_which_few_workers_take_part_learn(folder, learners):
    run(folder, workers=3, rounds=40, fraction=0.34, learners=learners, lr=0.05, bs=4)
    _, rounds = read_history(folder / "out.history.jsonl")
    losses = [line["loss"] for line in rounds]
    assert max(losses[20:]) < min(losses[:20]) + 0.1 < losses[0] - 0.3


def test_target_ends_the_training(folder):
    _, figures = run(folder, rounds=300, target=2.9, bpe=8)
    _, rounds = read_history(folder / "out.history.jsonl")
    assert figures["ended_by"] == "target_loss"
    assert rounds[-1]["loss"] <= 2.9 < rounds[-2]["loss"]
    assert len(rounds) < 300


def test_loss_that_is_no_number_fails(folder):
    master, _ = run(folder, code=1, worker_class="fedavg_models:Diverges", target=1e-9)
    assert "on block 1: NotFinite: table 'output': expected finite values to push" in master.stderr
    assert weights_of(folder)["round"] == 1  # the last one that was any good
    assert np.isfinite(weights_of(folder)["output"]).all()


def test_missing_test_windows_end_the_job_before_it_starts(folder):
    (folder / "data" / "test.txt").write_text("")
    master, _ = run(folder, code=2)
    assert "data/test.txt: expected windows of 5 words" in master.stderr


def test_more_pipelines_than_a_worker_has_threads_say_so(folder):
    master, _ = run(folder, code=2, learners=0, pipelines=2, workers=1)
    assert "pipelines: expected at most 1, as many as this worker has learners" in master.stderr


def test_plot_draws_a_picture(tmp_path):
    """matplotlib starts a process, to find fonts, the first time."""
    pytest.importorskip("matplotlib", reason="the optional extra `plot` is not installed")
    plot_histories([history(tmp_path / "x"), history(tmp_path / "y", 5)], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="cannot write"):
        plot_histories([history(tmp_path / "x")], tmp_path / "p.none")
