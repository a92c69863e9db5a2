#!/usr/bin/env bash
# What:     two `tensorboardX.SummaryWriter`s for one folder, one after the other, within a second: a
#           run that fails at once and is begun again, callbacks of short trainings, tests.
# Versions: tensorboardX 2.6.5, numpy 2.3.5, protobuf 6.33.2; 2026-11-29.
# Guess:    two event files, as PyTorch's and TensorFlow's writers make, whose names have the process
#           and a counter in them.
# Happens:  the name is the second and the host: the second writer opens the same file and truncates
#           it. Points of the first are gone, without a word. `filename_suffix` makes them two.
# Seen:     files 1, points of the first 0, of the second 1; with filename_suffix: files 2
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install tensorboardX==2.6.5 numpy==2.3.5 protobuf==6.33.2
python - <<'PYTHON'
import time
from pathlib import Path

from tensorboardX import SummaryWriter


def write(folder, suffixes):
    time.sleep(1 - time.time() % 1)  # to the begin of a second
    for number, suffix in enumerate(suffixes):
        with SummaryWriter(folder, filename_suffix=suffix) as writer:
            writer.add_scalar(f"loss{number}", 1.0, number)
    files = list(Path(folder).glob("events.*"))
    data = b"".join(file.read_bytes() for file in files)
    return len(files), data.count(b"loss0"), data.count(b"loss1")


files, first, second = write("alike", ["", ""])
print(f"files {files}, points of the first {first}, of the second {second}", end="; ")
others = write("apart", [".a", ".b"])
print("with filename_suffix: files", others[0])
assert (files, first, second) == (1, 0, 1)
assert others == (2, 1, 1)
PYTHON
