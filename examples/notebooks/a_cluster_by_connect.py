# %% [markdown]
# # A cluster by `connect`
#
# A cluster that runs on other hosts, and takes one job after the other from Python. The first two
# cells stand for those hosts: here all processes are on this machine.

# %%
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import snailps

# %% [markdown]
# On each host: the same file with the master's address and a secret, and a command of its role.
#
#     node1$ snailps master --session -c cluster.conf --set expected_node_num=2
#     node2$ snailps server -c cluster.conf
#     node3$ snailps worker -c cluster.conf

# %%
scratch = tempfile.TemporaryDirectory(prefix="snailps-")  # removed with this process
folder = Path(scratch.name)
secret = folder / "secret"
secret.touch(mode=0o600)
secret.write_text(secrets.token_hex(16))
port = socket.socket()  # bound, it keeps a free port from others until the master listens there
port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
port.bind(("127.0.0.1", 0))
address = f"127.0.0.1:{port.getsockname()[1]}"
(folder / "cluster.conf").write_text(f"master_addr: {address}\nsecret_file: {secret}\n")
commands = [["master", "--session", "--set", "expected_node_num=2"], ["server"], ["worker"]]
with (folder / "log").open("w") as log:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "snailps", *command, "-c", "cluster.conf"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
        for command in commands
    ]

# %% [markdown]
# From here on it is the same, wherever the cluster is. `close` would leave it running for others.

# %%
cluster = snailps.connect(address, secret_file=str(secret), timeout_s=120)
port.close()
print(cluster.status()["phase"], cluster)

# %% [markdown]
# A model as an object. The sentences are in this process: workers read them from here, and the
# fitted model comes back, without a disk that all hosts share.

# %%
sentences = [["ships", "cross", "the", "sea"], ["boats", "cross", "the", "lake"]] * 400
model = snailps.Word2Vec(dim=16, epochs=5, min_count=1, sample=0, cluster=cluster)
model.fit(sentences)
print(model.wv)

# %% [markdown]
# Tables of your own, which outlive jobs.

# %%
table = cluster.table("weights", dim=2)
table.push([7], [[1.0, 2.0]])
print(table.pull([7, 8]).tolist())

# %% [markdown]
# A job that fails says why, and the session goes on.

# %%
try:
    snailps.Word2Vec(dim=16, min_count=1_000_000, cluster=cluster).fit(sentences)
except snailps.SnailError as error:
    print("refused:", str(error).partition(".")[0])
model.set_params(epochs=1).fit(sentences)
print("trained again:", "sea" in model.wv)

# %% [markdown]
# The end, for all: `shut_down` ends the processes of every host.

# %%
cluster.shut_down()
print("ended with", [process.wait(60) for process in processes])
