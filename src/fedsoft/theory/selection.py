"""Section 3: how many clients are selected, and what the mean of the selected models is in expectation."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedsoft.clusters.importance_weights import aggregation_weights
from fedsoft.clusters.selection import select
from fedsoft.core.client_draws import Draws, Names
from fedsoft.seeds import generator
from fedsoft.theory import quantities as q
from fedsoft.theory.check import Found, statement, yes
from fedsoft.theory.problem import Array


def drawn(v: Array, K: int, replacement: bool, seed: int, draws: int) -> Array:
    """How often the library's `select` draws each client, `[draws, S, N]`."""
    rates, names = torch.from_numpy(v), Names.of([str(k) for k in range(v.shape[1])])
    return np.stack([
        select(rates, K, Draws(seed, "select", t, names=names), replacement=replacement).numpy()
        for t in range(draws)
    ])  # fmt: skip


def inclusion(v: Array, K: int, replacement: bool) -> Array:
    """The probability of each client to be in each center's set, `[S, N]`."""
    if replacement:
        return q.inclusion_with_replacement(v, K)
    return np.stack([q.inclusion_without_replacement(row, K) for row in v])


def weights(share: Array, n: Array) -> Array:
    """The library's aggregation weights, `[S, N]`."""
    return aggregation_weights(torch.from_numpy(share), torch.from_numpy(n)).numpy()


def paper_setting(seed: int) -> dict[str, Array]:
    """v for 100 clients and two centers: equal shares and sizes; equal shares; 10:90."""
    sizes = generator(seed, "sizes").integers(100, 201, 100)
    half, ten = np.full((100, 2), 0.5), np.array([[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50)
    return {
        "uniform": weights(half, np.full(100, 150)),
        "sizes": weights(half, sizes),
        "10:90": weights(ten, sizes),
    }


@statement("selected", "Section 3", "N (1 - (1 - K/N)^S) clients are selected in expectation, when all v_sk = 1/N")
def check_selected(seed: int, draws: int) -> Found:
    """Exactly K distinct clients per center: without replacement."""
    N, K = 100, 60
    v = paper_setting(seed)["uniform"]
    count = (drawn(v, K, False, seed, draws).sum(1) > 0).sum(1)
    paper, exact = q.expected_selected_paper(N, K, 2), q.expected_selected(inclusion(v, K, False))
    error = float(count.std()) / math.sqrt(draws)
    near = abs(float(count.mean()) - paper) <= 4 * error and abs(exact - paper) < 1e-6
    return Found(
        yes(near),
        f"{count.mean():.2f} +- {error:.2f} by the library's select, {exact:.4f} exactly",
        f"{paper:.0f}",
        "N = 100, K = 60, S = 2, equal shares AND equal sizes, drawn without replacement: K^2/N = 36 are in both sets",
        {"measured": float(count.mean()), "standard_error": error, "exact": exact, "paper": paper},
        draws=draws,
    )


@statement(
    "selected-general", "Section 3", "the same with replacement (as in the proofs), other sizes, other shares",
    about="selected",
)  # fmt: skip
def check_selected_general(seed: int, draws: int) -> Found:
    """Exact: sum_k (1 - prod_s (1 - pi_sk)), pi the probability to be in a set; beside it the library's select."""
    K, values, worst = 60, {}, 0.0
    for name, v in paper_setting(seed).items():
        for replacement in (True, False):
            count = (drawn(v, K, replacement, seed, max(20, draws // 4)).sum(1) > 0).sum(1)
            exact = q.expected_selected(inclusion(v, K, replacement))
            error = float(count.std()) / math.sqrt(len(count))
            worst = max(worst, abs(float(count.mean()) - exact) / error)
            values[f"{name}, {'with' if replacement else 'without'}"] = {
                "exact": exact,
                "measured": float(count.mean()),
            }
    shown = "; ".join(f"{name} {v['exact']:.2f}" for name, v in values.items())
    return Found(
        yes(all(abs(v["exact"] - 84) < 0.01 for v in values.values())),
        f"{values['uniform, with']['exact']:.2f} with replacement; library within {worst:.1f} s.e. of exact",
        "84",
        f"N = 100, K = 60, S = 2. With replacement and v = 1/N it is N (1 - (1 - 1/N)^(KS)) = 70.06. Exact: {shown}. "
        "'The same share in every client' is not enough: v_sk also holds n_k",
        values,
        draws=6 * max(20, draws // 4),
    )


@statement(
    "selected-mean", "proof of Thm. 4", "the mean of the K selected models is sum_k v_sk w_k in expectation",
    kind="step of a proof",
)  # fmt: skip
def check_selected_mean(seed: int, draws: int) -> Found:
    """True for independent draws; without replacement (Algorithm 1: a SET of K clients) heavy clients lose weight."""
    v = np.array([[0.5, 0.25, 0.25]])
    small = {r: drawn(v, 2, r, seed, 4 * draws)[:, 0, 0].mean() / 2 for r in (True, False)}
    exact = float(q.inclusion_without_replacement(v[0], 2)[0] / 2)
    setting = paper_setting(seed)["10:90"]
    pi = q.inclusion_without_replacement(setting[0], 60)
    truth, kept = float(setting[0][:50].sum()), float(pi[:50].sum() / 60)
    measured = float(drawn(setting, 60, False, seed, max(20, draws // 4))[:, 0, :50].sum(1).mean() / 60)
    return Found(
        yes(abs(kept - truth) < 1e-6),
        f"10:90 clients hold {kept:.3f} of the draws of their center (library {measured:.3f})",
        f"{truth:.3f}",
        "v = (1/2, 1/4, 1/4), K = 2: client 0 gets weight 1/2 with replacement (library "
        f"{small[True]:.3f}), 5/12 = 0.4167 without ({small[False]:.3f}). In the paper's 10:90 setting, N = 100, K = "
        f"60 "
        "without replacement, a center's own 50 clients cannot fill 60 places; the centers are mixed further than v "
        "says",
        {
            "with": float(small[True]),
            "without": float(small[False]),
            "without_exact": exact,
            "share_by_v": truth,
            "share_without_replacement": kept,
            "share_measured": measured,
        },
        draws=4 * draws,
    )
