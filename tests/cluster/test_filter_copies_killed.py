"""A filter that searches for copies, killed at each file that it writes: the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import killed_filter
from near_copies import corpus
from processes import environment


def test_filter_killed_at_each_file_goes_on_to_the_same_bytes(tmp_path):
    texts, _ = corpus(7, pages=20)
    (tmp_path / "in").mkdir()
    for file in range(2):
        rows = [{"n": at, "text": texts[at]} for at in range(file, len(texts), 2)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "in" / f"{file}.jsonl").write_text(lines)
    folders = [str(tmp_path / name) for name in ("in", "whole", "out")]
    result = subprocess.run(
        [sys.executable, killed_filter.__file__, *folders], env=environment(),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    names = result.stdout.split()
    # The command and its tasks; keys of two files, each with a record; what was found, with a
    # record; two outputs, each with a record; the report, the manifest.
    assert len(names) == 2 * (2 + 4 + 2 + 4 + 2), names
    assert names[::2] == names[1::2]
    assert len({*names}) == 14
    outputs = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert outputs == ["0.jsonl", "1.jsonl", "_manifest.json", "_report.html"]
    for name in outputs[:2]:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    found, wanted = (
        json.loads(Path(tmp_path, folder, "_manifest.json").read_text())
        for folder in ("out", "whole")
    )
    assert found["copies"] == wanted["copies"]
    assert found["refused"] == wanted["refused"]
    assert found["kept"] < found["rows"]
