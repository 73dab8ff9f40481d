"""The whole local solve of models that are linear in the inputs, client after client in one compiled loop.

A step of such a model is a few hundred multiplications: any call from Python, even one for all clients, costs more. A
client's points and parameters stay in the nearest cache, and what is computed for it depends on nothing else, so the
bits are the same for any chunk of clients.
"""

from __future__ import annotations

import numpy as np

from fedsoft.core.kernels import compiled_sums

A = np.ndarray
Form = tuple[int, int, int]
Points = tuple[A, A, A, A]
Batches = tuple[A, A, int]
Batch = tuple[A, A, A, A, int]  # inputs, targets, weights, places; what leads from a place to its row of inputs
Pull = tuple[int, A, A]
Moments = tuple[A, A, A]
Rule = tuple[bool, bool, A]
Rates = tuple[A, A]

SQUARED, SOFTMAX, CHOICE, CHOICE_OF_AVAILABLE = range(4)
NO_PULL, ONE_STRENGTH, OWN_STRENGTHS, MATRIX = range(4)
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
    g, scores = np.empty(size, w.dtype), np.empty(max(1, form[1]), w.dtype)
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
                    softmax(own, w_k, g, scores)
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


@compiled_sums
def weight_of(weights: A, place: int, count: int, one: float) -> float:
    """What a point counts in a batch of so many."""
    return one / count if len(weights) == 0 else weights[place] / count


@compiled_sums
def squared(batch: Batch, w: A, g: A) -> None:
    """The gradient of the squared loss of `<w, x>`."""
    inputs, targets, weights, places, shift = batch
    one = w.dtype.type(1)
    g[:] = 0
    for place in places:
        x, error = inputs[place + shift], -targets[place]
        for i in range(len(w)):
            error += w[i] * x[i]
        error *= 2 * weight_of(weights, place, len(places), one)
        for i in range(len(w)):
            g[i] += error * x[i]


@compiled_sums
def softmax(batch: Batch, w: A, g: A, scores: A) -> None:
    """The gradient of the cross-entropy of the scores `W x`."""
    inputs, targets, weights, places, shift = batch
    one = w.dtype.type(1)
    width = inputs.shape[1]
    g[:] = 0
    for place in places:
        x = inputs[place + shift]
        for c in range(len(scores)):
            w_c, score = w[c * width : (c + 1) * width], w.dtype.type(0)
            for i in range(width):
                score += w_c[i] * x[i]
            scores[c] = score
        shares(scores, np.int64(targets[place]), weight_of(weights, place, len(places), one))
        for c in range(len(scores)):
            g_c, share = g[c * width : (c + 1) * width], scores[c]
            for i in range(width):
                g_c[i] += share * x[i]


@compiled_sums
def choice(form: Form, batch: Batch, w: A, g: A, scores: A) -> None:
    """The gradient of the cross-entropy of the utilities `<w, x_a>` of alternatives a."""
    inputs, targets, weights, places, shift = batch
    one = w.dtype.type(1)
    known, _, width = form
    g[:] = 0
    for place in places:
        x = inputs[place + shift]
        for a in range(len(scores)):
            x_a, score = x[a * width : (a + 1) * width], w.dtype.type(0)
            for i in range(len(w)):
                score += w[i] * x_a[i]
            if known == CHOICE_OF_AVAILABLE:
                score += (one - x_a[width - 1]) * w.dtype.type(NEVER)
            scores[a] = score
        shares(scores, np.int64(targets[place]), weight_of(weights, place, len(places), one))
        for a in range(len(scores)):
            x_a, share = x[a * width : (a + 1) * width], scores[a]
            for i in range(len(w)):
                g[i] += share * x_a[i]


@compiled_sums
def shares(scores: A, label: int | np.int64, weight: float) -> None:
    """Scores to the gradient of their cross-entropy, in place."""
    most, total = scores[0], scores.dtype.type(0)
    for c in range(1, len(scores)):
        most = max(most, scores[c])
    for c in range(len(scores)):
        scores[c] = np.exp(scores[c] - most)
        total += scores[c]
    for c in range(len(scores)):
        scores[c] *= weight / total
    scores[label] -= weight
