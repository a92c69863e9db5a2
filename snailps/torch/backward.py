"""Actions at the end of a backward pass that succeeds; passes whose loss was scaled.

    this_pass().gathered(action)[key] = value -> backward ends well -> action({key: value, ...})

PyTorch's engine owns the callback of a pass, the callback what was gathered: of a pass that fails
nothing is left.  A pass is known by the engine's number of it, not by a thread: devices have
threads of their own, and any of them may run the callback.  What a pass computes again, as a
re-entrant checkpoint does, is differentiated in a pass of its own within it: `enclosing` gives the
outer one, which ends last.  Must not know rows nor parameters.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from snailps.errors import MisuseError


class BackwardPass:
    """A backward pass that is under way, and what it has gathered.

    `scaled`: its loss, or a part of that, comes from a `GradScaler`.
    """

    def __init__(self) -> None:
        self.scaled = False
        self._gathered: dict[Callable[[Any], object], dict[Any, Any]] = {}

    def gathered(self, action: Callable[[Any], object]) -> dict[Any, Any]:
        """Return the mapping that `action` is called with when the pass has succeeded."""
        with _lock:
            return self._gathered.setdefault(action, {})

    def refuse_scaled(self) -> None:
        """Refuses gradients that would be pushed as a scaler has scaled them."""
        if self.scaled:
            raise MisuseError(
                "this loss is scaled by a GradScaler, and its gradients would be pushed so: make "
                "snailps.torch.Optimizer(model) and call scaler.step() with it"
            )

    def end(self) -> None:
        """Call each action with what was gathered for it."""
        for action, gathered in self._gathered.items():
            action(gathered)


_lock = threading.Lock()
_passes: weakref.WeakValueDictionary[int, BackwardPass] = weakref.WeakValueDictionary()


def this_pass() -> BackwardPass:
    """The backward pass that this thread works for."""
    number = torch._C._current_graph_task_id()
    with _lock:
        under_way = _passes.get(number)
        if under_way is None:
            under_way = _passes[number] = BackwardPass()
            torch.autograd.Variable._execution_engine.queue_callback(under_way.end)
        return under_way


def enclosing() -> weakref.ref[BackwardPass] | None:
    """The backward pass in which a forward is computed, if it is computed in one."""
    return None if torch._C._current_graph_task_id() < 0 else weakref.ref(this_pass())


def outermost(around: weakref.ref[BackwardPass] | None) -> BackwardPass:
    """The pass that `enclosing` gave to the forward, unless it is over; else `this_pass`."""
    return (around() if around is not None else None) or this_pass()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a nested list, tuple or mapping, or the tensor that it is."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def _mark(gradient: torch.Tensor) -> None:
    this_pass().scaled = True


def _watch(scaler: Any) -> None:
    """Makes what a class of scalers scales known to the backward passes that begin there."""
    scale = scaler.scale

    @functools.wraps(scale)
    def watched(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if self.is_enabled():
            if not isinstance(scaled, torch.Tensor | list | tuple):
                scaled = list(scaled)  # it is read here
            for one in tensors_in(scaled):
                if one.requires_grad:
                    one.register_hook(_mark)
        return scaled

    scaler.scale = watched


# Nothing else in a backward pass shows that its gradients are scaled.
_watch(getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler)
