"""The examples with PyTorch learn what they plant: by one process, the same in each run."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import snailps
from examples import torch_dlrm as dlrm
from examples import torch_two_tower as two_tower


def test_two_towers_find_planted_tastes_and_their_index_finds_the_nearest(tmp_path, monkeypatch):
    monkeypatch.setattr(two_tower, "USERS", 200)
    monkeypatch.setattr(two_tower, "ITEMS", 150)
    pairs, planted = two_tower.clicks(12_000)
    with snailps.local_cluster(servers=2, workers=0):
        towers = two_tower.train(pairs, epochs=3)
        users, items = two_tower.vectors_of(towers)
    found = two_tower.recall(users @ items.T, planted)
    popular = np.bincount(pairs[:, 1], minlength=150)[None, :].repeat(200, axis=0)
    assert found > 0.4 > 2 * two_tower.recall(popular, planted)
    pytest.importorskip("usearch", reason="usearch is not installed")
    index = two_tower.index_of(items, tmp_path / "index")
    assert (tmp_path / "index").stat().st_size > items.nbytes
    nearest = index.search(items, 1).keys.ravel().astype(np.int64) - two_tower.ITEM_ID_0
    exact = np.argmax(items @ items.T, axis=1)
    assert np.mean(nearest == exact) > 0.95  # the index is approximate


def test_clicks_follow_the_planted_odds():
    pairs, planted = two_tower.clicks(60_000)
    assert (np.bincount(pairs[:, 0]) == 20).all()
    of_clicks = planted[pairs[:, 0], pairs[:, 1]].mean()
    assert of_clicks > planted.mean() + planted.std()


def test_dlrm_learns_planted_clicks_as_with_tables_of_pytorch(monkeypatch):
    monkeypatch.setattr(dlrm, "IDS", 100)
    *data, _ = dlrm.clicks(30_000)
    ids, numbers, labels, planted = dlrm.clicks(10_000, seed=2)
    with torch.sparse.check_sparse_tensor_invariants():
        plain = dlrm.auc(labels, dlrm.logits_of(dlrm.train(data, plain=True), ids, numbers))
    with snailps.local_cluster(servers=2, workers=0):
        ours = dlrm.auc(labels, dlrm.logits_of(dlrm.train(data), ids, numbers))
    assert 0.75 < ours < dlrm.auc(labels, planted)
    assert abs(ours - plain) < 0.02


def test_auc_is_the_share_of_pairs_in_order():
    labels = np.array([0, 1, 0, 1, 1])
    scores = np.array([0.1, 0.4, 0.5, 0.8, 0.3])
    pairs = [a > b for a in scores[labels == 1] for b in scores[labels == 0]]
    assert dlrm.auc(labels, scores) == pytest.approx(np.mean(pairs))
