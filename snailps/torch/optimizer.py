"""An optimizer whose steps are pushes: for schedules, clipping and accumulated gradients.

    .backward() -> gradients held -> clip_grad_norm_ -> step() -> pushes, with this step's rate

PyTorch's `lr_scheduler` classes drive its groups.  The servers decide what a step does to a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from snailps.errors import ConfigError, MisuseError
from snailps.torch.dense import ATTRIBUTE, Synced
from snailps.torch.embedding import TableModule
from snailps.torch.exchange import Exchange, ready_to_push


class Optimizer(torch.optim.Optimizer):
    """Steps a model's embeddings, and dense parameters kept by `sync`, when `step` is called.

    Without an optimizer each `backward` pushes its gradients at once.  With one, gradients wait for
    `step`, and the gradients of several `backward` calls are summed, as in PyTorch.

    Parameters
    ----------
    model : nn.Module
        Has modules of `snailps.torch`, or `sync` keeps it or parts of it.  Other parameters need
        an optimizer of PyTorch.

    Raises
    ------
    MisuseError
        The model has neither.

    Notes
    -----
    There is one group per module; ``param_groups[i]["lr"]`` is its step size, initially the
    module's `lr`.  Waiting gradients are ``rows.grad`` of the modules, so PyTorch's functions for
    gradients work: `torch.nn.utils.clip_grad_norm_`, `torch.amp.GradScaler`,
    ``model.zero_grad()``.  Modules of the same tables have one gradient, in ``rows`` of the first.

    Examples
    --------
    >>> optimizer = snailps.torch.Optimizer(model)  # doctest: +SKIP
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)  # doctest: +SKIP
    """

    steps_rows = True

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise MisuseError(
                f"model: expected a module of PyTorch, got {type(model).__name__}: its modules, "
                "not their parameters, have the rows"
            )
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
        """Push the gradients since the last step.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss again and calls `backward`, as in PyTorch; its result is returned.

        Raises
        ------
        MisuseError
            The step size of an ``ftrl`` table has changed, which it cannot follow; or modules of
            one table have different step sizes.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for target, group in zip(self._targets, self.param_groups, strict=True):
            target.lr = group["lr"]
        modules = [target.exchange for target in self._targets if not isinstance(target, Synced)]
        for exchange in modules:
            exchange.check_factor(exchange.owner)
        held = {exchange: exchange.take_held() for exchange in modules}
        # The dense part first: with `bsp` a process that refused its rows before it took part in
        # the sum would leave the others waiting.
        ready = [target.ready_to_step() for target in self._targets if isinstance(target, Synced)]
        for act in (ready_to_push(held), *ready):
            act()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise MisuseError: the groups are the model's modules."""
        if len(self.param_groups) == len(self._targets):
            raise MisuseError(
                "snailps.torch.Optimizer has a group for each module of its model: make another "
                "one of the whole model, and an optimizer of PyTorch for other parameters"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> Any:
        raise MisuseError(
            "snailps.torch.Optimizer is not copied or pickled: keep its state_dict(), and make "
            "another one of the model"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients that no `step` has pushed; `set_to_none` has no effect."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all waiting gradients to a common norm of at most `max_norm`.

        Returns
        -------
        float
            The norm before scaling.  The gradients of a row are summed first, so it equals the norm
            of dense gradients in PyTorch.
        """
        if not max_norm >= 0:  # nor NaN, by which nothing would be clipped
            raise ConfigError(f"max_norm: expected a number, 0 or more, got {max_norm!r:.80}")
        arrays: list[Any] = [
            parameter.grad.detach().numpy()
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        total = float(np.sqrt(sum(float(np.vdot(array, array)) for array in arrays)))
        if total > max_norm:
            for array in arrays:
                array *= np.float32(max_norm / total)
        return total

    def flush(self) -> None:
        """Wait until all pushes are acknowledged."""
        for target in self._targets:
            target.flush()
