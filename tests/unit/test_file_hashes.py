"""data.file_hashes: hashes of files beside other work."""

import hashlib

import pytest

from snailps.data.file_hashes import FileHashes
from snailps.errors import DataError


def test_hash_is_that_of_the_whole_file_and_of_none_that_cannot_be_read(tmp_path):
    content = bytes(range(256)) * 9000
    (tmp_path / "a").write_bytes(content)
    found = FileHashes([str(tmp_path / "a"), str(tmp_path / "none")])
    assert found.of(str(tmp_path / "a")) == hashlib.sha256(content).hexdigest()
    with pytest.raises(DataError, match="none"):
        found.of(str(tmp_path / "none"))
    found.close()
