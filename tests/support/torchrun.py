"""Two ranks by torchrun: a script of which each rank prints JSON objects, one a line."""

import json
import os
import signal
import subprocess
import sys

from processes import LIMIT_S, environment, free_port


def ranks_told(script, *words, options=(), before=()):
    """Runs the ranks to a good end; the objects that they printed. No process outlives the call.

    `before`: a command that runs torchrun.
    """
    command = [
        *before, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--nnodes=1",
        *options, "--master-addr=127.0.0.1", f"--master-port={free_port()}", script, *words,
    ]  # fmt: skip
    run = subprocess.Popen(
        command, env=environment(OMP_NUM_THREADS="1"), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = run.communicate(timeout=LIMIT_S)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    assert run.returncode == 0, err
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]
