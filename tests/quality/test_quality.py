"""What several workers learn that do not wait for each other: of each model, and under kills.

Judged by figures that differ in each run: of shares that are the same in nearly all, such as an
accuracy of 1, the deviation says nothing.
"""

import pytest
import test_classifier_cluster
import test_embeddings_cluster
import test_embeddings_killed
import test_example_cluster
import test_failover_models
import test_fm_cluster
import test_joining
import test_linear_cluster
import test_matrix_files_cluster
import test_mlp_cluster
import test_models
import test_sparse_net_cluster
from test_fm_cluster import planted_data  # noqa: F401

pytestmark = pytest.mark.limit(1200)

CONTRACTS = [
    (test_models.TestFastText, 2),
    (test_models.TestFastTextCbow, 2),
    (test_models.TestWord2vecSkipgram, 2),
    (test_models.TestWord2vecCbow, 2),
    (test_models.TestNce, 2),
    (test_models.TestLogistic, 3),
    (test_models.TestClassifier, 2),
    (test_models.TestClassifierOneVersusRest, 2),
    (test_models.TestClassifierSampling, 2),
    (test_linear_cluster.TestLogisticModel, 2),
    (test_fm_cluster.TestFactorizationMachine, 2),
    (test_fm_cluster.TestFieldAware, 2),
    (test_sparse_net_cluster.TestSparseNet, 2),
    (test_sparse_net_cluster.TestSparseNetAtTheWorker, 2),
    (test_mlp_cluster.TestMlp, 2),
    (test_mlp_cluster.TestMlpOfTwoLayers, 2),
    (test_mlp_cluster.TestMlpNotFarAhead, 2),
    (test_embeddings_cluster.TestKnowledgeGraph, 2),
    (test_embeddings_cluster.TestMatrixFactorization, 2),
]


@pytest.mark.parametrize(
    ("contract", "nodes"), CONTRACTS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_model_of_as_many_servers_as_workers(tmp_path, judge, contract, nodes):
    figures = contract().run(tmp_path, nodes, nodes)
    found = contract().check_learnt(tmp_path, figures)
    judge(contract.__name__, {**found, "train_loss": figures["train_loss"]})


@pytest.mark.parametrize("way", ["joined", "killed"])
@pytest.mark.parametrize(("write", "badness", "untrained"), test_joining.CASES)
def test_model_whose_workers_keep_rows(tmp_path, judge, request, way, write, badness, untrained):
    if way == "joined":
        figures, _, _ = test_joining.run_joined(tmp_path / way, write)
    else:
        figures = test_joining.run_killed(tmp_path / way, write)
    model = request.node.callspec.id.split("-")[1]
    if model == "classifier":
        judge(f"{way}-{model}", {"train_loss": figures["train_loss"]})
    else:
        judge(f"{way}-{model}", {"badness": badness(tmp_path / way, figures)})


@pytest.mark.parametrize("model", test_embeddings_killed.MODELS)
def test_names_while_worker_server_and_master_are_killed(tmp_path, judge, model):
    _, figures = test_embeddings_killed.killed(tmp_path, model, "async")
    judge(f"killed-{model}", {"train_loss": figures["train_loss"]})


@pytest.mark.parametrize("model", ["logistic", "words", "classifier"])
def test_model_while_a_server_is_killed(tmp_path, judge, model):
    figures = test_failover_models.train_async_and_kill(tmp_path, model)
    judge(f"failover-{model}", {"loss": figures["loss_by_epoch"][-1]})


def test_features_of_matrices_and_text(tmp_path, judge):
    figures, _ = test_matrix_files_cluster.run_mixed(tmp_path)
    judge("matrix", {name: figures["test"][name] for name in ("auc", "log_loss")})


def test_classifier_of_prose(tmp_path, judge):
    test_classifier_cluster.write_sentences(tmp_path)
    figures = test_classifier_cluster.run_sentences(tmp_path, 2, 2)
    accuracy = test_classifier_cluster.accuracy(tmp_path / "ours.bin", tmp_path)
    judge("prose", {"accuracy": accuracy, "train_loss": figures["train_loss"]})


def test_pairs_ranked(tmp_path, judge):
    test_embeddings_cluster.write_choices(tmp_path)
    judge("choices", {"recall": test_embeddings_cluster.recall_of_choices(tmp_path, 4)})


# --- real data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4])
def test_logistic_on_a9a(tmp_path, data_dir, judge, workers):
    figures = test_linear_cluster.run_a9a(tmp_path, data_dir, workers)
    judge(f"a9a-{workers}", {name: figures[name] for name in ("log_loss", "auc", "calibration")})


def test_fm_on_a9a(tmp_path, data_dir, judge):
    figures = test_fm_cluster.run_a9a(tmp_path, data_dir, workers=2)["test"]
    judge("a9a-fm", {name: figures[name] for name in ("log_loss", "auc", "calibration")})


def test_fm_on_planted_interactions(tmp_path, judge, planted_data):  # noqa: F811
    figures, correlation = test_fm_cluster.run_planted(tmp_path, planted_data, workers=2)
    judge("planted-fm", {"log_loss": figures["test"]["log_loss"], "correlation": correlation})


def test_example_on_a9a(tmp_path, data_dir, judge):
    figures = test_example_cluster.run_a9a(tmp_path, data_dir)
    names = ("test_accuracy", "test_log_loss", "test_auc", "train_loss")
    judge("a9a-example", {name: figures[name] for name in names})


def test_mlp_on_mnist(tmp_path, data_dir, judge):
    figures = test_mlp_cluster.run_mnist(tmp_path, data_dir)
    judge("mnist", {name: figures["test"][name] for name in ("accuracy", "log_loss")})


# --- PyTorch ------------------------------------------------------------------------------------


def test_dlrm_while_server_worker_and_master_are_killed(tmp_path, judge):
    pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
    import test_torch_kills

    test_torch_kills.run_killed(tmp_path / "killed", "async")
    judge("torch-killed", {"auc": test_torch_kills.auc_of(tmp_path / "killed")})
