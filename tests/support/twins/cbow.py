"""Plain twin of the CBOW network: loss of windows, and Adam's steps on batches."""

import numpy as np


def logits_of(windows, embedding, weights, biases):
    """(hidden, logits), in double precision; weights (words, dim), biases (words,)."""
    middle = windows.shape[1] // 2
    context = np.delete(windows, middle, axis=1)
    hidden = embedding[context].mean(axis=1)
    return hidden, hidden @ weights.T + biases


def losses(windows, embedding, weights, biases):
    """-log of the probability that each window's middle word gets."""
    _, logits = logits_of(windows, embedding, weights, biases)
    most = logits.max(axis=1)
    total = np.log(np.exp(logits - most[:, None]).sum(axis=1)) + most
    return total - logits[np.arange(len(windows)), windows[:, windows.shape[1] // 2]]


class Adam:
    """Moments of one array; each call is a step, of all of it or of some rows."""

    def __init__(self, array, lr, beta1, beta2, eps):
        self.array, self.lr, self.beta1, self.beta2, self.eps = array, lr, beta1, beta2, eps
        self.first, self.second = np.zeros_like(array), np.zeros_like(array)
        self.counts = np.zeros(len(array))

    def step(self, gradient, rows=slice(None)):
        self.counts[rows] += 1
        steps = self.counts[rows].reshape(-1, *[1] * (self.array.ndim - 1))
        self.first[rows] = self.beta1 * self.first[rows] + (1 - self.beta1) * gradient
        self.second[rows] = self.beta2 * self.second[rows] + (1 - self.beta2) * gradient**2
        first = self.first[rows] / (1 - self.beta1**steps)
        second = self.second[rows] / (1 - self.beta2**steps)
        self.array[rows] -= self.lr * first / (np.sqrt(second) + self.eps)


class Cbow:
    """The network in double precision, trained as `kernels.train_cbow` trains it."""

    def __init__(self, embedding, weights, biases, lr, beta1, beta2, eps):
        self.embedding, self.weights, self.biases = (
            np.array(a, np.float64) for a in (embedding, weights, biases)
        )
        rest = lr, beta1, beta2, eps
        self.steps = [Adam(a, *rest) for a in (self.embedding, self.weights, self.biases)]

    def loss(self, windows):
        return losses(windows, self.embedding, self.weights, self.biases).sum()

    def train(self, windows, batch):
        total = 0.0
        for at in range(0, len(windows), batch):
            total += self.train_batch(windows[at : at + batch])
        return total

    def train_batch(self, windows):
        loss = self.loss(windows)
        n, middle = len(windows), windows.shape[1] // 2
        hidden, logits = logits_of(windows, self.embedding, self.weights, self.biases)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(n), windows[:, middle]] -= 1
        shares /= n
        back = shares @ self.weights / (windows.shape[1] - 1)
        down = np.zeros_like(self.embedding)
        context = np.delete(windows, middle, axis=1)
        for column in context.T:
            np.add.at(down, column, back)
        touched = np.unique(context)
        self.steps[1].step(shares.T @ hidden)
        self.steps[2].step(shares.sum(axis=0))
        self.steps[0].step(down[touched], touched)
        return loss
