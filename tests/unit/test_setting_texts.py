"""Python values as settings: what parses back to the same, what is refused."""

from pathlib import Path

import numpy as np
import pytest

from snailps.config import JobSettings, RawConfig
from snailps.errors import ConfigError
from snailps.local.history import History
from snailps.local.setting_texts import setting_texts


def test_values_come_back_as_they_were():
    given = {"input": [Path("a, b"), 'c "d"'], "epochs": np.int64(3), "target_loss": np.float32(2)}
    texts = setting_texts({**given, "max_seconds": 0.25, "output": Path("x y")})
    found = RawConfig.from_mapping(texts, "test").build(JobSettings)
    assert found.input == ("a, b", 'c "d"')
    assert (found.epochs, found.target_loss, found.max_seconds) == (3, 2.0, 0.25)
    assert found.output == "x y"


@pytest.mark.parametrize("value", [None, object(), {1}, [[1]], [None], b"", "a\nb", "x" * 5000])
def test_value_of_no_setting_is_refused_with_its_name(value):
    with pytest.raises(ConfigError, match=r"^lr: ") as caught:
        setting_texts({"lr": value})
    assert len(str(caught.value)) < 200


class Sparse:
    """Refuses to tell a length, as sparse matrices do."""

    def __len__(self):
        raise TypeError("sparse array length is ambiguous")


def test_data_in_the_place_of_a_path_is_refused_by_its_type():
    for value, said in [(np.zeros((3, 2)), "a ndarray of 3"), (Sparse(), "a Sparse:")]:
        with pytest.raises(ConfigError, match=rf"^input: {said}.* to fit\(\) of a model"):
            setting_texts({"input": value})


def test_history_interpolates_where_epochs_ended():
    history = History()
    for share, seconds in [(0.0, 10.0), (0.25, 11.0), (0.75, 13.0)]:
        units = 1000 * share
        told = {"phase": "training", "progress": share, "elapsed_s": seconds, "units": units}
        history.add(told)
    figures = {"loss_by_epoch": [3.0, 2.0], "words": 1000, "words_per_s": 250.0, "train_s": 4.0}
    assert history.of(figures) == [
        {"epoch": 1, "loss": 3.0, "words_per_s": 250.0},
        {"epoch": 2, "loss": 2.0, "words_per_s": 250.0},
    ]
    assert History().of({"by_round": [{"round": 1, "loss": 2.0}]}) == [
        {"epoch": 1, "round": 1, "loss": 2.0}
    ]
    assert History().of({}) == []


def test_history_of_a_long_training_is_thinned_and_keeps_its_rates(monkeypatch):
    monkeypatch.setattr("snailps.local.history.POINTS_MAX", 64)
    history = History()
    for look in range(5001):
        told = {"phase": "training", "progress": look / 5000, "elapsed_s": look, "units": 10 * look}
        history.add(told)
    assert len(history._course.points) <= 64
    figures = {"words": 50000, "train_s": 5000.0, "words_per_s": 10.0, "loss_by_epoch": [2.0, 1.0]}
    assert [one["words_per_s"] for one in history.of(figures)] == [10.0, 10.0]
