"""The same CBOW network and batches in PyTorch: windows/s of its training loop, one JSON object.

    windows.npy words bs threads seconds -> {"dense": windows/s, "sparse": windows/s}

Embedding, mean of the context, linear layer, cross entropy, Adam.  `dense` is the plain loop
(Adam over all parameters, fused), `sparse` has sparse gradients and SparseAdam for the embedding,
which is the step that snailps takes.  Run by bench/fedavg.py in a Python that has torch.
"""

import json
import sys
import time

import numpy as np
import torch

DIM = 32


def rate(windows, words, bs, seconds, sparse):
    embedding = torch.nn.Embedding(words, DIM, sparse=sparse)
    torch.nn.init.uniform_(embedding.weight, -0.05, 0.05)
    output = torch.nn.Linear(DIM, words)
    loss_of = torch.nn.CrossEntropyLoss()
    if sparse:
        steps = [
            torch.optim.SparseAdam(list(embedding.parameters()), lr=0.05),
            torch.optim.Adam(output.parameters(), lr=0.05, fused=True),
        ]
    else:
        parameters = [*embedding.parameters(), *output.parameters()]
        steps = [torch.optim.Adam(parameters, lr=0.05, fused=True)]
    middle = windows.shape[1] // 2
    context = torch.from_numpy(np.delete(windows, middle, axis=1).astype(np.int64))
    target = torch.from_numpy(windows[:, middle].astype(np.int64))
    best, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        begin = time.perf_counter()
        for at in range(0, len(windows), bs):
            for step in steps:
                step.zero_grad()
            hidden = embedding(context[at : at + bs]).mean(dim=1)
            loss_of(output(hidden), target[at : at + bs]).backward()
            for step in steps:
                step.step()
        best = max(best, len(windows) / (time.perf_counter() - begin))
    return best


def main():
    path, words, bs, threads, seconds = sys.argv[1:]
    torch.set_num_threads(int(threads))
    windows = np.load(path)
    rates = {
        name: rate(windows, int(words), int(bs), float(seconds), name == "sparse")
        for name in ("dense", "sparse")
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
