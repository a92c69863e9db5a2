"""examples/node2vec.py: walks keep to the edges, p and q weigh them, communities are recovered."""

import importlib.util
import itertools
from collections import Counter

import numpy as np
import pytest
from processes import PACKAGE


@pytest.fixture(scope="module")
def node2vec():
    spec = importlib.util.spec_from_file_location("node2vec", PACKAGE / "examples" / "node2vec.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def communities(nodes=90, seed=2):
    """Edges with probability .3 in each of three communities, .03 between them."""
    random = np.random.default_rng(seed)
    return [
        (f"n{a}", f"n{b}")
        for a in range(nodes)
        for b in range(a)
        if random.random() < (0.3 if a % 3 == b % 3 else 0.03)
    ]


def test_walks_keep_to_the_edges_and_start_everywhere(node2vec):
    edges = communities()
    walks = list(node2vec.Graph(edges).walks(2, 12, p=0.5, q=2, seed=1))
    known = {frozenset(edge) for edge in edges}
    assert all(frozenset(pair) in known for walk in walks for pair in itertools.pairwise(walk))
    assert Counter(walk[0] for walk in walks) == {name: 2 for edge in edges for name in edge}
    assert {len(walk) for walk in walks} == {12}


@pytest.mark.long(but=["2.0-0.5"])
@pytest.mark.parametrize(("p", "q"), [(0.25, 1.0), (1.0, 4.0), (2.0, 0.5)])
def test_walks_take_second_steps_by_their_weights(node2vec, p, q):
    """A triangle a, b, c with a tail d at b: of a, b back is 1/p, c is 1, d is 1/q."""
    graph = node2vec.Graph([("a", "b"), ("b", "c"), ("a", "c"), ("b", "d")])
    walks = graph.walks(20_000, 3, p, q, seed=3)
    found = Counter(walk[2] for walk in walks if walk[:2] == ["a", "b"])
    weights = {"a": 1 / p, "c": 1.0, "d": 1 / q}
    total = sum(found.values())
    for name, weight in weights.items():
        assert found[name] / total == pytest.approx(weight / sum(weights.values()), abs=0.02)


def test_read_edges_ignores_comments_and_weights(node2vec, tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# a comment\na b 0.5\n\nb c\n")
    assert node2vec.read_edges(path) == [("a", "b"), ("b", "c")]


def test_vectors_recover_planted_communities(node2vec):
    edges = communities()
    vectors = node2vec.fit(edges, dim=16, q=0.5)
    names = [f"n{a}" for a in range(90)]
    community = {name: int(name[1:]) % 3 for name in names} | {"</s>": -1}
    right = [
        community[near.word] == community[name]
        for name in names
        for near in vectors.most_similar(name, topn=3)
    ]
    assert np.mean(right) > 0.7  # as a rule .98, by chance .33: its threads are as many as cores
