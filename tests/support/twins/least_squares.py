"""Twin of kernels/_least_squares.h: conjugate gradients and Gram matrices in NumPy, in float64."""

import numpy as np


def solve_rows(others, gram, ptr, places, weights, penalties, steps):
    """Rows and the sum of their losses; `steps` None: exact."""
    rows, loss = np.zeros((len(ptr) - 1, others.shape[1])), 0.0
    weights = weights if len(weights) else np.ones(len(places))
    for name in range(len(rows)):
        entries = slice(ptr[name], ptr[name + 1])
        y, w = others[places[entries]].astype(float), weights[entries].astype(float)
        matrix = y.T @ (abs(w)[:, None] * y) + gram + penalties[name] * np.eye(len(gram))
        wanted = np.maximum(w, 0) @ y
        x = exact(matrix, wanted) if steps is None else gradients(matrix, wanted, steps)
        rows[name] = x
        loss += abs(w) @ (y @ x - (w > 0)) ** 2 + x @ gram @ x + penalties[name] * x @ x
    return rows, loss


def exact(matrix, wanted):
    return np.linalg.solve(matrix, wanted)


def gradients(matrix, wanted, steps):
    x, r = np.zeros(len(wanted)), wanted.copy()
    p = r.copy()
    for _ in range(steps):
        old, product = r @ r, matrix @ p
        if not old:
            break
        by = old / (p @ product)
        x, r = x + by * p, r - by * product
        p = r + (r @ r) / old * p
    return x
