"""The whole local solve of models that are linear in the inputs, client after client in one compiled loop.

A step of such a model is a few hundred multiplications: any call from Python, even one for all clients, costs more. A
client's points and parameters stay in the nearest cache, and what is computed for it depends on nothing else, so the
bits are the same for any chunk of clients.
"""

from __future__ import annotations

import numpy as np

from fedsoft.core.kernels import compiled_sums, part, part_sums

A = np.ndarray
Form = tuple[int, int, int]
Points = tuple[A, A, A, A]
Batches = tuple[A, A, int]
Batch = tuple[A, A, A, A, int]  # inputs, targets, weights, places; what leads from a place to its row of inputs
Pull = tuple[int, A, A]
Moments = tuple[A, A, A]
Rule = tuple[bool, bool, A]
Rates = tuple[A, A]
Scores = tuple[A, A, A]  # of some points `[outputs, LANES]`; the most and the sum of each point's

SQUARED, SOFTMAX, CHOICE, CHOICE_OF_AVAILABLE = range(4)
NO_PULL, ONE_STRENGTH, OWN_STRENGTHS, MATRIX = range(4)
LANES = 16  # points whose exponentials are taken at once
NEVER = -1e4  # the utility of an alternative that is not available: finite, so that gradients are too


@compiled_sums
def solve(
    form: Form, points: Points, batches: Batches, pull: Pull, moments: Moments, rule: Rule, rates: Rates, w: A
) -> None:  # fmt: skip
    """Take all steps of every client, in place.

    Arguments:
        form: the kind of model; outputs, or alternatives; the inputs of each.
        points: inputs `[points, ...]`; targets in the order of the clients; each client's first row among the inputs;
            weights of points in the order of the clients, or nothing.
        batches: the order of points `[epochs, points]`; where each client ends in it; points of a batch.
        pull: the kind of strength, the strengths `[m, ...]` and the targets `[m, P]` of the proximal term.
        moments: means of the gradient and of its square (Adam), or the velocity (SGD); steps taken before.
        rule: whether it is Adam; whether it is Nesterov's; beta1 or momentum, beta2, eps, decay, decoupled decay, clip.
        rates: learning rates of all steps, client after client, or a single one; where each client's begin.
        w: models `[m, P]`.
    """
    (inputs, targets, starts, weights), (order, ends, batch) = points, batches
    (pulled, strengths, goals), (first, second, taken) = pull, moments
    adam, nesterov, numbers = rule
    beta1, beta2, epsilon, decay, apart, clip = numbers
    factors, begins = rates
    kind = w.dtype.type
    size = w.shape[1]
    g = np.empty(size, w.dtype)
    scores = np.zeros((max(1, form[1]), LANES), w.dtype), np.empty(LANES, w.dtype), np.empty(LANES, w.dtype)
    keep1, keep2 = kind(beta1), kind(beta2)
    fresh1, fresh2 = kind(1 - beta1), kind(1 - beta2)
    begin = 0
    for k in range(len(w)):
        end, w_k = ends[k], w[k]
        first_k, second_k = first[min(k, len(first) - 1)], second[min(k, len(second) - 1)]
        power1, power2 = beta1 ** taken[k], beta2 ** taken[k]
        rate, step = factors[0], 0
        for epoch in range(len(order)):
            for at in range(begin, end, batch):
                places = order[epoch, at : min(at + batch, end)]
                if len(factors) > 1:
                    rate = factors[begins[k] + step]
                step += 1
                own = inputs, targets, weights, places, starts[k] - begin
                if form[0] == SQUARED:
                    squared(own, w_k, g)
                elif form[0] == SOFTMAX:
                    softmax(form[1], own, w_k, g, scores)
                else:
                    choice(form, own, w_k, g, scores)
                if pulled == ONE_STRENGTH:
                    for i in range(size):
                        g[i] += strengths[k, 0] * w_k[i] - goals[k, i]
                elif pulled == OWN_STRENGTHS:
                    for i in range(size):
                        g[i] += strengths[k, i] * w_k[i] - goals[k, i]
                elif pulled == MATRIX:
                    for i in range(size):
                        total = -goals[k, i]
                        for j in range(size):
                            total += strengths[k, i * size + j] * w_k[j]
                        g[i] += total
                if clip > 0:
                    total = kind(0)
                    for i in range(size):
                        total += g[i] * g[i]
                    shorter = kind(min(1.0, clip / (np.sqrt(total) + 1e-6)))
                    for i in range(size):
                        g[i] *= shorter
                if decay > 0:
                    for i in range(size):
                        g[i] += kind(decay) * w_k[i]
                if apart > 0:
                    for i in range(size):
                        w_k[i] *= kind(1 - rate * apart)
                if adam:
                    power1 *= beta1
                    power2 *= beta2
                    slow = (1 - power1) / rate
                    scale, eps = kind(slow / np.sqrt(1 - power2)), kind(epsilon * slow)
                    for i in range(size):
                        m = keep1 * first_k[i] + fresh1 * g[i]
                        v = keep2 * second_k[i] + fresh2 * (g[i] * g[i])
                        first_k[i] = m
                        second_k[i] = v
                        w_k[i] -= m / (scale * np.sqrt(v) + eps)
                elif beta1 > 0:
                    for i in range(size):
                        velocity = keep1 * first_k[i] + g[i]
                        first_k[i] = velocity
                        w_k[i] -= kind(rate) * (g[i] + keep1 * velocity if nesterov else velocity)
                else:
                    for i in range(size):
                        w_k[i] -= kind(rate) * g[i]
        begin = end


@part_sums
def squared(batch: Batch, w: A, g: A) -> None:
    """The gradient of the squared loss of `<w, x>`."""
    inputs, targets, weights, places, shift = batch
    each = 2 * (w.dtype.type(1) / len(places))
    g[:] = 0
    for place in places:
        x, error = inputs[place + shift], -targets[place]
        for i in range(len(w)):
            error += w[i] * x[i]
        error *= each if len(weights) == 0 else each * weights[place]
        for i in range(len(w)):
            g[i] += error * x[i]


@part_sums
def softmax(count: int, batch: Batch, w: A, g: A, scores: Scores) -> None:
    """The gradient of the cross-entropy of the scores `W x`: four scores at once, then four points at once.

    Numbers without a sign never count from the end of an array, so the loops below need not look whether they do.
    """
    inputs, targets, weights, places, shift = batch
    width, zero, table = np.uint64(inputs.shape[1]), w.dtype.type(0), scores[0]
    g[:] = 0
    for begin in range(0, len(places), LANES):
        some = places[begin : begin + LANES]
        last = len(some) - 1
        for b in range(len(some)):
            x = inputs[some[b] + shift]
            for c in range(0, count, 4):
                c1, c2, c3 = min(c + 1, count - 1), min(c + 2, count - 1), min(c + 3, count - 1)
                o0, o1, o2, o3 = (
                    np.uint64(c) * width,
                    np.uint64(c1) * width,
                    np.uint64(c2) * width,
                    np.uint64(c3) * width,
                )
                s0, s1, s2, s3 = zero, zero, zero, zero
                for i in range(width):
                    s0 += w[o0 + i] * x[i]
                    s1 += w[o1 + i] * x[i]
                    s2 += w[o2 + i] * x[i]
                    s3 += w[o3 + i] * x[i]
                table[c3, b] = s3
                table[c2, b] = s2
                table[c1, b] = s1
                table[c, b] = s0
        shares(scores, targets, weights, some, len(places))
        for b in range(0, len(some), 4):
            x0, x1 = inputs[some[b] + shift], inputs[some[min(b + 1, last)] + shift]
            x2, x3 = inputs[some[min(b + 2, last)] + shift], inputs[some[min(b + 3, last)] + shift]
            for c in range(count):
                o, s0 = np.uint64(c) * width, table[c, b]
                s1 = table[c, b + 1] if b + 1 <= last else zero
                s2 = table[c, b + 2] if b + 2 <= last else zero
                s3 = table[c, b + 3] if b + 3 <= last else zero
                for i in range(width):
                    g[o + i] += s0 * x0[i] + s1 * x1[i] + s2 * x2[i] + s3 * x3[i]


@part_sums
def choice(form: Form, batch: Batch, w: A, g: A, scores: Scores) -> None:
    """The gradient of the cross-entropy of the utilities `<w, x_a>` of alternatives a: three of them at once."""
    inputs, targets, weights, places, shift = batch
    known, count, width = form
    zero, one, never = w.dtype.type(0), w.dtype.type(1), w.dtype.type(NEVER)
    size, table = np.uint64(len(w)), scores[0]
    g[:] = 0
    for begin in range(0, len(places), LANES):
        some = places[begin : begin + LANES]
        for b in range(len(some)):
            x = inputs[some[b] + shift]
            for a in range(0, count, 3):
                a1, a2 = min(a + 1, count - 1), min(a + 2, count - 1)
                o0, o1, o2 = np.uint64(a * width), np.uint64(a1 * width), np.uint64(a2 * width)
                s0, s1, s2 = zero, zero, zero
                for i in range(size):
                    s0 += w[i] * x[o0 + i]
                    s1 += w[i] * x[o1 + i]
                    s2 += w[i] * x[o2 + i]
                if known == CHOICE_OF_AVAILABLE:
                    s0 += (one - x[o0 + size]) * never
                    s1 += (one - x[o1 + size]) * never
                    s2 += (one - x[o2 + size]) * never
                table[a2, b] = s2
                table[a1, b] = s1
                table[a, b] = s0
        shares(scores, targets, weights, some, len(places))
        for b in range(len(some)):
            x = inputs[some[b] + shift]
            for a in range(0, count, 3):
                a1, a2 = min(a + 1, count - 1), min(a + 2, count - 1)
                o0, o1, o2 = np.uint64(a * width), np.uint64(a1 * width), np.uint64(a2 * width)
                s0 = table[a, b]
                s1 = table[a1, b] if a + 1 < count else zero
                s2 = table[a2, b] if a + 2 < count else zero
                for i in range(size):
                    g[i] += s0 * x[o0 + i] + s1 * x[o1 + i] + s2 * x[o2 + i]


@part_sums
def shares(scores: Scores, targets: A, weights: A, some: A, points: int) -> None:
    """Scores of some points of a batch of so many to the gradient of their cross-entropy, in place.

    The loops take all lanes, whether points fill them or not: so many at once are one instruction.
    """
    table, most, total = scores
    one, size = table.dtype.type(1), table.dtype.type(points)
    for b in range(len(most)):
        most[b] = table[0, b]
        total[b] = 0
    for c in range(1, len(table)):
        its = table[c]
        for b in range(len(most)):
            most[b] = its[b] if its[b] > most[b] else most[b]
    for c in range(len(table)):
        exponentials(table[c], most, total)
    for b in range(len(most)):
        total[b] = one / (size * total[b])
    if len(weights):
        for b in range(len(some)):
            total[b] *= weights[some[b]]
    for c in range(len(table)):
        its = table[c]
        for b in range(len(most)):
            its[b] *= total[b]
    for b in range(len(some)):
        table[np.int64(targets[some[b]]), b] -= (one if len(weights) == 0 else weights[some[b]]) / size


@part
def exponentials(x: A, most: A, total: A) -> None:
    """`exp(x - most)` in place, added to `total`; `x` is nowhere above `most`.

    In single precision by `2^n exp(r)` with r of at most half a log 2 and a polynomial (that of the Cephes library;
    relative error 1e-7), several at once; what is below the least normal number becomes that one.
    """
    kind = x.dtype.type
    if x.itemsize == 8:
        for i in range(len(x)):
            x[i] = np.exp(x[i] - most[i])
            total[i] += x[i]
        return
    to_bits, log2, rest = kind(1.4426950408889634), kind(0.693359375), kind(-2.12194440e-4)
    c2, c3, c4 = kind(5.0000001201e-1), kind(1.6666665459e-1), kind(4.1665795894e-2)
    c5, c6, c7 = kind(8.3334519073e-3), kind(1.3981999507e-3), kind(1.9875691500e-4)
    least, one, half = kind(-87), kind(1), kind(0.5)
    for i in range(len(x)):
        a = x[i] - most[i]
        a = least if a < least else a
        n = np.floor(a * to_bits + half)
        r = a - n * log2 - n * rest
        p = ((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2
        power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
        x[i] = (p * (r * r) + r + one) * power
        total[i] += x[i]
