"""PyTorch modules whose rows are on the servers: embeddings, dense parameters, elastic training.

    ids -> Embedding, EmbeddingBag, EmbeddingBagCollection -> tensors; .backward() -> pushes

The extra ``snailps[torch]`` installs PyTorch, which no other part of the package imports.
docs/pytorch.md shows how to move a model of plain PyTorch here.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "snailps.torch needs PyTorch, which is not installed: pip install 'snailps[torch]'"
    ) from error

from snailps.torch.dense import Synced, sync
from snailps.torch.embedding import Embedding, EmbeddingBag, EmbeddingBagCollection, prefetch
from snailps.torch.optimizer import Optimizer
from snailps.torch.row_state import state_dict
from snailps.torch.training import TorchSettings, Worker

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "Optimizer",
    "Synced",
    "TorchSettings",
    "Worker",
    "prefetch",
    "state_dict",
    "sync",
]
