"""Metadata routing of scikit-learn: which arguments, such as weights, reach an estimator's methods.

    set_fit_request(sample_weight=True) -> kept by name -> get_metadata_routing -> MetadataRequest

Does what `sklearn.base.BaseEstimator` does, without importing it: scikit-learn is optional.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

R = TypeVar("R", bound="Routed")
METHODS = ("fit", "partial_fit", "score")
"""Those that take more than X and y."""
_DATA = ("self", "X", "y")


class Routed:
    """A consumer of metadata such as ``sample_weight``."""

    _requests: Mapping[str, Mapping[str, bool | str | None]] = MappingProxyType({})
    """By method: the request for each argument; scikit-learn refuses one without a request."""

    def set_fit_request(self: R, **requests: bool | str | None) -> R:
        """Whether pipelines and searches of scikit-learn give `fit` an argument, by its name.

        Parameters
        ----------
        **requests
            True: pass it on; False: do not; None: refuse it; a str: pass on the argument of
            that name.

        Raises
        ------
        RuntimeError
            ``sklearn.set_config(enable_metadata_routing=True)`` was not called.
        TypeError
            The method has no such argument.
        """
        return self._asked("fit", requests)

    def set_partial_fit_request(self: R, **requests: bool | str | None) -> R:
        """Same as `set_fit_request`, for `partial_fit`."""
        return self._asked("partial_fit", requests)

    def set_score_request(self: R, **requests: bool | str | None) -> R:
        """Same as `set_fit_request`, for `score`."""
        return self._asked("score", requests)

    def get_metadata_routing(self) -> Any:
        """The `sklearn.utils.metadata_routing.MetadataRequest` of the estimator."""
        from sklearn.utils.metadata_routing import MetadataRequest

        found = MetadataRequest(owner=type(self).__name__)
        for method in METHODS:
            asked = self._requests.get(method, {})
            for name in self._arguments(method):
                getattr(found, method).add_request(param=name, alias=asked.get(name))
        return found

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
