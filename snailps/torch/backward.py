"""Actions that run when a backward pass has succeeded; detection of scaled losses.

    this_pass().gathered(prepare)[key] = value
    -> backward succeeds -> prepare({key: value, ...}) -> an action, called once all are prepared

PyTorch's engine owns the callback of a pass, and the callback owns what was gathered, so nothing is
left of a pass that fails.  A pass is identified by the engine's number, not by a thread: devices
have threads of their own, and any of them may run the callback.  A re-entrant checkpoint runs a
backward pass inside another one: `enclosing` gives the outer pass, which ends last.  Must not know
rows or parameters.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from snailps.errors import MisuseError

Action = Callable[[], object]


class BackwardPass:
    """A backward pass that is running, and what it has gathered for its end.

    `scaled`: its loss, or a part of it, was scaled by a `GradScaler`.
    """

    def __init__(self) -> None:
        self.scaled = False
        self._gathered: dict[Callable[[Any], Action], dict[Any, Any]] = {}

    def gathered(self, prepare: Callable[[Any], Action]) -> dict[Any, Any]:
        """Return the mapping that `prepare` is called with when the pass has succeeded."""
        with _lock:
            return self._gathered.setdefault(prepare, {})

    def refuse_scaled(self) -> None:
        """Raise MisuseError if gradients are scaled and would be pushed without being unscaled."""
        if self.scaled:
            raise MisuseError(
                "this loss is scaled by a GradScaler, and its gradients would be pushed so: make "
                "snailps.torch.Optimizer(model) and call scaler.step() with it"
            )

    def end(self) -> None:
        """Prepare everything that was gathered, then act.

        Preparing may refuse the step, so nothing acts before all have agreed.
        """
        for act in [prepare(gathered) for prepare, gathered in self._gathered.items()]:
            act()


_lock = threading.Lock()
_passes: weakref.WeakValueDictionary[int, BackwardPass] = weakref.WeakValueDictionary()


def this_pass() -> BackwardPass:
    """Return the backward pass for which this thread works."""
    number = torch._C._current_graph_task_id()
    with _lock:
        under_way = _passes.get(number)
        if under_way is None:
            under_way = _passes[number] = BackwardPass()
            torch.autograd.Variable._execution_engine.queue_callback(under_way.end)
        return under_way


def enclosing() -> weakref.ref[BackwardPass] | None:
    """Return the backward pass inside which this forward runs; None: it runs outside of one."""
    return None if torch._C._current_graph_task_id() < 0 else weakref.ref(this_pass())


def outermost(around: weakref.ref[BackwardPass] | None) -> BackwardPass:
    """Return the pass that `enclosing` gave to the forward, if it still runs; else `this_pass`."""
    return (around() if around is not None else None) or this_pass()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples and mappings, or the value if it is a tensor."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _mark(gradient: torch.Tensor) -> None:
    this_pass().scaled = True


def _watch(scaler: Any) -> None:
    """Patch a class of scalers so that backward passes of what it scales are marked `scaled`."""
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
