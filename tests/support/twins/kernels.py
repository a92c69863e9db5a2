"""NumPy twins of snailps/_kernels.pyx: the same numbers by the plainest route.

Word vectors are trained centre by centre in float64, so that nothing of the compiled kernel's
tiles, lanes and slots is repeated here.  The random draws are repeated,
because a twin is only comparable when it makes the same choices.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
GROUP, SHARED, CBOW_NOISE = 16, 32, 24
SHORT = 8


def mix64(x):
    """SplitMix64's finaliser of an int or of uint64[n]."""
    if isinstance(x, int):
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 & MASK
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & MASK
        return x ^ x >> 31
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_key(key: int) -> int:
    return mix64((key + GOLDEN) & MASK)


def init_row(kind: int, scale: float, seed: int, key: int, dim: int) -> np.ndarray:
    """First weights; uniform agrees with the kernel to the bit, normal to rounding."""
    start = np.uint64(mix64(hash_key(key) ^ hash_key(~seed & MASK)))
    draws = mix64(start + np.uint64(GOLDEN) * np.arange(1, dim + 1, dtype=np.uint64))
    if kind == 1:
        grid = (draws >> np.uint64(40)).astype(np.int64) - (1 << 23)
        return grid.astype(np.float32) * (np.float32(scale) * np.float32(2.0**-23))
    if kind in (2, 3):
        u = ((draws >> np.uint64(40)).astype(np.float64) + 1) / 2**24
        v = (draws & np.uint64(0xFFFFFF)).astype(np.float64) / 2**24
        # cos(2 pi v) mirrored at one half: the kernel's own choice of phase
        normal = np.sqrt(-2 * np.log(u)) * -np.cos(2 * np.pi * (v - 0.5))
        row = (scale * normal).astype(np.float32)
        row[0] *= kind == 2
        return row
    return np.zeros(dim, np.float32)


def ftrl_weights(hyper, z, n):
    """McMahan et al. 2013, algorithm 1, without L2: the weights that follow from z and n."""
    lr, l1, beta = (float(hyper[i]) for i in (0, 4, 6))
    full = -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / lr)
    return np.where(np.abs(z) <= l1, 0.0, full)


def apply_row(access: int, hyper: np.ndarray, row: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The row after a push, in float64; weights, then state."""
    row, g = row.astype(np.float64), value.astype(np.float64)
    lr, eps, beta1, beta2 = (float(hyper[i]) for i in range(4))
    dim = len(value) - (access == 5)
    w, one, two = row[:dim], row[dim : 2 * dim], row[2 * dim : 3 * dim]
    if access == 0:
        w += g
    elif access == 1:
        w -= lr * g
    elif access == 2:
        one += g**2
        w -= lr * g / (np.sqrt(one) + eps)
    elif access == 3:
        row[-1] += 1
        one[:] = beta1 * one + (1 - beta1) * g
        two[:] = beta2 * two + (1 - beta2) * g**2
        first, second = one / (1 - beta1 ** row[-1]), two / (1 - beta2 ** row[-1])
        w -= lr * first / (np.sqrt(second) + eps)
    elif access == 4:
        g = g + float(hyper[5]) * w
        one += g - (np.sqrt(two + g**2) - np.sqrt(two)) / lr * w
        two += g**2
        w[:] = ftrl_weights(hyper, one, two)
    elif access == 6:
        one[:] = beta1 * one + g
        w -= lr * one
    elif access == 7:
        row[dim] += (g**2).mean()
        w -= lr / (np.sqrt(row[dim]) + eps) * g
    else:
        row[dim:] += g
    return row


def add_state_row(access: int, hyper: np.ndarray, row: np.ndarray, delta: np.ndarray, dim: int):
    """The row after a difference of weights and state was added, in float64."""
    row = row.astype(np.float64) + delta.astype(np.float64)
    if access == 4:
        row[:dim] = ftrl_weights(hyper, row[dim : 2 * dim], row[2 * dim :])
    return row


def draw(seed: int, k: int, bound: int) -> int:
    """Draw k of a call, scaled to 0..bound-1."""
    return (mix64((hash_key(seed) + GOLDEN * (k + 1)) & MASK) >> 32) * bound >> 32


def draw_noise(noise, seed: int, k: int, num: int) -> list[int]:
    """Noise words of a group, from draw k on."""
    return [int(noise[draw(seed, k + t, len(noise))]) for t in range(num)]


def around(tokens, at: int, reach: int) -> list[int]:
    """Places of the contexts of a place."""
    found = []
    for step in (-1, 1):
        for near in range(1, reach + 1):
            other = at + step * near
            if not 0 <= other < len(tokens) or tokens[other] < 0:
                break
            found.append(other)
    return found


def places(
    tokens, window: int, noise, seed: int, targets=None, slots=False, reach_min=1, repeats=False
):
    """Yields (first token, [(place, row of its word, its contexts, in turn)], noise words) a group.

    With targets (places, rows) the first one is the number of a target.  A target whose word is in
    the group already waits, 64 at most.  With slots one in six lanes is judged in turn, and the
    next such target ends the group.  With `repeats` a word may come as often as it does, and there
    are no noise words.
    """
    words = [i for i, t in enumerate(tokens) if t >= 0] if targets is None else targets[0].tolist()
    rows = [int(tokens[i]) for i in words] if targets is None else targets[1].tolist()
    coming, waiting = list(zip(words, rows, strict=True)), []
    next_ = number = 0
    while next_ < len(coming) or waiting:
        k = number * (GROUP + CBOW_NOISE)
        begin = next_
        lanes, left, turns = [], [], 0
        while len(lanes) < GROUP:
            if waiting:
                at, row = waiting.pop(0)
            elif next_ < len(coming) and len(left) < 64:
                at, row = coming[next_]
                next_ += 1
            else:
                break
            again = not repeats and row in [lane[1] for lane in lanes]
            if again and not slots:
                left.append((at, row))
                continue
            turns += again
            if turns * 6 > len(lanes):
                next_ -= 1
                break
            reach = reach_min + draw(seed, k + len(lanes), window - reach_min + 1)
            lanes.append((at, row, around(tokens, at, reach), again))
        waiting = left + waiting
        first = begin if targets is not None else words[begin - 1] + 1 if begin else 0
        yield first, lanes, [] if repeats else draw_noise(noise, seed, k + GROUP, CBOW_NOISE)
        number += 1


def groups(tokens, window: int, noise, seed: int, targets=None, slots=False, reach_min=1):
    """The same with words for places, and without whether a lane is judged in turn."""
    for first, lanes, shared in places(tokens, window, noise, seed, targets, slots, reach_min):
        yield first, [(row, [int(tokens[i]) for i in near]) for _, row, near, _ in lanes], shared


def hidden_of(inputs, words, bag):
    """The mean of all rows of the words' bags; ``bag(word)`` gives rows and weights."""
    rows, weights = (np.concatenate(part) for part in zip(*map(bag, words), strict=True))
    return weights @ inputs[rows] / weights.sum()


def lane_terms(hidden, outputs, centre, shared, logit, negatives: int):
    """(noise weights, probabilities of the truth) of a lane: of the centre, then of noise words."""
    met = np.array([centre, *shared])
    sign = np.array([1.0] + [-1.0] * len(shared))
    noise_weight = (np.array(shared) != centre) * (negatives / CBOW_NOISE)
    return noise_weight, 1 / (1 + np.exp(-sign * (outputs[met] @ hidden - logit[met])))


def group_loss(inputs, outputs, lanes, shared, bag, logit, negatives: int) -> float:
    """The stated loss of one group: what the kernel descends on."""
    total = 0.0
    for centre, words in lanes:
        if words:
            hidden = hidden_of(inputs, words, bag)
            weight, truth = lane_terms(hidden, outputs, centre, shared, logit, negatives)
            total -= float(np.log(truth[0]) + weight @ np.log(truth[1:]))
    return total


def bags(bag_ptr, bag_rows, weights=None):
    """``bag(word)``: its rows, and how often each counts."""
    counts = np.ones(len(bag_rows)) if weights is None else weights.astype(np.float64)

    def bag(word):
        entries = slice(bag_ptr[word], bag_ptr[word + 1])
        return bag_rows[entries], counts[entries]

    return bag


def slots_of(lanes, window: int):
    """(places that some lane sees, for each lane the numbers of its contexts among them)."""
    places, seen, lane_slots = [], [], []
    first, end, begin = 0, -1, 0
    for at, _, near, _ in lanes:
        low = max(0, at - window)
        if low < first or low > end:
            first, end, begin = low, low, len(places)
        stop = max([at, *near]) + 1
        places += range(end, stop)
        end = max(end, stop)
        lane_slots.append([begin + place - first for place in near])
        seen += lane_slots[-1]
    numbers = {slot: number for number, slot in enumerate(sorted(set(seen)))}
    return [places[slot] for slot in numbers], [[numbers[k] for k in of] for of in lane_slots]


class Slots:
    """Places of the text with bags, summed and stepped once a group.

    With `carry` a slot that the next group has, too, goes on there, once.
    """

    def __init__(self, inputs, tokens, bag, window, carry):
        self.inputs, self.tokens, self.bag = inputs, tokens, bag
        self.window, self.carry = window, carry
        self.slots = []  # of the last group: [place, whether it goes on from before, sum, gradient]

    def begin(self, lanes):
        """Step what does not stay from the group before, and sum the others."""
        places, self.of_lanes = slots_of(lanes, self.window)
        old, slots, staying = 0, [], set()
        for place in places:
            while old < len(self.slots) and self.slots[old][0] < place:
                old += 1
            before = self.slots[old] if old < len(self.slots) else [-1, True]
            if self.carry and before[0] == place and not before[1]:
                staying.add(old)
                size = self.bag(int(self.tokens[place]))[1].sum()
                slots.append([place, True, before[2] + size * before[3], before[3].copy()])
            else:
                slots.append([place, False, None, np.zeros(self.inputs.shape[1])])
        self.step(staying)
        for slot in slots:
            if slot[2] is None:
                rows, weights = self.bag(int(self.tokens[slot[0]]))
                slot[2] = weights @ self.inputs[rows]
        self.slots = slots

    def step(self, staying=()):
        """Step the rows of all slots but some."""
        for number, (place, _, _, gradient) in enumerate(self.slots):
            if number not in staying:
                np.add.at(self.inputs, self.bag(int(self.tokens[place]))[0], gradient)
        self.slots = []

    def hidden(self, lane: int):
        """The hidden vector of a lane."""
        near = [self.slots[number] for number in self.of_lanes[lane]]
        size = sum(self.bag(int(self.tokens[slot[0]]))[1].sum() for slot in near)
        return sum(slot[2] for slot in near) / size

    def add(self, lane: int, step):
        """Add a step of a lane's hidden vector to its slots."""
        for number in self.of_lanes[lane]:
            self.slots[number][3] += step


def train_group(hide, outputs, lanes, shared, logit, negatives, step_output):
    """Gradients of a group in float64: (loss, examples, [(number of lane, gradient of hidden)]).

    ``hide(i)`` is the hidden vector of lane i.  ``step_output(row, gradient)`` steps an output row:
    first the noise words, then the centres.
    """
    loss, found, old = 0.0, [], outputs.copy()
    of_noise = np.zeros((len(shared), outputs.shape[1]))
    for number, (_, centre, near, _) in enumerate(lanes):
        if near:
            hidden = hide(number)
            weight, truth = lane_terms(hidden, old, centre, shared, logit, negatives)
            pull = -weight * (1 - truth[1:])
            of_noise += np.outer(pull, hidden)
            loss -= weight @ np.log(truth[1:])
            found.append((number, hidden, pull @ old[shared], truth[0]))
    for word, gradient in zip(shared, of_noise, strict=True):
        step_output(word, gradient)
    steps = []
    for number, hidden, gradient, truth in found:
        _, centre, _, again = lanes[number]
        row = old[centre]
        if again:
            row = outputs[centre].copy()
            truth = 1 / (1 + np.exp(-(row @ hidden - logit[centre])))
        loss -= np.log(truth)
        steps.append((number, gradient + (1 - truth) * row))
        step_output(centre, (1 - truth) * hidden)
    return loss, len(found), steps


def walk_group(hide, outputs, lanes, paths, step):
    """The same where each lane steps on the path to its target, one lane after the other."""
    loss, steps = 0.0, []
    for number, (_, leaf, near, _) in enumerate(lanes):
        if near:
            loss, gradient = walk(
                paths, leaf, outputs, hide(number), loss, np.zeros(outputs.shape[1]),
                lambda _, __, *of: step(*of), None,
            )  # fmt: skip
            steps.append((number, gradient))
    return loss, len(steps), steps


def train_words(inputs, outputs, dim, tokens, bag_ptr, bag_rows, noise, noise_logit, *,
                window, negatives, lr_start, lr_stop, seed, targets=None, reach_min=1,
                weights=None, paths=None, shared=False, carry=True):  # fmt: skip
    """float64 copies of (inputs, outputs), trained, then loss_sum and the number of examples."""
    inputs = inputs[:, :dim].astype(np.float64)
    outputs = outputs[:, :dim].astype(np.float64)
    loss, count, rate = 0.0, 0, 0.0

    def step(row, gradient):
        outputs[row] += rate * gradient

    num = len(tokens if targets is None else targets[0])
    slots = weights is not None or len(bag_rows) > len(bag_ptr) - 1
    sums = Slots(inputs, tokens, bags(bag_ptr, bag_rows, weights), window, slots and carry)
    for first, lanes, shared in places(
        tokens, window, noise, seed, targets, slots, reach_min, repeats=paths is not None
    ):
        rate = lr_start + (lr_stop - lr_start) * first / num
        sums.begin(lanes)
        if paths is not None:
            of_group, examples, steps = walk_group(sums.hidden, outputs, lanes, paths, step)
        else:
            group = outputs, lanes, shared, noise_logit, negatives, step
            of_group, examples, steps = train_group(sums.hidden, *group)
        loss, count = loss + of_group, count + examples
        for lane, gradient in steps:
            sums.add(lane, rate * gradient)
    sums.step()
    return inputs, outputs, loss, count


def train_words_adagrad(inputs, outputs, dim, tokens, bag_ptr, bag_rows, noise, noise_logit, *,
                        window, negatives, lr_start, lr_stop, seed, squares,
                        eps, weights=None):  # fmt: skip
    """The same with AdaGrad: ..., and the sums of squares of inputs and outputs.

    A row takes a step for each place that it has in a group: as each noise word, then for each
    token that is a target, in the order of the text; then for each token whose bag it is in.
    """
    inputs = inputs[:, :dim].astype(np.float64)
    outputs = outputs[:, :dim].astype(np.float64)
    of_inputs, of_outputs = (one[:, :dim].astype(np.float64) for one in squares)
    loss, count, rate = 0.0, 0, 0.0

    def step(rows, sums, row, gradient):
        sums[row] += gradient**2
        rows[row] += rate * gradient / (np.sqrt(sums[row]) + eps)

    def step_output(row, gradient):
        step(outputs, of_outputs, row, gradient)

    bag = bags(bag_ptr, bag_rows, weights)
    for first, lanes, shared in places(tokens, window, noise, seed, slots=True):
        rate = lr_start + (lr_stop - lr_start) * first / len(tokens)
        words = [[int(tokens[place]) for place in near] for _, _, near, _ in lanes]
        hidden = [hidden_of(inputs, near, bag) if near else None for near in words]
        group = outputs, lanes, shared, noise_logit, negatives, step_output
        of_group, examples, steps = train_group(hidden.__getitem__, *group)
        loss, count, of_source = loss + of_group, count + examples, {}
        for number, gradient in steps:
            for place in lanes[number][2]:
                of_source[place] = of_source.get(place, 0) + gradient
        for place in sorted(of_source):
            for row in bag(int(tokens[place]))[0]:
                step(inputs, of_inputs, row, of_source[place])
    return inputs, outputs, loss, count, of_inputs, of_outputs


# ---- skip-gram on sorted pairs -------------------------------------------------------------------

ORDER_DRAWS = 1 << 40


def windows(tokens, window: int, seed: int, reach_min=1):
    """Yields (centre, its contexts) of each word of a text, in its order."""
    for at, centre in enumerate(tokens):
        if centre < 0:
            continue
        reach = reach_min + draw(seed, at, window - reach_min + 1)
        left, right = [], []
        for step, found in ((-1, left), (1, right)):
            for near in range(1, reach + 1):
                other = at + step * near
                if not 0 <= other < len(tokens) or tokens[other] < 0:
                    break
                found.append(int(tokens[other]))
        yield int(centre), left[::-1] + right


RUNS_AHEAD = 8


def order_bundles(bundles, run, seed, number):
    """Bundles of one part in the order of training: in 16 lanes, runs of a word's bundles."""
    runs = []
    for bundle in bundles:
        if runs and runs[-1][0][0] == bundle[0] and len(runs[-1]) < run:
            runs[-1].append(bundle)
        else:
            runs.append([bundle])
    for k in reversed(range(1, len(runs))):
        other = draw(seed, ORDER_DRAWS + (number << 31) + k, k + 1)
        runs[k], runs[other] = runs[other], runs[k]
    lanes, made = [[] for _ in range(GROUP)], []
    words = [None] * GROUP
    while len(made) < len(bundles):
        for lane in range(GROUP):
            if not lanes[lane]:
                words[lane] = None
                for at, one in enumerate(runs[:RUNS_AHEAD]):
                    if one[0][0] not in words:
                        runs[0], runs[at] = runs[at], runs[0]
                        lanes[lane] = list(runs.pop(0))
                        words[lane] = one[0][0]
                        break
            if lanes[lane]:
                made.append(lanes[lane].pop(0))
    return made


def sort_pairs(tokens, window, seed, most=12, *, run=1, reach_min=1, inputs=None, part=0,
               outputs=None, parts=1, without=()):  # fmt: skip
    """Lists of (centre, contexts) for each output partition, in the order of training."""
    pairs = [{} for _ in range(parts)]
    for centre, around in windows(tokens, window, seed, reach_min):
        if inputs is None or inputs[centre] == part:
            for context in around:
                of = pairs[0 if outputs is None else outputs[context]]
                of.setdefault(centre, []).append(context)
    found = []
    for number, of in enumerate(pairs):
        if number in without:
            of.clear()
        bundles = []
        for centre in sorted(of):
            around = of[centre]
            num = -(-len(around) // most)
            cuts = [len(around) * k // num for k in range(num + 1)]
            bundles += [(centre, around[a:b]) for a, b in pairwise(cuts)]
        found.append(order_bundles(bundles, run, seed, number))
    return found


def train_pairs(inputs, outputs, dim, bundles, bag_ptr, bag_rows, noise, noise_logit, *, negatives,
                lr_start, lr_stop, seed, squares=None, eps=1.0, lanes=GROUP,
                weights=None, paths=None, shared=False):  # fmt: skip
    """float64 (inputs, outputs, loss_sum, pairs, squares of inputs, of outputs), trained.

    A word of successive groups keeps its lane and hidden vector; its bag gets what it has learnt
    when it leaves.  With AdaGrad it leaves after each group.

    Two lanes of few contexts are judged together, by the rows as the first one found them; the
    steps of contexts that repeat in a lane are shortened instead of being judged anew.  With
    `paths` each context steps on the nodes of its path, one context after the other.
    """
    inputs, outputs = (rows[:, :dim].astype(np.float64) for rows in (inputs, outputs))
    sums = [None, None]
    if squares is not None:
        sums = [one[:, :dim].astype(np.float64) for one in squares]
    loss, count, begin, number = 0.0, 0, 0, 0
    width, lanes = lanes, [None] * GROUP  # word, contexts, hidden vector, what the bag is owed

    def step(rows, of, row, gradient):
        if of is None:
            rows[row] += rate * gradient
        else:
            of[row] += gradient**2
            rows[row] += rate * gradient / (np.sqrt(of[row]) + eps)

    def truth(x):
        return 1 / (1 + np.exp(-x))

    bag = bags(bag_ptr, bag_rows, weights)
    while begin < len(bundles):
        end = begin
        while end < min(begin + width, len(bundles)):
            if bundles[end][0] in [centre for centre, _ in bundles[begin:end]]:
                break
            end += 1
        rate = lr_start + (lr_stop - lr_start) * begin / len(bundles)
        before, lanes = lanes, [None] * GROUP
        for number_of, (centre, around) in enumerate(bundles[begin:end], begin):
            lane = number_of % GROUP
            if squares is None and before[lane] and before[lane][0] == centre:
                _, _, vector, owed = before[lane]
            else:
                rows, times = bag(centre)
                vector, owed = times @ inputs[rows] / times.sum(), np.zeros(dim)
            lanes[lane] = centre, around, vector, owed
        used = [(lane, *kept) for lane, kept in enumerate(lanes) if kept]
        hidden = np.array([vector for *_, vector, _ in used])
        arounds = [around for _, _, around, *_ in used]
        back = np.zeros_like(hidden)
        shared = [] if paths else draw_noise(noise, seed, number * SHARED, SHARED)
        old, steps = outputs.copy(), []
        for word in shared:
            weight = np.array([sum(c != word for c in around) for around in arounds])
            weight = weight * negatives / SHARED
            right = truth(noise_logit[word] - hidden @ old[word])
            loss -= weight @ np.log(right)
            pull = -weight * (1 - right)
            back += np.outer(pull, old[word])
            steps.append((word, pull @ hidden))
        for word, gradient in steps:
            step(outputs, sums[1], word, gradient)
        following = [None] * GROUP
        for number_of in range(end, min(end + width, len(bundles))):
            if bundles[number_of][0] in following:
                break
            following[number_of % GROUP] = bundles[number_of][0]
        short = {lane for lane, _, around, *_ in used if len(around) <= SHORT and squares is None}
        found = outputs
        for at, (lane, centre, around, vector, owed) in enumerate(used):
            together = lane in short and lane ^ 1 in short
            if together and lane % 2 == 0:
                found = outputs.copy()  # what both lanes are judged by
            moved = {}
            for leaf in around if paths else ():
                loss, back[at] = walk(
                    paths, leaf, outputs, hidden[at], loss, back[at], step, sums[1]
                )
                count += 1
            for word in () if paths else around:
                row = (found if together else outputs)[word]
                right = truth(row @ hidden[at] - noise_logit[word])
                loss -= np.log(right)
                count += 1
                wrong = 1 - right
                if together:
                    before = moved.get(word, 0.0)
                    moved[word] = before + wrong
                    wrong /= 1 + right * rate * before * (hidden[at] @ hidden[at])
                back[at] += wrong * outputs[word]
                step(outputs, sums[1], word, wrong * hidden[at])
            if squares is None and following[lane] == centre:
                vector += rate * back[at]
                owed += rate * back[at]
                continue
            for row in bag(centre)[0]:
                if squares is None:
                    inputs[row] += owed + rate * back[at]
                else:
                    step(inputs, sums[0], row, back[at])
        begin, number = end, number + 1
    return inputs, outputs, loss, count, *sums


def walk(paths, leaf, outputs, hidden, loss, gradient, step, sums):
    """Step the rows of a path; returns the loss and the hidden vector's gradient with its parts."""
    for turn in paths.turns[paths.ptr[leaf] : paths.ptr[leaf + 1]].tolist():
        row, side = outputs[turn >> 1].copy(), 2 * (turn & 1) - 1
        right = 1 / (1 + np.exp(-side * (row @ hidden)))
        loss -= np.log(right)
        gradient = gradient + side * (1 - right) * row
        step(outputs, sums, turn >> 1, side * (1 - right) * hidden)
    return loss, gradient


def pairs_loss(inputs, outputs, bundles, shared, bag, logit, negatives: int) -> float:
    """The stated loss of one group of bundles: what the kernel descends on."""
    total = 0.0
    for centre, around in bundles:
        hidden = inputs[bag(centre)].mean(0)
        for context in around:
            met = [context, *shared]
            sign = np.array([1.0] + [-1.0] * len(shared))
            weight = np.array([1.0, *(negatives / SHARED * (word != context) for word in shared)])
            total += weight @ np.logaddexp(0, -sign * (outputs[met] @ hidden - logit[met]))
    return float(total)
