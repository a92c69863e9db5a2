"""Plain twins of linear models on sparse examples: one step after the other, in float64."""

import itertools

import numpy as np

SGD, ADAGRAD, FTRL = 1, 2, 4
LOGISTIC, SQUARED, MULTINOMIAL, POISSON = 0, 1, 2, 3
TOGETHER, TOGETHER_ENTRIES = 8, 512  # examples whose scores are of the same rows; not of SGD


def shrunk(z, l1):
    return np.sign(z) * np.maximum(np.abs(z) - l1, 0)


def step(row, outputs, g, *, method, lr, eps, l1, l2, beta):
    """Weights of a row, each with a gradient, take one step."""
    w = row[:outputs]
    g = g + l2 * w
    if method == FTRL:
        z, n = row[outputs : 2 * outputs], row[2 * outputs :]
        total = n + g**2
        z += g - (np.sqrt(total) - np.sqrt(n)) / lr * w
        n[:] = total
        w[:] = -shrunk(z, l1) / ((beta + np.sqrt(total)) / lr)
    elif method == ADAGRAD:
        row[outputs:] += g**2
        w -= lr * g / (np.sqrt(row[outputs:]) + eps)
    else:
        w -= lr * g


def scores(rows, outputs, ptr, places, values, bias):
    """Scores of every example."""
    result = []
    for begin, end in itertools.pairwise(ptr):
        score = rows[bias, :outputs].copy() if bias >= 0 else np.zeros(outputs)
        for place, x in zip(places[begin:end], values[begin:end], strict=True):
            score += x * rows[place, :outputs]
        result.append(score)
    return np.array(result).reshape(-1, outputs)


def loss_and_gradient(loss, score, label):
    """Of one example, by its scores."""
    if loss == LOGISTIC:
        yes = float(label > 0)
        return np.logaddexp(0, -score if yes else score)[0], 1 / (1 + np.exp(-score)) - yes
    if loss == SQUARED:
        return (score[0] - label) ** 2 / 2, score - label
    if loss == POISSON:
        most = 7 + np.log(max(label, 1))
        near = np.minimum(score[0], most)
        slope = np.exp(near) - label
        wanted = label * np.log(max(label, 1e-9)) - label
        return np.exp(near) - label * near + wanted + slope * (score[0] - near), slope
    chances = np.exp(score - np.logaddexp.reduce(score))
    wanted = np.eye(len(score))[int(label)]
    return -np.log(chances @ wanted), chances - wanted


def train_linear(rows, ptr, places, values, labels, weights, *, outputs, loss, method, bias,
                 lr_start, lr_stop, eps, l1, l2, beta, first, last, hot=0):  # fmt: skip
    """A float64 copy of the rows, trained; then the sums of losses and weights."""
    rows = rows.astype(np.float64)
    total = counted = 0.0
    i = first
    while i < last:
        stop = i + 1
        while loss != MULTINOMIAL and method != SGD and stop < min(last, i + TOGETHER):
            if ptr[stop + 1] - ptr[i] > TOGETHER_ENTRIES:
                break
            stop += 1
        lr = lr_start + (lr_stop - lr_start) * (i - first) / (last - first)
        seen = scores(rows, outputs, ptr[i : stop + 1], places, values, bias)
        for example in range(i, stop):
            weight = weights[example] if len(weights) else 1.0
            cost, g = loss_and_gradient(loss, seen[example - i], labels[example])
            total, counted = total + weight * cost, counted + weight
            own = range(ptr[example], ptr[example + 1])
            entries = [(places[at], values[at]) for at in own]
            for place, x in entries + ([(bias, 1.0)] if bias >= 0 else []):
                step(
                    rows[place], outputs, weight * g * x,
                    method=method, lr=lr, eps=eps, l1=l1, l2=weight * l2, beta=beta,
                )  # fmt: skip
        i = stop
    return rows, total, counted
