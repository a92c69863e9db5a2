"""NumPy twin of the embeddings of triples and of ratings, in float64.

Scores are those of the definitions, with complex numbers where the paper has them, and gradients
are central differences of the loss: nothing of the kernel's queries and derivatives is repeated
here.
"""

import numpy as np
from twins.kernels import GOLDEN, MASK, hash_key, mix64

STEP = 1e-6


def draw(stream, k):
    return mix64((stream + GOLDEN * (k + 1)) & MASK)


def below(random, bound):
    return ((random >> 32) * bound) >> 32


def as_complex(x):
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def score(relation, metric, h, r, t, apart=None, unit=1.0):
    """Score of a triple by its rows, (..., dim).

    With `apart`, what has the derivatives of L2 where the distance is taken to be that, as the
    kernel does of rows that have been stepped since they were scored.
    """
    if relation == 0:
        return (h * t).sum(-1)
    if relation == 1:
        d = h + r - t
        if metric == 2 and apart:
            return -(d * d).sum(-1) / (2 * apart)
        return -np.abs(d).sum(-1) if metric == 1 else -np.sqrt((d * d).sum(-1) + 1e-12)
    if relation == 2:
        return (h * r * t).sum(-1)
    h, t = as_complex(h), as_complex(t)
    if relation == 3:
        return (h * as_complex(r) * t.conj()).sum(-1).real
    turn = np.exp(1j * unit * r[..., : h.shape[-1]])
    return -np.sqrt(np.abs(h * turn - t) ** 2 + 1e-12).sum(-1)


def softplus(x):
    return np.logaddexp(0, x)


def loss_of(own, others, loss, margin, weights):
    """Loss of a triple; `weights` of its negatives count as constants (self-adversarial)."""
    if loss == 0:
        return softplus(-own - margin) + (weights * softplus(others + margin)).sum()
    if loss == 1:
        return np.maximum(0, margin + others - own).mean()
    if loss == 2:
        every = np.append(others, own)
        return np.log(np.exp(every - every.max()).sum()) + every.max() - own
    return softplus(others - own).mean()


def gradient(function, x):
    found = np.zeros_like(x)
    for j in range(len(x)):
        up, down = x.copy(), x.copy()
        up[j] += STEP
        down[j] -= STEP
        found[j] = (function(up) - function(down)) / (2 * STEP)
    return found


class Rows:
    """Rows that are stepped."""

    def __init__(self, rows, dim, *, method, eps):
        self.w = rows[:, :dim].astype(np.float64)
        stride = -(-dim // 16) * 16
        self.s = rows[:, stride : stride + dim].astype(np.float64) if method == 2 else None
        self.eps = eps

    def step(self, at, g, rate, normalize=False):
        if self.s is None:
            self.w[at] -= rate * g
        else:
            self.s[at] += g**2
            self.w[at] -= rate * g / (np.sqrt(self.s[at]) + self.eps)
        if normalize:
            self.w[at] /= np.linalg.norm(self.w[at])


def train_triples(rows, dim, heads, relations, tails, noise, *, relation, metric, loss, method,
                  shared, negatives, side, normalize, margin, temperature, l2, eps, lr_start,
                  lr_stop, seed, first, last, turn=1.0):  # fmt: skip
    """Weights and state of the trained rows, float64; the sum of losses."""
    known = Rows(rows, dim, method=method, eps=eps)
    stream, k, total = hash_key(seed), 0, 0.0
    for begin in range(first, last, shared):
        group = range(begin, min(last, begin + shared))
        tail = side > 0
        if side == 0:
            tail, k = bool(draw(stream, k) >> 63), k + 1
        drawn = [int(noise[below(draw(stream, k + i), len(noise))]) for i in range(negatives)]
        k += negatives
        rate = lr_start + (lr_stop - lr_start) * (begin - first) / (last - first)

        w = known.w
        none = np.zeros(dim)
        anchors, others = (heads, tails) if tail else (tails, heads)
        started = [
            (w[anchors[i]].copy(), w[relations[i]].copy() if relation else none) for i in group
        ]

        def of(anchor, r, candidate, apart=None, tail=tail):
            ends = (anchor, candidate) if tail else (candidate, anchor)
            return score(relation, metric, ends[0], r, ends[1], apart, turn)

        each, scores = [], []

        def pull_of(n, c, candidate, of=of, started=started, scores=scores):
            """Gradient of a candidate by the score of triple n and itself."""
            apart = -scores[n][c]
            return gradient(lambda e: of(*started[n], e, apart), candidate)

        for i, (anchor, r) in zip(group, started, strict=True):
            found = np.array([of(anchor, r, w[n]) for n in drawn])
            weights = np.full(negatives, 1 / negatives)
            if loss == 0 and temperature > 0:
                weights = np.exp(temperature * (found - found.max()))
                weights /= weights.sum()
            own = of(anchor, r, w[others[i]])
            total += loss_of(own, found, loss, margin, weights)
            each.append(weights)
            scores.append(np.append(found, own))

        # Of each triple: derivatives of the loss by all scores, the last one being its own.
        slopes = [
            gradient(lambda x, by=by: loss_of(x[-1], x[:-1], loss, margin, by), found)
            for by, found in zip(each, scores, strict=True)
        ]
        met = [[] for _ in group]  # candidates as they were when their pull was taken
        for c, place in enumerate(drawn):
            g = np.zeros(dim)
            for n in range(len(started)):
                met[n].append(w[place].copy())
                g += slopes[n][c] * pull_of(n, c, w[place])
            known.step(place, g, rate, normalize)
        for n, i in enumerate(group):
            met[n].append(w[others[i]].copy())
            g = slopes[n][-1] * pull_of(n, -1, w[others[i]])
            known.step(others[i], g + l2 * w[others[i]], rate, normalize)
            # By the query, which is of the rows as they were; from there on by those of now.
            pull = list(zip(slopes[n], met[n], -scores[n], strict=True))
            now_a, now_r = w[anchors[i]].copy(), w[relations[i]].copy() if relation else none
            of_a, of_r = chain(relation, metric, tail, started[n], (now_a, now_r), pull, turn)
            if relation:
                decay = 0 if relation == 4 else l2
                known.step(relations[i], of_r + decay * w[relations[i]], rate)
            known.step(anchors[i], of_a + l2 * w[anchors[i]], rate, normalize)
    return known, total


def query(relation, tail, anchor, r, unit):
    """What all candidates are compared with: real, (dim,)."""
    if relation == 0:
        return anchor
    if relation == 1:
        return anchor + r if tail else anchor - r
    if relation == 2:
        return anchor * r
    half = len(anchor) // 2
    by = as_complex(r) if relation == 3 else np.exp(1j * unit * r[:half])
    q = as_complex(anchor) * (by if tail else by.conj())
    return np.concatenate([q.real, q.imag])


def compared(metric, q, e, apart=None):
    if metric == 2 and apart:
        return -((q - e) ** 2).sum() / (2 * apart)
    if metric == 0:
        return q @ e
    if metric == 1:
        return -np.abs(q - e).sum()
    if metric == 2:
        return -np.sqrt(((q - e) ** 2).sum() + 1e-12)
    return -np.sqrt(np.abs(as_complex(q - e)) ** 2 + 1e-12).sum()


def chain(relation, metric, tail, then, now, pull, unit):
    """Gradients of anchor and relation: the query's at `then`, its derivatives at `now`.

    A turn is that of then, as the kernel keeps it.
    """
    q = query(relation, tail, *then, unit)
    of_q = sum(
        slope * gradient(lambda x, e=e, apart=apart: compared(metric, x, e, apart), q)
        for slope, e, apart in pull
    )
    anchor, r = now
    if relation == 0:
        return of_q, None
    r_there = then[1] if relation == 4 else r
    of_a = gradient(lambda a: of_q @ query(relation, tail, a, r_there, unit), anchor)
    of_r = gradient(lambda b: of_q @ query(relation, tail, anchor, b, unit), r_there)
    return of_a, of_r


def train_ratings(rows, dim, users, items, ratings, *, method, l2, eps, lr_start, lr_stop,
                  first, last):  # fmt: skip
    """Weights and state of the trained rows, float64; half the sum of squared errors."""
    known = Rows(rows, dim, method=method, eps=eps)
    total = 0.0
    for i in range(first, last):
        rate = lr_start + (lr_stop - lr_start) * (i - first) / (last - first)
        u, v = known.w[users[i]].copy(), known.w[items[i]].copy()
        error = u[0] + v[0] + u[1:] @ v[1:] - ratings[i]
        total += error**2 / 2
        if method == 1:
            error = np.clip(rate * error, -0.5, 0.5) / rate
        known.step(users[i], np.append(error, error * v[1:]) + l2 * u, rate)
        known.step(items[i], np.append(error, error * u[1:]) + l2 * v, rate)
    return known, total
