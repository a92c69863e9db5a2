"""The build of the kernels that the environment forces."""

from __future__ import annotations

import os
import subprocess
import sys

from test_kernels import builds


@builds
def test_environment_forces_build(build):
    command = [sys.executable, "-c", "from snailps import kernels; print(kernels.BUILD)"]
    done = subprocess.run(
        command, env=os.environ | {"SNAILPS_KERNELS": build}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == build
