"""A short slice of ``python -m fuzz.official_labels``."""

import sys

import official_fasttext

from fuzz.official_labels import compare


def test_labels_of_any_bytes_are_those_of_the_official_package():
    official_fasttext.module()
    texts, found = compare(sys.executable, seconds=60.0, seed=1, models=4)
    assert not found
    assert texts > 1000
