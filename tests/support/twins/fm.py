"""NumPy twin of a factorization machine: pairs counted one by one, in float64.

Nothing of the kernel's sums over features or fields is repeated here: the score is the double sum
of the definition, and so are the gradients.
"""

import itertools

import numpy as np
from twins.kernels import ftrl_weights


class Machine:
    """Rows in parts, as the kernel pads them, and examples."""

    def __init__(self, rows, parts, factors, field_num, *, bias=-1):
        self.rows = rows.astype(np.float64).reshape(len(rows), parts, -1)
        self.factors, self.field_num, self.bias = factors, field_num, bias

    def factor(self, field):
        """Columns of a row's factor for a field."""
        return slice(1 + field * self.factors, 1 + (field + 1) * self.factors)

    def score(self, places, values, fields):
        """Bias, linear terms, and a product for each pair of features."""
        w = self.rows[:, 0]
        total = w[self.bias, 0] if self.bias >= 0 else 0.0
        total += (values * w[places, 0]).sum()
        for i in range(len(places)):
            for j in range(i):
                a = w[places[i], self.factor(fields[j])]
                b = w[places[j], self.factor(fields[i])]
                total += values[i] * values[j] * (a @ b)
        return total

    def gradients(self, places, values, fields):
        """Of the score: (row, its gradient, columns in use) for each feature, then for the bias.

        A factor that meets only zeros, as L1 makes them, is not in use.
        """
        w = self.rows[:, 0]
        found = []
        for i, row in enumerate(places):
            g, pull = np.zeros(w.shape[1]), np.zeros(w.shape[1])
            g[0], pull[0] = values[i], 1
            for j in range(len(places)):
                other = values[j] * w[places[j], self.factor(fields[i])]
                pull[self.factor(fields[j])] += other
                if j != i:
                    g[self.factor(fields[j])] += values[i] * other
            found.append((row, g, pull != 0))
        if self.bias >= 0:
            first = np.eye(1, w.shape[1])[0]
            found.append((self.bias, first, first > 0))
        return found

    def step(self, row, g, used, weight, *, method, rate, eps, l1, l2, factor_l2, beta):
        """One step of one row."""
        w, *state = self.rows[row]
        decay = np.full(len(w), factor_l2)
        decay[0] = l2
        g = g + np.where(used, weight * decay * w, 0)
        if method == 4:
            z, n = state
            z += g - (np.sqrt(n + g**2) - np.sqrt(n)) / rate * w
            n += g**2
            w[:] = ftrl_weights([rate, 0, 0, 0, l1, 0, beta], z, n)
            return
        if method == 2:
            state[0] += g**2
            w -= rate * g / (np.sqrt(state[0]) + eps)
        else:
            w -= rate * g


def loss_of(score, label, loss):
    """(loss, its derivative by the score)."""
    if loss == 1:
        return (score - label) ** 2 / 2, score - label
    yes = label > 0
    return np.logaddexp(0, -score if yes else score), 1 / (1 + np.exp(-score)) - yes


def train_fm(rows, ptr, places, values, fields, labels, weights, *, factors, field_num, loss,
             method, bias, lr_start, lr_stop, first, last, hot=0, **steps):  # fmt: skip
    """A float64 copy of `rows`, trained; the sums of losses and weights.

    The kernel steps through an example's rows one after the other, with sums taken before: a row
    that occurs twice in an example is the only one for which that is not the gradient, and is not
    in the examples of the tests.
    """
    machine = Machine(rows, {1: 1, 2: 2, 4: 3}[method], factors, field_num, bias=bias)
    total = weight_sum = 0.0
    slope = (lr_stop - lr_start) / max(1, last - first)
    fields = fields if len(fields) else np.zeros(len(places), np.int32)
    for i in range(first, last):
        rate = lr_start + slope * ((i - first) // 256 * 256)
        at = slice(ptr[i], ptr[i + 1])
        example = places[at], values[at].astype(np.float64), fields[at]
        value, slope_of_loss = loss_of(machine.score(*example), labels[i], loss)
        weight = float(weights[i]) if len(weights) else 1.0
        total += weight * value
        weight_sum += weight
        for row, g, used in machine.gradients(*example):
            g = weight * slope_of_loss * g
            machine.step(row, g, used, weight, method=method, rate=rate, **steps)
    return machine.rows.reshape(len(rows), -1), total, weight_sum


def fm_scores(rows, ptr, places, values, fields, *, factors, field_num, bias, parts):
    """Scores of all examples, float64."""
    machine = Machine(rows, parts, factors, field_num, bias=bias)
    fields = fields if len(fields) else np.zeros(len(places), np.int32)
    pieces = [slice(a, b) for a, b in itertools.pairwise(ptr)]
    return np.array([machine.score(places[s], values[s], fields[s]) for s in pieces])
