"""Generated input for tests: texts with a known structure, planted logistic data."""

import bisect
import itertools
import random
from pathlib import Path

import numpy as np

ANIMALS = ["hound", "kitten", "goat", "zebra", "otter", "ferret", "lynx", "bison", "mole", "crow"]
TOOLS = ["spanner", "drill", "saw", "pliers", "chisel", "anvil", "wrench", "jack", "clamp", "vice"]


def write_topics(path, lines=1500, seed=7):
    """Lines of ten words, all of one topic: neighbours of a word must be of its topic."""
    random = np.random.default_rng(seed)
    with path.open("w") as file:
        for number in range(lines):
            topic = (ANIMALS, TOOLS)[number % 2]
            file.write(" ".join(random.choice(topic, 10)) + "\n")
    return path


def topic_contrast(vectors):
    """Mean cosine of words of the same topic, less the mean cosine of words of two topics.

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


CIRCLE = 300
"""Words of `write_circle` that have neighbours."""


def write_circle(path, lines=6000, seed=7):
    """Lines of twelve words, half of them near a place on a circle of words, half common ones."""
    random = np.random.default_rng(seed)
    circle = np.array([f"w{number}" for number in range(CIRCLE)])
    common = np.array([f"c{number}" for number in range(40)])
    shares = 1 / np.arange(1, len(common) + 1)
    with path.open("w") as file:
        for _ in range(lines):
            place = random.integers(CIRCLE)
            near = circle[(place + np.round(random.normal(0, 5, 12)).astype(int)) % CIRCLE]
            others = random.choice(common, 12, p=shares / shares.sum())
            file.write(" ".join(np.where(random.random(12) < 0.5, near, others)) + "\n")
    return path


def circle_precision(vectors):
    """Share of the ten nearest words of each word that are its five neighbours on either side.

    Parameters
    ----------
    vectors : mapping of str to numpy.ndarray
    """
    rows = np.array([vectors[f"w{number}"] for number in range(CIRCLE)], np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1)[:, :10]
    apart = np.abs(nearest - np.arange(CIRCLE)[:, None])
    return (np.minimum(apart, CIRCLE - apart) <= 5).mean()


def write_planted(path, lines=4000, features=30, seed=5):
    """Writes LIBSVM lines drawn from a logistic model; its weights and its mean log loss."""
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


SUBJECTS = {
    "asyncio": "event loop callback future task coroutine transport protocol await stream",
    "email": "header message address recipient mail attachment charset sender boundary payload",
    "unittest": "test case fixture suite runner failure mock assertion skip discovery",
    "logging": "logger handler level record formatter filter debug warning rotate console",
    "multiprocessing": "process pool queue lock semaphore worker pipe shared fork manager",
    "http": "request response server client cookie status connection method url body",
    "importlib": "module package loader finder spec import path cache resource reload",
}
"""What sentences are about, and the words that tell it."""

COMMON = (
    "the of a to is in and that for it be with as by if not are an this on or from which when"
    " object value string strings returns name type function argument list number default class set"
    " data used call given file called line code first new time bytes error key end index result"
)
SYLLABLES = ("ba", "co", "di", "fu", "ga", "he", "li", "mo", "nu", "pe", "ri", "so", "ta", "ve")


def sentences(count, seed, subjects=tuple(SUBJECTS)):
    """Pairs of a subject and a sentence of 4 to 20 words, the same on each machine and Python.

    Words are as frequent as Zipf has it; one in seven is of the subject, one in twenty of any,
    often with an ending, so that some sentences leave open what they are about.
    """
    draw = random.Random(seed).random  # its numbers are the same in every release

    def one_of(words):
        return words[int(draw() * len(words))]

    rare = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES[:5]]
    common = COMMON.split() + rare
    chances = list(itertools.accumulate(1 / rank for rank in range(1, len(common) + 1)))
    of = {subject: SUBJECTS[subject].split() for subject in subjects}
    for _ in range(count):
        subject = one_of(subjects)
        words = []
        for _ in range(4 + int(17 * draw())):
            kind = draw()
            if kind < 0.2:
                own = one_of(of[subject if kind < 0.15 else one_of(subjects)])
                words.append(own + one_of(("", "", "s", "ed")))
            else:
                words.append(common[bisect.bisect(chances, draw() * chances[-1])])
        yield subject, " ".join(words)


def write_prose(path, bytes_max=1 << 20, *, library=""):
    """As `data.stdlib_prose.write_prose`, whose text changes with each Python: sentences.

    They are about the package of a folder that is named, else about all subjects; the number of
    words.
    """
    subjects = (Path(library).name,) if library else tuple(SUBJECTS)
    lines = [f"{line}\n" for _, line in sentences(1500 if library else 20_000, 1, subjects)]
    ends = list(itertools.accumulate(map(len, lines)))
    del lines[bisect.bisect(ends, bytes_max) :]
    Path(path).write_text("".join(lines))
    return sum(map(str.count, lines, itertools.repeat(" "))) + len(lines)
