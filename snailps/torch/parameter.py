"""A parameter without values, through which PyTorch reaches the gradients of rows on the servers.

    clip_grad_norm_(model.parameters()), GradScaler, zero_grad() -> RowsParameter.grad -> Exchange

Gradients that wait for `Optimizer.step` can be read, changed in place, and dropped by setting them
to None, as for any parameter.  Must not know modules.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_pre_hook

from snailps.errors import MisuseError
from snailps.torch.exchange import Exchange


class RowsParameter(nn.Parameter):
    """Has no values; `requires_grad`: whether the rows train; `grad`: what waits for a step."""

    _shown: weakref.ref[Exchange] | None = None

    def __new__(cls, requires_grad: bool = True) -> RowsParameter:
        return super().__new__(cls, torch.empty(0), requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> RowsParameter:
        return memo.setdefault(id(self), RowsParameter(self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return RowsParameter, (self.requires_grad,)

    def show(self, exchange: Exchange) -> None:
        """Show the gradients that wait in an exchange as `grad` of this parameter."""
        self._shown = weakref.ref(exchange)

    @property
    def exchange(self) -> Exchange | None:
        """The exchange of the parameter's module; None: the module is gone."""
        return None if self._shown is None else self._shown()

    @property
    def grad(self) -> Tensor | None:
        """Summed gradient of each distinct row, float32 (rows, dim); None: nothing waits."""
        exchange = self.exchange
        if exchange is None:
            return None
        if exchange.held is None:
            if exchange.pushed and self.requires_grad and _is_clipping():
                warnings.warn(
                    f"gradients are clipped, and those of the rows of {exchange.names} are not "
                    "among them: backward has pushed them. Make snailps.torch.Optimizer(model), "
                    "for whose step() they wait",
                    stacklevel=3,
                )
            return None
        held = exchange.held_gradient()
        return None if held is None else torch.from_numpy(held)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if value is None or not value.numel():
            # An empty gradient (`zeros_like` of this parameter) must not drop what others hold.
            if value is None or exchange.owner is exchange:
                exchange.drop_held()
            return
        held = exchange.held_gradient()
        if held is None or held.shape != value.shape:
            raise MisuseError(
                f"the gradient of the rows of {exchange.names}: expected the shape of the one that "
                f"waits, {None if held is None else held.shape}, got {tuple(value.shape)}"
            )
        torch.from_numpy(held).copy_(value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None


def _is_clipping() -> bool:
    """Whether one of PyTorch's clipping functions is the caller, under whatever name."""
    frame: Any = sys._getframe(2)
    for _ in range(2):  # a comprehension has a frame of its own before Python 3.12
        if frame is not None and frame.f_code.co_filename == clip_grad.__file__:
            return True
        frame = frame and frame.f_back
    return False


def _refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raise MisuseError if an optimizer of PyTorch is to step rows that wait for `Optimizer`.

    Frozen rows without a gradient are ignored, like any frozen parameter.
    """
    for group in optimizer.param_groups if not hasattr(optimizer, "steps_rows") else ():
        for one in group["params"]:
            if type(one) is not RowsParameter or one.exchange is None or one.exchange.held is None:
                continue
            if one.requires_grad or one.grad is not None:
                raise MisuseError(
                    f"torch's {type(optimizer).__name__} cannot step the rows of "
                    f"{one.exchange.names}, which are at the servers and wait for "
                    "snailps.torch.Optimizer: give it the other parameters, "
                    "[p for p in model.parameters() if p.numel()]"
                )


register_optimizer_step_pre_hook(_refuse)
