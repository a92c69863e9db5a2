"""How much N workers learn compared with one: each model, optimiser and loss, on held-out data.

    case, workers, consistency -> emulated.trained -> figure: 1 is perfect, 0 has learnt nothing

`bench/alike.py` prints the table and draws the picture of docs/consistency.md; the tests are
tests/sim/test_alike.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from emulated import trained
from idx_files import write_pictures
from texts import CIRCLE, circle_precision, sentences, write_circle

from snailps.config import RawConfig
from snailps.master.job.beginning import prepare
from snailps.master.job.job import Job
from snailps.models.sparse.metrics import poisson_deviance
from snailps.vectors.files import load
from snailps.vectors.label_prediction import LabelModel, evaluate_labels

WORKERS = (1, 2, 3, 8)
SCHEDULES = ("async", "ssp", "bsp")
WITHIN = 0.05
"""Of one worker's figure, below it."""
SLOTS = 8
"""Micro-batches of a step of bsp, which one worker or eight compute."""
_KIND = "snailps.models"


@dataclass(frozen=True)
class Case:
    """A model with an optimiser and a loss: its settings, its data, and how it is judged."""

    model: str
    optimizer: str
    loss: str
    write: Callable[[Path], dict[str, Any]]
    judge: Callable[[Any, Any], float]
    settings: dict[str, Any] = field(default_factory=dict)
    also: str = ""
    seeds: int = 1
    """The figure is the mean of so many."""
    relative: bool = False
    """Whether `WITHIN` is a share of one worker's figure."""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.model, self.loss, self.optimizer, self.also]))

    def figure(self, folder: Path, workers: int, schedule: str, **settings: Any) -> float:
        """How much this number of workers learns."""
        return self.run(folder, workers, schedule, **settings)[0]

    def run(
        self, folder: Path, workers: int, schedule: str, **settings: Any
    ) -> tuple[float, dict[str, Any]]:
        """The figure, and the bytes of all rows (of the last seed)."""
        figures, job = [], self.job(folder, schedule) | settings
        seeds = 1 if schedule == "bsp" else self.seeds  # there bits are compared
        for seed in range(job["seed"], job["seed"] + seeds):
            with trained(job | {"seed": seed}, workers) as (cls, results):
                figures.append(self.judge(cls, results))
                rows = {name: _packed(results, name) for name in results.tables}
        return float(np.mean(figures)), rows

    def below(self, figure: float, alone: float) -> float:
        """How far a figure is below one worker's, to be compared with `WITHIN`."""
        return (alone - figure) / (alone if self.relative else 1.0)

    def at_once(self, folder: Path, workers: int, schedule: str) -> int:
        """How many of the workers train at a time."""
        job = Job(RawConfig.from_mapping(self.job(folder, schedule), "alike"))
        prepare(job, workers)
        job.close()
        return min(workers, job.as_counted(workers))

    def job(self, folder: Path, schedule: str) -> dict[str, Any]:
        """Settings of a job; writes its files to a folder."""
        folder.mkdir(exist_ok=True, parents=True)
        job = {
            "output": str(folder / "out"), "optimizer": self.optimizer, "loss": self.loss,
            "seed": 1, "consistency": schedule, "scratch_dir": str(folder / "scratch"),
            **self.write(folder),
        }  # fmt: skip
        if schedule == "bsp":
            job["micro_batches"] = SLOTS
        job |= self.settings
        return {name: value for name, value in job.items() if value is not None}


def _packed(results: Any, table: str) -> tuple[bytes, bytes]:
    """Keys and rows of a table, by key."""
    keys, rows = [], []
    for some, of_it in results.scan(table):
        keys.append(some.copy())
        rows.append(of_it.copy())
    if not keys:
        return b"", b""
    joined = np.concatenate(keys)
    order = np.argsort(joined)
    return joined[order].tobytes(), np.concatenate(rows)[order].tobytes()


# --- what they learn from --------------------------------------------------------------------


def _graph(folder: Path, entities: int = 240, relations: int = 6) -> dict[str, Any]:
    """Tails are near head + relation in a space of four dimensions; a twelfth is held out."""
    rng = np.random.default_rng(0)
    places, ways = rng.normal(0, 1, (entities, 4)), rng.normal(0, 1.2, (relations, 4))
    lines = []
    for relation, way in enumerate(ways):
        far = ((places[:, None] + way - places[None]) ** 2).sum(2)
        np.fill_diagonal(far, np.inf)
        near = np.argsort(far)[:, :4]
        lines += [f"e{h}\tr{relation}\te{t}\n" for h in range(entities) for t in near[h]]
    rng.shuffle(lines)
    held_out = len(lines) // 12
    (folder / "train.tsv").write_text("".join(lines[held_out:]))
    (folder / "test.tsv").write_text("".join(lines[:held_out]))
    return {
        "worker_class": f"{_KIND}.embeddings.kge:KnowledgeGraph", "dim": 32, "epochs": 20,
        "input": str(folder / "train.tsv"), "test": str(folder / "test.tsv"),
    }  # fmt: skip


def _large_graph(folder: Path, tails: int) -> dict[str, Any]:
    """As `_graph`, of 5,050 entities and 12 relations in five dimensions: 60,600 triples a tail."""
    rng = np.random.default_rng(0)
    entities = 5050
    places = rng.normal(0, 1, (entities, 5)).astype(np.float32)
    triples = []
    for relation, way in enumerate(rng.normal(0, 1.2, (12, 5)).astype(np.float32)):
        far = np.square(places).sum(1)[None] - 2 * (places + way) @ places.T
        np.fill_diagonal(far, np.inf)
        near = np.argpartition(far, tails, axis=1)[:, :tails]
        triples += [(h, relation, t) for h in range(entities) for t in near[h].tolist()]
    lines = [f"e{h}\tr{r}\te{t}\n" for h, r, t in rng.permutation(np.array(triples)).tolist()]
    (folder / "train.tsv").write_text("".join(lines[1500:]))
    (folder / "test.tsv").write_text("".join(lines[:1500]))
    return {
        "worker_class": f"{_KIND}.embeddings.kge:KnowledgeGraph", "dim": 32, "epochs": 5,
        "input": str(folder / "train.tsv"), "test": str(folder / "test.tsv"),
    }  # fmt: skip


def _ratings(folder: Path, train: int = 8000) -> dict[str, Any]:
    """Ratings by planted biases and factors."""
    rng = np.random.default_rng(5)
    users, items = 200, 80
    p, q = rng.normal(0, 0.7, (users, 3)), rng.normal(0, 0.7, (items, 3))
    of_user, of_item = rng.normal(0, 0.4, users), rng.normal(0, 0.5, items)
    u, i = np.divmod(rng.permutation(users * items)[:9000], items)
    values = 3 + of_user[u] + of_item[i] + (p[u] * q[i]).sum(1) + rng.normal(0, 0.2, len(u))
    lines = [f"u{a},i{b},{v:.3f}\n" for a, b, v in zip(u, i, values, strict=True)]
    (folder / "train.csv").write_text("".join(lines[:train]))
    (folder / "test.csv").write_text("".join(lines[8000:]))
    return {
        "worker_class": f"{_KIND}.embeddings.mf:MatrixFactorization", "dim": 8, "epochs": 15,
        "l2": 0.02, "input": str(folder / "train.csv"), "test": str(folder / "test.csv"),
    }  # fmt: skip


def _choices(folder: Path, train: float = 0.8) -> dict[str, Any]:
    """30 of 200 items for each of 300 users, by planted factors."""
    rng = np.random.default_rng(1)
    users, items = 300, 200
    p, q = rng.normal(0, 0.7, (users, 6)), rng.normal(0, 0.7, (items, 6))
    scores = 2.5 * p @ q.T + rng.gumbel(size=(users, items))
    best = np.argsort(-scores, axis=1)[:, :30]
    pairs = rng.permutation(np.column_stack([np.repeat(np.arange(users), 30), best.ravel()]))
    lines = [f"u{user}\ti{item}\n" for user, item in pairs]
    cut = len(lines) * 4 // 5
    (folder / "train.tsv").write_text("".join(lines[: int(len(lines) * train)]))
    (folder / "test.tsv").write_text("".join(lines[cut:]))
    return {
        "worker_class": f"{_KIND}.embeddings.mf:MatrixFactorization", "dim": 16, "epochs": 20,
        "input": str(folder / "train.tsv"), "test": str(folder / "test.tsv"),
    }  # fmt: skip


def _lines(folder: Path, kind: str, cls: str, lines: int = 5000, **settings: Any) -> dict[str, Any]:
    """Examples with six of 60 features; weights of features and of pairs are planted."""
    rng = np.random.default_rng(7)
    outputs, features = 3, 60
    weights = rng.normal(0, 0.8, (features, outputs))
    factors = rng.normal(0, 0.6, (features, 3))
    for name, count in (("train", lines), ("test", 1500)):
        with (folder / f"{name}.svm").open("w") as file:
            for _ in range(count):
                used = np.sort(rng.choice(features, 6, replace=False))
                values = np.round(rng.normal(0, 1, 6), 3)
                scores = values @ weights[used]
                if cls.startswith("fm"):
                    mixed = values @ factors[used]
                    own = (values[:, None] * factors[used]) ** 2
                    scores = scores + (mixed**2 - own.sum(0)).sum()
                label: Any = {
                    "logistic": lambda s=scores: int(rng.random() < 1 / (1 + np.exp(-s[0]))),
                    "squared": lambda s=scores: round(s[0] + rng.normal(0, 0.3), 3),
                    "multinomial": lambda s=scores: int(np.argmax(s + rng.gumbel(size=outputs))),
                    "poisson": lambda s=scores: int(rng.poisson(np.exp(min(3, 0.4 * s[0])))),
                }[kind]()
                pairs = " ".join(f"{k + 1}:{v:g}" for k, v in zip(used, values, strict=True))
                file.write(f"{label} {pairs}\n")
    classes = {"classes": outputs} if kind == "multinomial" else {}
    return {
        "worker_class": f"{_KIND}.sparse.{cls}", "epochs": 6, **classes, **settings,
        "input": str(folder / "train.svm"), "test": str(folder / "test.svm"),
    }  # fmt: skip


def _pictures(folder: Path, train: int = 3000) -> dict[str, Any]:
    for name, count, seed in (("train", train, 1), ("test", 800, 2)):
        write_pictures(folder, name, count, seed)
    return {
        "worker_class": f"{_KIND}.mlp:Mlp", "hidden": 16, "batch_size": 32, "epochs": 5,
        "input": str(folder / "train"), "labels": str(folder / "train-labels"),
        "test": str(folder / "test"), "test_labels": str(folder / "test-labels"), "loss": None,
    }  # fmt: skip


def _text(folder: Path, lines: int = 6000) -> dict[str, Any]:
    write_circle(folder / "text", lines=lines)
    return {
        "worker_class": f"{_KIND}.word_vectors:WordVectors", "input": str(folder / "text"),
        "formats": "vec", "dim": 16, "epochs": 5, "sample": 0.001, "minn": 0, "maxn": 0,
        "min_count": 1,
    }  # fmt: skip


def _labelled(folder: Path, train: int = 3200) -> dict[str, Any]:
    lines = [f"__label__{subject} {line}\n" for subject, line in sentences(4000, 1)]
    (folder / "train.txt").write_text("".join(lines[:train]))
    (folder / "test.txt").write_text("".join(lines[3200:]))
    return {
        "worker_class": f"{_KIND}.classifier:Classifier", "input": str(folder / "train.txt"),
        "dim": 16, "epochs": 8, "lr": 0.5,
    }  # fmt: skip


# --- how they are judged -----------------------------------------------------------------------


def _test(cls: Any, results: Any) -> dict[str, float]:
    return dict(cls.judge(results)["test"])


def _mrr(cls: Any, results: Any) -> float:
    return _test(cls, results)["mrr"]


def _explained(cls: Any, results: Any) -> float:
    """Share of the variance of ratings that is explained."""
    values = np.loadtxt(results.settings.test[0], delimiter=",", usecols=2)
    return float(1 - _test(cls, results)["rmse"] ** 2 / values.var())


def _ndcg(cls: Any, results: Any) -> float:
    return _test(cls, results)["ndcg_at_10"]


def _skill(cls: Any, results: Any) -> float:
    """Share by which the model reduces the loss of the best constant."""
    figures, labels = _test(cls, results), _labels(results.settings.test[0])
    if "log_loss" in figures:
        shares = np.unique(labels, return_counts=True)[1] / len(labels)
        return float(1 - figures["log_loss"] / -(shares * np.log(shares)).sum())
    if "deviance" in figures:
        constant = poisson_deviance(labels, np.full(len(labels), labels.mean())).mean()
        return float(1 - figures["deviance"] / constant)
    return float(1 - figures["rmse"] ** 2 / labels.var())


def _labels(path: str) -> Any:
    with open(path) as file:
        return np.array([float(line.split(None, 1)[0]) for line in file])


def _accuracy(cls: Any, results: Any) -> float:
    return _test(cls, results)["accuracy"]


def _nearest(cls: Any, results: Any) -> float:
    cls.export(results)
    vectors = load(f"{results.settings.output}.vec")
    names = [f"w{number}" for number in range(CIRCLE)]
    return float(circle_precision({name: vectors.vector(name) for name in names}))


def _precision(cls: Any, results: Any) -> float:
    cls.export(results)
    test = Path(results.settings.input[0]).with_name("test.txt")
    return float(evaluate_labels(LabelModel(f"{results.settings.output}.bin"), test).precision)


# --- all of them --------------------------------------------------------------------------------


def _of_graphs() -> Iterator[Case]:
    rates = {"sgd": 0.1, "adagrad": 0}
    for model in ("transe", "distmult", "complex", "rotate"):
        for loss in ("logistic", "margin", "softmax"):
            for optimizer in ("adagrad", "sgd"):
                settings = {"model": model, "lr": rates[optimizer]}
                if loss == "margin" and model in ("distmult", "complex"):
                    settings["margin"] = 1.0
                yield Case(model, optimizer, loss, _graph, _mrr, settings)
    for optimizer in ("adagrad", "sgd"):
        settings = {"model": "transe", "normalize": True, "margin": 1.0, "lr": rates[optimizer]}
        yield Case("transe", optimizer, "margin", _graph, _mrr, settings, "normalize")
        yield Case("transe", optimizer, "logistic", _graph, _mrr,
                   {"model": "transe", "norm": "l2", "lr": rates[optimizer]}, "l2")  # fmt: skip


def _of_factors() -> Iterator[Case]:
    for optimizer in ("sgd", "adagrad"):
        yield Case("mf", optimizer, "squared", _ratings, _explained)
        for loss in ("softmax", "pairwise"):
            yield Case("mf", optimizer, loss, _choices, _ndcg)


def _of_examples() -> Iterator[Case]:
    def data(kind: str, cls: str, **settings: Any) -> Callable[[Path], dict[str, Any]]:
        return lambda folder: _lines(folder, kind, cls, **settings)

    for kind in ("logistic", "squared", "multinomial", "poisson"):
        for optimizer in ("ftrl", "adagrad", "sgd"):
            lr = {"lr": 0.02} if (kind, optimizer) == ("poisson", "sgd") else {}
            yield Case("linear", optimizer, kind, data(kind, "linear:Linear", **lr), _skill)
    for kind, optimizer in (("squared", "ftrl"), ("squared", "adagrad"), ("logistic", "sgd")):
        write = data(kind, "linear:Linear", lines=300)
        yield Case("linear", optimizer, kind, write, _skill, also="few")
    write = data("logistic", "fm:FactorizationMachine", factors=4, lines=300)
    yield Case("fm", "adagrad", "logistic", write, _skill, also="few")
    for kind in ("logistic", "squared"):
        for optimizer in ("adagrad", "ftrl", "sgd"):
            lr = {"lr": 0.01} if (kind, optimizer) == ("squared", "sgd") else {}
            write = data(kind, "fm:FactorizationMachine", factors=4, **lr)
            yield Case("fm", optimizer, kind, write, _skill)
    for kind in ("logistic", "squared", "multinomial"):
        for optimizer, lr in (("adagrad", 0.05), ("sgd", 0.1), ("adam", 0.003), ("ftrl", 0.1)):
            write = data(kind, "net:Net", hidden=16, batch_size=128, init_scale=0.2, lr=lr)
            yield Case("sparse_net", optimizer, kind, write, _skill)


def _of_pictures() -> Iterator[Case]:
    for optimizer, lr in (("sgd", 0.1), ("momentum", 0.005), ("adagrad", 0.02), ("adam", 0.005)):
        yield Case("mlp", optimizer, "multinomial", _pictures, _accuracy, {"lr": lr})


def _of_text() -> Iterator[Case]:
    for model in ("skipgram", "cbow"):
        for optimizer in ("add", "adagrad"):
            for loss in ("ns", "nce"):
                yield Case(model, optimizer, loss, _text, _nearest, {"model": model})
    for loss in ("softmax", "ova", "ns"):
        yield Case("classifier", "add", loss, _labelled, _precision)


def _of_sizes() -> Iterator[Case]:
    """Few lines of each kind, and graphs on which two or four workers train."""

    def of(write: Callable[..., dict[str, Any]], *size: Any) -> Callable[[Path], dict[str, Any]]:
        return lambda folder: write(folder, *size)

    yield Case("mf", "sgd", "squared", of(_ratings, 1000), _explained, also="few")
    for loss in ("softmax", "pairwise"):
        yield Case("mf", "adagrad", loss, of(_choices, 0.3), _ndcg, also="few")
    yield Case("mlp", "adam", "multinomial", of(_pictures, 300), _accuracy, {"lr": 0.005}, "few")
    for model in ("skipgram", "cbow"):
        yield Case(model, "add", "ns", of(_text, 1500), _nearest, {"model": model}, "few")
    for loss in ("softmax", "ova", "ns"):
        yield Case("classifier", "add", loss, of(_labelled, 800), _precision, also="few")
    for model, loss, tails, dim in (
        ("complex", "logistic", 8, 32),
        ("complex", "softmax", 8, 32),
        ("transe", "logistic", 8, 32),
        ("rotate", "logistic", 16, 32),  # four of eight train, else two
    ):
        settings = {"model": model, "lr": 0, "dim": dim}
        write = of(_large_graph, tails)
        yield Case(model, "adagrad", loss, write, _mrr, settings, "many", seeds=2, relative=True)


def _of_users() -> Iterator[Case]:
    """A model as users write them, by its access method and what it pushes."""

    def write(folder: Path) -> dict[str, Any]:
        return _lines(folder, "squared", "linear:Linear", 1500) | {
            "worker_class": "pushing_models:Pushing", "batch": 20,
        }  # fmt: skip

    steps = {
        "sgd": 0.2, "momentum": 0.02, "adagrad": 0.2, "rowwise_adagrad": 0.2, "adam": 0.02,
        "ftrl": 0.2, "pushing_models:Nesterov": 0.02,
    }  # fmt: skip
    local = {"add": 0.2, "sgd": 0.2, "adagrad": 0.2, "rowwise_adagrad": 0.2}
    means = {"average": 0.2}
    for way, rates in (("gradients", steps), ("deltas", local), ("means", means)):
        for access, lr in rates.items():
            settings = {"access": access, "way": way, "lr": lr, "optimizer": None, "loss": None}
            yield Case("own", access.rpartition(":")[2], "", write, _skill, settings, way)


CASES = [
    *_of_graphs(), *_of_factors(), *_of_examples(), *_of_pictures(), *_of_text(), *_of_users(),
    *_of_sizes(),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
