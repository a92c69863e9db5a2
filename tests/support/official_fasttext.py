"""Small models made by the official fastText package, for tests to compare with.

Its training runs in one thread here, but what matters is only that files, vectors and answers
come from it.
"""

import numpy as np
import pytest

SYLLABLES = ["ka", "lo", "mi", "ré", "su", "nö", "ta", "日", "vi", "qu"]


def module():
    """The ``fasttext`` module; the test is skipped where it is not installed."""
    return pytest.importorskip("fasttext", reason="the official fasttext package is not installed")


def write_text(path, words=120, tokens=6000, seed=3):
    """Random text over a small vocabulary with umlauts and ideographs, Zipf-like."""
    random = np.random.default_rng(seed)
    names = sorted({"".join(random.choice(SYLLABLES, random.integers(1, 5))) for _ in range(words)})
    chance = 1.0 / np.arange(2, len(names) + 2)
    drawn = random.choice(names, tokens, p=chance / chance.sum())
    lines = [" ".join(drawn[start : start + 12]) for start in range(0, tokens, 12)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def train(folder, name="official", **settings):
    """Train on generated text and save; (path of the .bin, the package's own model)."""
    text = write_text(folder / f"{name}.txt")
    wanted = {"dim": 16, "epoch": 3, "minCount": 2, "bucket": 500, "thread": 1, "verbose": 0}
    model = module().train_unsupervised(str(text), **{**wanted, **settings})
    path = folder / f"{name}.bin"
    return path, saved(model, path)


def saved(model, path):
    """Save a model and give the one that the file has: one that was trained keeps 115 MB of slots
    for words, and tests keep models as long as they run."""
    model.save_model(str(path))
    return module().load_model(str(path))
