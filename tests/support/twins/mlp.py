"""A multilayer perceptron by the plainest route: float64, one example at a time, no tensors."""

import numpy as np


def forward(weights, biases, x, activation):
    """What each layer gives, the example first, the scores last."""
    outputs = [np.asarray(x, np.float64)]
    for number, (w, b) in enumerate(zip(weights, biases, strict=True), 1):
        z = outputs[-1] @ w + b
        if number < len(weights):
            z = np.maximum(z, 0) if activation == "relu" else 1 / (1 + np.exp(-z))
        outputs.append(z)
    return outputs


def loss_of(weights, biases, x, label, activation):
    """Softmax loss of an example."""
    scores = forward(weights, biases, x, activation)[-1]
    return np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[label]


def gradients(weights, biases, examples, labels, activation):
    """Sum of losses, and the gradients of their mean: of weights, of biases."""
    loss = 0.0
    of_weights = [np.zeros_like(w) for w in weights]
    of_biases = [np.zeros_like(b) for b in biases]
    for x, label in zip(examples, labels, strict=True):
        outputs = forward(weights, biases, x, activation)
        loss += loss_of(weights, biases, x, label, activation)
        chances = np.exp(outputs[-1] - outputs[-1].max())
        delta = chances / chances.sum()
        delta[label] -= 1
        delta /= len(labels)
        for number in range(len(weights) - 1, -1, -1):
            of_weights[number] += np.outer(outputs[number], delta)
            of_biases[number] += delta
            if number:
                below = outputs[number]
                slope = below > 0 if activation == "relu" else below * (1 - below)
                delta = (weights[number] @ delta) * slope
    return loss, of_weights, of_biases


class Optimizer:
    """Steps on arrays, each with its state."""

    def __init__(self, method, lr, decay=0.9):
        self.method, self.lr, self.decay = method, lr, decay
        self.state = {}

    def step(self, name, w, g):
        """w is changed in place."""
        one, two, t = self.state.get(name, (0 * w, 0 * w, 0))
        t += 1
        if self.method == "sgd":
            w -= self.lr * g
        elif self.method == "momentum":
            one = self.decay * one + g
            w -= self.lr * one
        elif self.method == "adagrad":
            one = one + g**2
            w -= self.lr * g / (np.sqrt(one) + 1e-8)
        else:
            one = 0.9 * one + 0.1 * g
            two = 0.999 * two + 0.001 * g**2
            w -= self.lr * one / (1 - 0.9**t) / (np.sqrt(two / (1 - 0.999**t)) + 1e-8)
        self.state[name] = one, two, t
