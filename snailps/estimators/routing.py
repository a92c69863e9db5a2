"""Metadata routing of scikit-learn: which arguments, such as weights, reach an estimator's methods.

    set_fit_request(sample_weight=True) -> stored by name -> get_metadata_routing -> MetadataRequest

Implements the part of `sklearn.base.BaseEstimator` that routes, because scikit-learn is optional
here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

R = TypeVar("R", bound="Routed")
METHODS = ("fit", "partial_fit", "score")
"""Methods that take arguments besides X and y."""
_DATA = ("self", "X", "y")


class Routed:
    """A consumer of metadata such as ``sample_weight``."""

    _requests: Mapping[str, Mapping[str, bool | str | None]] = MappingProxyType({})
    """Requests by method and argument; scikit-learn refuses an argument without a request."""

    def set_fit_request(self: R, **requests: bool | str | None) -> R:
        """Choose whether pipelines and searches of scikit-learn pass an argument to `fit`.

        Parameters
        ----------
        **requests
            By name of the argument.  True passes it, False does not, None raises if it is given,
            a str passes the argument of that name instead.

        Returns
        -------
        self

        Raises
        ------
        RuntimeError
            ``sklearn.set_config(enable_metadata_routing=True)`` was not called.
        TypeError
            `fit` has no such argument.
        """
        return self._asked("fit", requests)

    def set_partial_fit_request(self: R, **requests: bool | str | None) -> R:
        """Choose which arguments reach `partial_fit`; see `set_fit_request`."""
        return self._asked("partial_fit", requests)

    def set_score_request(self: R, **requests: bool | str | None) -> R:
        """Choose which arguments reach `score`; see `set_fit_request`."""
        return self._asked("score", requests)

    def get_metadata_routing(self) -> Any:
        """Return the `sklearn.utils.metadata_routing.MetadataRequest` of the estimator."""
        from sklearn.utils.metadata_routing import MetadataRequest

        routing = MetadataRequest(owner=type(self).__name__)
        for method in METHODS:
            aliases = self._requests.get(method, {})
            for name in self._arguments(method):
                getattr(routing, method).add_request(param=name, alias=aliases.get(name))
        return routing

    def _asked(self: R, method: str, requests: Mapping[str, bool | str | None]) -> R:
        loaded = sys.modules.get("sklearn")
        if loaded is None or not loaded.get_config().get("enable_metadata_routing"):
            raise RuntimeError(
                f"set_{method}_request: metadata routing is off: call "
                "sklearn.set_config(enable_metadata_routing=True) first"
            )
        known = self._arguments(method)
        if unknown := [name for name in requests if name not in known]:
            takes = ", ".join(known) or "none besides X and y"
            raise TypeError(f"set_{method}_request: no argument {unknown[0]!r}; it takes {takes}")
        self._requests = {**self._requests, method: {**self._requests.get(method, {}), **requests}}
        return self

    @classmethod
    def _arguments(cls, method: str) -> list[str]:
        call = getattr(cls, method, None)
        parameters = inspect.signature(call).parameters if call else ()
        return [name for name in parameters if name not in _DATA]
