"""Generated input for tests: texts with a known structure, planted logistic data."""

import numpy as np

ANIMALS = ["hound", "kitten", "goat", "zebra", "otter", "ferret", "lynx", "bison", "mole", "crow"]
TOOLS = ["spanner", "drill", "saw", "pliers", "chisel", "anvil", "wrench", "jack", "clamp", "vice"]


def write_topics(path, lines=1500, seed=7):
    """Lines of ten words, each line all of one topic: neighbours must be of the same topic."""
    random = np.random.default_rng(seed)
    with path.open("w") as file:
        for number in range(lines):
            topic = (ANIMALS, TOOLS)[number % 2]
            file.write(" ".join(random.choice(topic, 10)) + "\n")
    return path


def topic_contrast(vectors):
    """Mean cosine of words of one topic less that of words of two topics.

    Parameters
    ----------
    vectors : mapping of str to numpy.ndarray
    """

    def units(words):
        rows = np.array([vectors[word] for word in words], np.float64)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    animals, tools = units(ANIMALS), units(TOOLS)
    n = len(ANIMALS)
    within = [(rows @ rows.T).sum() - n for rows in (animals, tools)]
    return sum(within) / (2 * n * (n - 1)) - (animals @ tools.T).mean()


def write_planted(path, lines=4000, features=30, seed=5):
    """LIBSVM lines drawn from a logistic model; its weights and its own mean log loss."""
    weights = np.random.default_rng(1234).normal(0, 1.5, features)
    random = np.random.default_rng(seed)
    loss = 0.0
    with path.open("w") as file:
        for _ in range(lines):
            used = np.sort(random.choice(features, 6, replace=False))
            values = np.round(random.normal(0, 1, 6), 3)
            margin = float(weights[used] @ values)
            label = 1 if random.random() < 1 / (1 + np.exp(-margin)) else -1
            loss += np.logaddexp(0, -label * margin)
            pairs = " ".join(f"{k + 1}:{v:g}" for k, v in zip(used, values, strict=True))
            file.write(f"{label:+d} {pairs}\n")
    return weights, loss / lines
