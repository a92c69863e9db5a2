"""Constructors of the estimators, with their parameters.

Written by `python -m snailps.estimators.stub`; a test checks that it is current.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from snailps.estimators import embeddings as _embeddings
from snailps.estimators import fm as _fm
from snailps.estimators import linear as _linear
from snailps.estimators import mlp as _mlp
from snailps.estimators import net as _net
from snailps.estimators import text as _text
from snailps.estimators import words as _words
from snailps.local.session import Cluster

__all__ = [
    "FMClassifier",
    "FMRegressor",
    "FastText",
    "KnowledgeGraph",
    "LinearRegression",
    "LogisticRegression",
    "MLPClassifier",
    "MatrixFactorization",
    "SparseNetClassifier",
    "TextClassifier",
    "Word2Vec",
]

class KnowledgeGraph(_embeddings.KnowledgeGraph):
    dim: int
    negatives: int
    shared: int
    lr: float
    lr_end: float
    l2: float
    eps: float
    scale: float
    model: Literal["transe", "distmult", "complex", "rotate"]
    loss: Literal["logistic", "margin", "softmax"]
    margin: float
    temperature: float
    norm: Literal["l1", "l2"]
    normalize: bool
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        dim: int = 64,
        negatives: int = 64,
        shared: int = 16,
        lr: float = 0.0,
        lr_end: float = 0.0,
        l2: float = 0.0,
        eps: float = 1e-08,
        scale: float = 0.0,
        model: Literal["transe", "distmult", "complex", "rotate"] = "complex",
        loss: Literal["logistic", "margin", "softmax"] = "logistic",
        margin: float = 6.0,
        temperature: float = 1.0,
        norm: Literal["l1", "l2"] = "l1",
        normalize: bool = False,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class MatrixFactorization(_embeddings.MatrixFactorization):
    dim: int
    negatives: int
    shared: int
    lr: float
    lr_end: float
    l2: float
    eps: float
    scale: float
    loss: Literal["squared", "softmax", "pairwise"]
    top: int
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        dim: int = 64,
        negatives: int = 64,
        shared: int = 16,
        lr: float = 0.0,
        lr_end: float = 0.0,
        l2: float = 0.06,
        eps: float = 1e-08,
        scale: float = 0.0,
        loss: Literal["squared", "softmax", "pairwise"] = "squared",
        top: int = 10,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class FMClassifier(_fm.FMClassifier):
    min_count: int
    expected_features: int
    lr: float
    l1: float
    l2: float
    beta: float
    shuffle: bool
    factors: int
    scale: float
    factor_l2: float
    eps: float
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    fields: Sequence[int] | Literal["columns"] | None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        min_count: int = 1,
        expected_features: int = 16777216,
        lr: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
        shuffle: bool = True,
        factors: int = 8,
        scale: float = 0.03,
        factor_l2: float = 0.002,
        eps: float = 0.1,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        fields: Sequence[int] | Literal["columns"] | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class FMRegressor(_fm.FMRegressor):
    min_count: int
    expected_features: int
    lr: float
    l1: float
    l2: float
    beta: float
    shuffle: bool
    factors: int
    scale: float
    factor_l2: float
    eps: float
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    fields: Sequence[int] | Literal["columns"] | None
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        min_count: int = 1,
        expected_features: int = 16777216,
        lr: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
        shuffle: bool = True,
        factors: int = 8,
        scale: float = 0.03,
        factor_l2: float = 0.002,
        eps: float = 0.1,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        fields: Sequence[int] | Literal["columns"] | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class LinearRegression(_linear.LinearRegression):
    min_count: int
    expected_features: int
    lr: float
    l1: float
    l2: float
    beta: float
    shuffle: bool
    bias: bool
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        min_count: int = 1,
        expected_features: int = 16777216,
        lr: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
        shuffle: bool = True,
        bias: bool = True,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class LogisticRegression(_linear.LogisticRegression):
    min_count: int
    expected_features: int
    lr: float
    l1: float
    l2: float
    beta: float
    shuffle: bool
    bias: bool
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    class_weight: Mapping[Any, float] | Literal["balanced"] | None
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        min_count: int = 1,
        expected_features: int = 16777216,
        lr: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
        shuffle: bool = True,
        bias: bool = True,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class MLPClassifier(_mlp.MLPClassifier):
    activation: Literal["relu", "sigmoid"]
    batch_size: int
    lr: float
    momentum: float
    shuffle: bool
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    hidden: int | Sequence[int]
    class_weight: Mapping[Any, float] | Literal["balanced"] | None
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        activation: Literal["relu", "sigmoid"] = "relu",
        batch_size: int = 256,
        lr: float = 0.002,
        momentum: float = 0.9,
        shuffle: bool = True,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        hidden: int | Sequence[int] = (100,),
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class SparseNetClassifier(_net.SparseNetClassifier):
    min_count: int
    expected_features: int
    lr: float
    l1: float
    l2: float
    beta: float
    shuffle: bool
    activation: Literal["relu", "sigmoid"]
    init_scale: float
    batch_size: int
    in_flight: int
    first_layer: Literal["auto", "servers", "worker"]
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    hidden: int | Sequence[int]
    class_weight: Mapping[Any, float] | Literal["balanced"] | None
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        min_count: int = 1,
        expected_features: int = 16777216,
        lr: float = 0.05,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
        shuffle: bool = True,
        activation: Literal["relu", "sigmoid"] = "relu",
        init_scale: float = 0.05,
        batch_size: int = 1024,
        in_flight: int = 2,
        first_layer: Literal["auto", "servers", "worker"] = "auto",
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        hidden: int | Sequence[int] = (50,),
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class TextClassifier(_text.TextClassifier):
    dim: int
    loss: Literal["softmax", "ova", "ns", "hs"]
    lr: float | Literal["auto"]
    word_ngrams: int
    minn: int | Literal["auto"]
    maxn: int | Literal["auto"]
    bucket: int | Literal["auto"]
    negatives: int
    min_count: int
    min_count_label: int
    shuffle: bool
    epochs: int | Literal["auto"]
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    column: str
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        dim: int = 100,
        loss: Literal["softmax", "ova", "ns", "hs"] = "softmax",
        lr: float | Literal["auto"] = "auto",
        word_ngrams: int = 1,
        minn: int | Literal["auto"] = "auto",
        maxn: int | Literal["auto"] = "auto",
        bucket: int | Literal["auto"] = "auto",
        negatives: int = 5,
        min_count: int = 1,
        min_count_label: int = 0,
        shuffle: bool = True,
        epochs: int | Literal["auto"] = "auto",
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        column: str = "",
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class FastText(_words.FastText):
    dim: int
    model: Literal["skipgram", "cbow"]
    loss: Literal["ns", "nce"]
    window: int
    negatives: int
    lr: float
    sample: float
    min_count: int
    max_vocab: int
    minn: int
    maxn: int
    bucket: int | Literal["auto"]
    worker_memory: int | str
    epochs: int
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    column: str
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        dim: int = 100,
        model: Literal["skipgram", "cbow"] = "skipgram",
        loss: Literal["ns", "nce"] = "ns",
        window: int = 5,
        negatives: int = 5,
        lr: float = 0.05,
        sample: float = 0.0001,
        min_count: int = 5,
        max_vocab: int = 0,
        minn: int = 3,
        maxn: int = 6,
        bucket: int | Literal["auto"] = "auto",
        worker_memory: int | str = 2147483648,
        epochs: int = 5,
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        column: str = "",
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...

class Word2Vec(_words.Word2Vec):
    dim: int
    model: Literal["skipgram", "cbow"]
    loss: Literal["ns", "nce"]
    window: int
    negatives: int
    lr: float
    sample: float
    min_count: int
    max_vocab: int
    worker_memory: int | str
    epochs: int
    max_steps: int
    max_seconds: float
    target_loss: float
    consistency: Literal["async", "ssp", "bsp"]
    staleness: int
    micro_batches: int
    seed: int
    block_bytes: int | str
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"]
    wire: Literal["auto", "float32", "float16", "int8"]
    column: str
    cluster: Cluster | None
    workers: int | None
    callbacks: Sequence[Callable[[dict[str, Any]], object]]
    verbose: bool | int | Literal["auto"]
    def __init__(
        self,
        *,
        dim: int = 100,
        model: Literal["skipgram", "cbow"] = "skipgram",
        loss: Literal["ns", "nce"] = "ns",
        window: int = 5,
        negatives: int = 5,
        lr: float = 0.05,
        sample: float = 0.0001,
        min_count: int = 5,
        max_vocab: int = 0,
        worker_memory: int | str = 2147483648,
        epochs: int = 5,
        max_steps: int = 0,
        max_seconds: float = 0.0,
        target_loss: float = 0.0,
        consistency: Literal["async", "ssp", "bsp"] = "async",
        staleness: int = 2,
        micro_batches: int = 4,
        seed: int = 1,
        block_bytes: int | str = 0,
        optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = "auto",
        wire: Literal["auto", "float32", "float16", "int8"] = "auto",
        column: str = "",
        cluster: Cluster | None = None,
        workers: int | None = None,
        callbacks: Sequence[Callable[[dict[str, Any]], object]] = (),
        verbose: bool | int | Literal["auto"] = "auto",
    ) -> None: ...
