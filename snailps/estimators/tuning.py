"""Base of classifiers of text, whose settings can be chosen by trials.

    data, held-out data -> Tunable -> settings of a job -> `models.classifier.tuning` -> Tuning

Owns how both texts become files that trials read.  The caller trains the final model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from snailps.config import RawConfig
from snailps.data.elements import a_kind
from snailps.data.spool import Spooled
from snailps.errors import DataError
from snailps.estimators.base import Data
from snailps.estimators.text_base import TextEstimator
from snailps.models.classifier.settings import ClassifierSettings

if TYPE_CHECKING:
    from snailps.models.classifier.tuning import Tuner, Tuning


class Tunable(TextEstimator):
    """A classifier of text."""

    @contextlib.contextmanager
    def _settings_of(self, data: Data, held_out: Data | None) -> Iterator[ClassifierSettings]:
        """Yield the settings of a job on `data`, whose files last as long as the context.

        `held_out` None: the parameter `held_out` says which share of the data judges trials.
        """
        for name, given in (("X", data.X), ("y", data.y)):
            if isinstance(given, Iterator):
                raise DataError(f"{name}: {a_kind(given)} can be read only once: give a list")
        with contextlib.ExitStack() as stack:
            settings: dict[str, Any] = {}
            for name, texts in (("input", data), ("validation", held_out)):
                if texts is None:
                    continue
                source = stack.enter_context(self._input_of(texts))
                settings |= source.settings
                paths = source.input
                settings[name] = (paths.path,) if isinstance(paths, Spooled) else tuple(paths)
            raw = RawConfig.from_mapping(self._checked(settings), type(self).__name__)
            yield raw.build(ClassifierSettings)

    def _tuned(
        self, data: Data, held_out: Data | None, tuner_of: Callable[[ClassifierSettings], Tuner]
    ) -> Tuning:
        """Run the search that `tuner_of` makes of the settings of a job on `data`."""
        with self._settings_of(data, held_out) as settings:
            return tuner_of(settings).run()
