"""An optimiser whose steps are pushes: for schedules, clipping and accumulated gradients.

    .backward() -> gradients held -> clip_grad_norm_ -> step() -> pushes, with this step's rate

PyTorch's `lr_scheduler` classes drive its groups.  What a step does to a row is the servers' part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from snailps.errors import MisuseError
from snailps.torch.dense import ATTRIBUTE, Synced
from snailps.torch.embedding import TableModule
from snailps.torch.exchange import Exchange, push_together


class Optimizer(torch.optim.Optimizer):
    """Steps a model's embeddings, and the dense parameters that `sync` keeps, when it is told to.

    Without one, each `backward` pushes at once.  With one, gradients wait for `step`: those of
    several `backward` are summed, as in PyTorch.

    Parameters
    ----------
    model : nn.Module
        With modules of `snailps.torch` in it, or `sync` of it or of parts.  Parameters that neither
        keeps are left to another optimiser.

    Notes
    -----
    A group a module: ``param_groups[i]["lr"]`` is its step size, at first the module's `lr`.  The
    gradients that wait are those of the parameters ``rows``: what PyTorch offers for gradients
    (`torch.nn.utils.clip_grad_norm_`, `torch.amp.GradScaler`, ``model.zero_grad()``) does it for
    these.  Modules of the same tables have one gradient, in the ``rows`` of the first.

    Examples
    --------
    >>> optimizer = snailps.torch.Optimizer(model)  # doctest: +SKIP
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)  # doctest: +SKIP
    """

    steps_rows = True

    def __init__(self, model: nn.Module) -> None:
        self._targets: list[TableModule | Synced] = []
        groups: list[dict[str, Any]] = []
        for module in model.modules():
            if isinstance(module, TableModule) and module.rows is not None:
                self._targets.append(module)
                groups.append({"params": [module.rows], "lr": module.lr})
            synced = module.__dict__.get(ATTRIBUTE)
            if isinstance(synced, Synced):
                self._targets.append(synced)
                groups.append({"params": synced.dense.parameters, "lr": synced.lr})
        if not groups:
            raise MisuseError("the model has no module of snailps.torch, and sync() keeps none")
        super().__init__(groups, {})
        owners: dict[Any, Exchange] = {}
        for target in self._targets:
            if isinstance(target, Synced):
                target.hold(self)
            else:
                exchange = target.exchange
                exchange.hold(self, owners.get(exchange.identity), unscales=True)
                owners.setdefault(exchange.identity, exchange)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Pushes the gradients since the last step.

        Raises
        ------
        MisuseError
            A group's step size has changed, and its optimiser cannot follow (``ftrl``), or modules
            of one table have unequal ones.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for target, group in zip(self._targets, self.param_groups, strict=True):
            target.lr = group["lr"]
        modules = [one.exchange for one in self._targets if not isinstance(one, Synced)]
        for exchange in modules:
            exchange.check_factor(exchange.owner)
        push_together({exchange: exchange.take_held() for exchange in modules})
        for target in self._targets:
            if isinstance(target, Synced):
                target.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients that no `step` has pushed."""
        for group in self.param_groups:
            for one in group["params"]:
                one.grad = None

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scales all gradients so that their norm together is at most `max_norm`; what it was.

        The norm is that of each different row's summed gradient, as PyTorch's is of dense ones.
        """
        arrays: list[Any] = [
            one.grad.detach().numpy()
            for group in self.param_groups
            for one in group["params"]
            if one.grad is not None
        ]
        total = float(np.sqrt(sum(float(np.vdot(one, one)) for one in arrays)))
        if total > max_norm:
            for one in arrays:
                one *= np.float32(max_norm / total)
        return total

    def flush(self) -> None:
        """Waits until what was pushed is acknowledged."""
        for target in self._targets:
            target.flush()
