"""Rows of servers in the state dict of a model, where they are asked for."""

import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import snailps
import snailps.torch as st
from snailps.errors import MisuseError

IDS = torch.tensor([3, -1, 1 << 40, 3])


class Model(torch.nn.Module):
    def __init__(self, optimizer="adam"):
        super().__init__()
        self.users = st.Embedding(4, optimizer=optimizer, lr=0.1)
        self.words = st.EmbeddingBagCollection(4, 2, optimizer=optimizer, lr=0.1)
        self.top = torch.nn.Linear(4, 1)

    def forward(self, ids):
        bags = self.words([ids.view(2, 2), ids.view(2, 2)])
        return self.top(self.users(ids)).sum() + sum(bag.sum() for bag in bags)


def step(model):
    model(IDS).backward()
    for part in (model.users, model.words):
        part.flush()
    return model.eval()(IDS).item(), model.train()


@pytest.fixture
def saved():
    """A model's state with its rows, as a file has it, and what it gives after another step."""
    with snailps.local_cluster(servers=1, workers=0):
        torch.manual_seed(1)
        model = Model()
        step(model)
        without = model.state_dict()
        assert sorted(without) == ["top.bias", "top.weight"]
        file = io.BytesIO()
        torch.save(st.state_dict(model, rows=True), file)
        after = step(model)[0]
        assert "users.rows.0.keys" not in model.state_dict()  # of that call alone
        assert "rows.0.keys" in model.users.state_dict(rows=True)
    file.seek(0)
    return torch.load(file), after


def test_rows_and_moments_of_a_state_dict_train_on_in_another_cluster(saved):
    state, after = saved
    assert state["words.rows.1.values"].shape == (3, 4 + 9)
    with snailps.local_cluster(servers=2, workers=0):
        model = Model()
        assert not any(model.load_state_dict(state))
        assert step(model)[0] == after
        model.users.prefetch(IDS)
        model.load_state_dict({name: part.bfloat16() if part.is_floating_point() else part
                               for name, part in state.items()})  # fmt: skip
        read = model.users(IDS[:1])[0]
        key = state["users.rows.0.keys"].tolist().index(3)
        assert torch.equal(read, state["users.rows.0.values"][key, :4].bfloat16().float())
        assert torch.equal(model.users(IDS)[0], read)  # not what was pulled ahead
        fresh = st.state_dict(Model("sgd"), rows=True)
        assert fresh["users.rows.0.values"].shape == (0, 4)
        other = Model("sgd")
        with pytest.warns(UserWarning, match="state of another optimizer than 'sgd'"):
            other.load_state_dict(state)
        wanted = state["users.rows.0.values"][:, :4]
        found = other.users.eval()(state["users.rows.0.keys"])
        assert torch.equal(found, wanted)
        with pytest.raises(MisuseError, match=r"expected a row of 4 values or more.*got shape"):
            other.users.load_state_dict(
                {"rows.0.keys": torch.tensor([1]), "rows.0.values": torch.ones(1, 3)}
            )
        with pytest.raises(RuntimeError, match="Unexpected key"):
            other.users.load_state_dict({"rows.7.keys": torch.tensor([1])})


def test_default_name_that_another_process_has_gets_a_word(monkeypatch):
    with snailps.local_cluster(workers=0) as cluster, snailps.connect(cluster.address) as other:
        with pytest.warns(
            UserWarning, match="has a table 'embedding0' already, of another process"
        ):
            st.Embedding(4, cluster=cluster), st.Embedding(4, cluster=other)
        monkeypatch.setenv("WORLD_SIZE", "2")  # ranks of torchrun mean it
        with snailps.connect(cluster.address) as third:
            st.Embedding(4, cluster=third)
        st.Embedding(4, "mine", cluster=cluster), st.Embedding(4, "mine", cluster=other)
