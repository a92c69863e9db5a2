#!/usr/bin/env python3
"""Each public kernel in each of its builds: none may be slower than `base`, for any CPU.

    random arrays -> calls of each build, interleaved -> processor time, medians -> ratios to base

Arrays fit in the second-level cache or nearly, so that what differs is what was compiled, not what
memory does.  Training goes on from call to call.

    python bench/builds.py [KERNEL ...]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from snailps import kernels
from snailps._kernel_probes import Probes

Call = Callable[[kernels.Kernels], object]
DIM, ROWS, EXAMPLES, VALUES = 100, 1000, 1000, 20
RATES = {"lr_start": 1e-3, "lr_stop": 1e-3}
SLOWER = 0.97
"""Ratios below this are named: medians of the same build move by some 2%."""
LEAST_US = 500.0
"""Least duration of what is timed: short calls are repeated."""


def words(rng: np.random.Generator) -> dict[str, Call]:
    """Word vectors: with a row a word, and with four subwords a word."""
    inputs, outputs = (kernels.padded(ROWS, DIM) for _ in range(2))
    inputs[:, :DIM] = rng.normal(0, 0.1, (ROWS, DIM))
    squares = tuple(kernels.padded(ROWS, DIM) for _ in range(2))
    tokens = rng.integers(0, ROWS // 2, 4 * EXAMPLES).astype(np.int32)
    noise = rng.integers(0, ROWS, 10_000).astype(np.int32)
    pairs = kernels.sort_pairs(tokens, 5, 1).take(0)
    found: dict[str, Call] = {}
    for name, size in (("", 1), ("_subwords", 5)):
        ptr = np.arange(0, ROWS // 2 * size + 1, size)
        rows = rng.integers(0, ROWS, ROWS // 2 * size).astype(np.int32)
        rest = ptr, rows, noise, np.zeros(0, np.float32)
        more = {"negatives": 5, "seed": 1, **RATES}
        means = np.empty((len(ptr) - 1, DIM), np.float32)
        for way, extra in (("", {}), ("_adagrad", {"squares": squares})):
            found[f"train_words{name}{way}"] = lambda k, rest=rest, more=more | extra: (
                k.train_words(inputs, outputs, DIM, tokens, *rest, window=5, **more)
            )
            found[f"train_pairs{name}{way}"] = lambda k, rest=rest, more=more | extra: (
                k.train_pairs(inputs, outputs, DIM, *pairs, *rest, **more)
            )
        found[f"bag_means{name}"] = lambda k, ptr=ptr, rows=rows, means=means: k.bag_means(
            inputs, ptr, rows, means
        )
    found["sort_pairs"] = lambda k: k.sort_pairs(tokens, 5, 1).take(0)
    return found


def labels(rng: np.random.Generator) -> dict[str, Call]:
    """A classifier of 50 labels."""
    inputs, outputs = kernels.padded(ROWS, DIM), kernels.padded(50, DIM)
    inputs[:, :DIM] = rng.normal(0, 0.1, (ROWS, DIM))
    ptr = np.arange(0, EXAMPLES * VALUES + 1, VALUES)
    rows = rng.integers(0, ROWS, EXAMPLES * VALUES).astype(np.int32)
    truth = rng.integers(0, 50, EXAMPLES).astype(np.int32)
    noise = rng.integers(0, 50, 1000).astype(np.int32)
    return {
        f"train_labels_{name}": lambda k, loss=loss: k.train_labels(
            inputs, outputs, DIM, ptr, rows, np.arange(EXAMPLES + 1), truth, noise, loss=loss,
            negatives=5, shared=False, seed=1, first=0, last=EXAMPLES, **RATES,
        )
        for loss, name in enumerate(("softmax", "one_vs_all", "negatives"))
    }  # fmt: skip


def sparse(rng: np.random.Generator) -> dict[str, Call]:
    """Linear models, factorization machines and a first layer, on examples of 20 values."""
    ptr = np.arange(0, EXAMPLES * VALUES + 1, VALUES)
    places = rng.integers(1, ROWS, EXAMPLES * VALUES).astype(np.int32)
    values = rng.normal(0, 1, len(places)).astype(np.float32)
    one, several = (np.tile(np.arange(VALUES, dtype=np.int32) % n, EXAMPLES) for n in (1, 4))
    truth = rng.integers(0, 2, EXAMPLES).astype(np.float32)
    empty = np.zeros(0, np.float32)
    data = ptr, places, values
    more = {"bias": 0, "hot": 0, "eps": 1e-8, "l1": 0.1, "l2": 0.01, "beta": 1.0, "first": 0,
            "last": EXAMPLES, **RATES}  # fmt: skip
    found: dict[str, Call] = {}
    for method, name, states in ((1, "sgd", 0), (2, "adagrad", 1), (4, "ftrl", 2)):
        for outputs, loss in ((1, 0), (10, 2)):
            rows = np.zeros((ROWS, outputs * (1 + states)), np.float32)
            options = more | {"outputs": outputs, "loss": loss, "method": method}
            found[f"train_linear_{name}_{outputs}"] = lambda k, rows=rows, options=options: (
                k.train_linear(rows, *data, truth, empty, **options)
            )
        for factors, field_num in ((8, 1), (16, 1), (4, 4)):
            dim = 1 + factors * field_num
            fields = one if field_num == 1 else several
            wide = kernels.padded(ROWS * (1 + states), dim).reshape(ROWS, -1)
            wide[:, 1:dim] = rng.normal(0, 0.1, (ROWS, dim - 1))
            options = more | {"factors": factors, "field_num": field_num, "method": method,
                              "loss": 0, "factor_l2": 0.01}  # fmt: skip
            found[f"train_fm_{name}_{factors}x{field_num}"] = (
                lambda k, wide=wide, fields=fields, options=options: k.train_fm(
                    wide, *data, fields, truth, empty, **options
                )
            )
            if method == 1:
                found[f"fm_scores_{factors}x{field_num}"] = (
                    lambda k, wide=wide, fields=fields, n=factors, num=field_num: k.fm_scores(
                        wide, *data, fields, factors=n, field_num=num, bias=0
                    )
                )
    found["linear_scores"] = lambda k: k.linear_scores(rows, *data, outputs=10, bias=0)
    ftrl = np.abs(rng.normal(0, 1, (ROWS, 30))).astype(np.float32)
    found["ftrl_weights"] = lambda k: k.ftrl_weights(ftrl, outputs=10, lr=0.1, l1=0.1, beta=1.0)
    packed = rng.normal(0, 1, (ROWS, 2 * 17)).astype(np.float32)
    unpacked = kernels.padded(2 * ROWS, 17).reshape(ROWS, -1)
    found["unpack_parts"] = lambda k: k.unpack_parts(packed, unpacked, 17, 2)
    found["subtract_parts"] = lambda k: k.subtract_parts(unpacked, packed, 17, 2)
    for dim in (16, 128):
        table = rng.normal(0, 1, (ROWS, dim)).astype(np.float32)
        layer = np.empty((EXAMPLES, dim), np.float32)
        back = np.empty_like(table)
        found[f"csr_product_{dim}"] = lambda k, table=table, layer=layer: k.csr_product(
            *data, table, layer
        )
        found[f"csr_gradients_{dim}"] = lambda k, layer=layer, back=back: k.csr_gradients(
            *data, layer, back
        )
    return found


def embeddings(rng: np.random.Generator) -> dict[str, Call]:
    """Knowledge graphs and ratings."""
    rows = kernels.padded(2 * ROWS, DIM).reshape(ROWS, -1)
    rows[:, :DIM] = rng.normal(0, 0.1, (ROWS, DIM))
    heads, relations, tails, noise = (
        rng.integers(low, high, EXAMPLES).astype(np.int32)
        for low, high in ((100, 500), (0, 100), (500, ROWS), (100, ROWS))
    )
    more = {"method": 2, "l2": 0.0, "eps": 1e-8, "first": 0, "last": EXAMPLES, **RATES}
    found: dict[str, Call] = {}
    for name, relation, metric, loss in (
        ("transe", 1, 1, 1), ("distmult", 2, 0, 0), ("complex", 3, 0, 2), ("rotate", 4, 3, 0),
        ("bpr", 0, 0, 3),
    ):  # fmt: skip
        options = more | {"relation": relation, "metric": metric, "loss": loss, "shared": 16,
                          "negatives": 16, "side": 0, "normalize": False, "margin": 1.0,
                          "temperature": 0.0, "seed": 1}  # fmt: skip
        middle = relations if relation else relations[:0]
        found[f"train_triples_{name}"] = lambda k, middle=middle, options=options: k.train_triples(
            rows, DIM, heads, middle, tails, noise, **options
        )
    ratings = rng.normal(3, 1, EXAMPLES).astype(np.float32)
    found["train_ratings"] = lambda k: k.train_ratings(rows, DIM, heads, tails, ratings, **more)
    one = kernels.padded(ROWS, DIM)
    one[:, :DIM] = rows[:, :DIM]
    for metric in range(4):
        found[f"pair_scores_{metric}"] = lambda k, metric=metric: k.pair_scores(
            one[:64], one, metric=metric, dim=DIM
        )
    return found


def dense(rng: np.random.Generator) -> dict[str, Call]:
    """A CBOW network with a full softmax over 1,000 words."""
    windows = rng.integers(0, ROWS, (64, 5)).astype(np.int32)
    panels = -(-ROWS // kernels.PANEL)
    width, batch = 64, 32
    embedding = rng.normal(0, 0.1, (3, ROWS, width)).astype(np.float32)
    output = rng.normal(0, 0.1, (3, panels, width + 1, kernels.PANEL)).astype(np.float32)
    embedding[1:], output[1:] = 0, 0
    scratch = np.zeros(kernels.cbow_scratch_floats(ROWS, width, 5, batch), np.float32)
    counts = np.zeros(ROWS, np.float32)
    adam = {"steps": 0, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    table = rng.normal(0, 1, (ROWS, width)).astype(np.float32)
    total, weights = np.zeros_like(table), np.ones(ROWS, np.float32)
    return {
        "train_cbow": lambda k: k.train_cbow(
            windows, embedding, counts, output, scratch, batch=batch, **adam
        ),
        "cbow_loss": lambda k: k.cbow_loss(windows, embedding[0], output[0], scratch, batch=batch),
        "add_weighted_rows": lambda k: k.add_weighted_rows(table, weights, total),
    }


def probes(build: kernels.Kernels) -> Probes:
    """What a build does with one row."""
    return Probes(build.capsule)


def stored(rng: np.random.Generator) -> dict[str, Call]:
    """Rows of the store: first values, steps and what travels."""
    keys = rng.integers(0, 1 << 60, ROWS).astype(np.uint64)
    out = np.empty((ROWS, DIM), np.float32)
    found: dict[str, Call] = {
        f"init_rows_{name}": lambda k, kind=kind: k.init_rows(kind, 0.1, 1, keys, out)
        for kind, name in ((1, "uniform"), (2, "normal"))
    }
    hyper = np.array([0.01, 1e-8, 0.9, 0.999, 0.1, 0.1, 1, 0], np.float32)
    wide = 20_000  # a call is a row: so that it is no call's cost
    value = rng.normal(0, 1, wide + 1).astype(np.float32)
    states = {"add": 0, "sgd": 0, "adagrad": wide, "adam": None, "ftrl": 2 * wide,
              "average": wide + 1, "momentum": wide, "rowwise": 1}  # fmt: skip
    for access, (name, state) in enumerate(states.items()):
        if state is None:
            continue  # apply_row prepares 16,384 corrections first; train_cbow has the same step
        row = np.zeros(wide + state, np.float32)
        found[f"apply_{name}"] = lambda k, access=access, row=row, name=name: probes(k).apply_row(
            access, hyper, row, value[: wide + (name == "average")]
        )
    rows = rng.normal(0, 1, (ROWS, DIM)).astype(np.float32)
    owed = np.zeros_like(rows)
    for name, wire in kernels.WIRE_TYPES.items():
        packed = probes(kernels.load("base")).narrow_rows(wire, rows)
        found[f"narrow_{name}"] = lambda k, wire=wire: probes(k).narrow_rows(wire, rows)
        found[f"widen_{name}"] = lambda k, wire=wire, packed=packed: probes(k).widen_rows(
            wire, packed, DIM
        )
        found[f"narrow_owing_{name}"] = lambda k, wire=wire: probes(k).narrow_owing_rows(
            wire, rows, owed
        )
    padded = kernels.padded(ROWS, DIM)
    found["copy_rows"] = lambda k: k.copy_rows(rows, padded)
    return found


def compare(call: Call, builds: list[str], rounds: int) -> dict[str, float]:
    """Median microseconds of processor time of a call, by build."""
    loaded = {build: kernels.load(build) for build in builds}
    spent: dict[str, list[float]] = {build: [] for build in builds}
    calls = 1
    for number in range(rounds + 1):
        for build, kernel in loaded.items():
            call(kernel)
            begun = time.thread_time_ns()
            for _ in range(calls):
                call(kernel)
            spent[build].append((time.thread_time_ns() - begun) / 1000 / calls)
        if number == 0:
            calls = 1 + int(LEAST_US / min(spent["base"]))
            spent = {build: [] for build in builds}
    return {build: statistics.median(found) for build, found in spent.items()}


def codebooks(rng: np.random.Generator) -> dict[str, Call]:
    """Product quantisation in parts of two columns."""
    columns = rng.normal(size=(2, 4096)).astype(np.float32)
    start = np.ascontiguousarray(columns[:, : kernels.CENTROIDS].T)
    rows = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    centroids = rng.normal(size=kernels.CENTROIDS * DIM).astype(np.float32)
    codes = np.empty((ROWS, DIM // 2), np.uint8)
    return {
        "train_codebook": lambda k: k.train_codebook(columns, 4096, start.copy(), 4),
        "encode_rows": lambda k: k.encode_rows(rows, centroids, 2, codes),
    }


def main() -> None:
    """Parse, measure, print a table."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("kernels", nargs="*", help="beginnings of names; all, if there are none")
    p.add_argument("--rounds", type=int, default=31)
    o = p.parse_args()
    builds = kernels.builds_available()[::-1]
    calls: dict[str, Call] = {}
    for group in (words, labels, sparse, embeddings, dense, stored, codebooks):
        calls |= group(np.random.default_rng(1))
    slow = []
    print(f"{'kernel':<32}{'base, us':>10}" + "".join(f"{build:>10}" for build in builds[1:]))
    for name, call in calls.items():
        if o.kernels and not name.startswith(tuple(o.kernels)):
            continue
        spent = compare(call, builds, o.rounds)
        ratios = {build: spent["base"] / spent[build] for build in builds[1:]}
        slow += [f"{name} ({b}: {r:.2f})" for b, r in ratios.items() if r < SLOWER]
        print(f"{name:<32}{spent['base']:>10.0f}" + "".join(f"{r:>10.2f}" for r in ratios.values()))
    print("slower than base:", ", ".join(slow) or "none")


if __name__ == "__main__":
    main()
