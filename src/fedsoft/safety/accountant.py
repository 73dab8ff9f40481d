"""Epsilon of what was released, by the accountant of dp-accounting; noise is in units of the sensitivity throughout."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from fedsoft.errors import InputError

if TYPE_CHECKING:
    from fedsoft.core.contract import Means
    from fedsoft.secure.distributed import Mechanism

ORDERS = [*range(2, 65), 80, 96, 128, 192, 256]  # of Renyi divergences, for draws without replacement


def check_accountant() -> None:
    """Raise unless the accountant is installed."""
    _accountant()


def _accountant() -> Any:
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        if error.name != "dp_accounting":
            raise
        raise InputError('[privacy] needs a package that is not installed: pip install "fedsoft[privacy]"') from None
    return dp_accounting


@functools.cache
def gaussian_epsilon(noise: float, delta: float, times: float = 1) -> float:
    """Return epsilon of this many Gaussian mechanisms, `noise` being each std in units of its sensitivity.

    Together they are exactly one of noise / sqrt(times), even when each depends on the results of the others.
    """
    return float(_accountant().get_epsilon_gaussian(noise / math.sqrt(times), delta)) if times else 0.0


@functools.cache
def centers_epsilon(noise: float, delta: float, times: int, means: Means, clients: int) -> float:
    """Return epsilon of this many releases of centers.

    Clients drawn uniformly without replacement gain from the sampling (Renyi accountant, replace-one). FedSoft draws by
    v_sk, which depends on the clients' data: nothing is gained from the draw, so the guarantee holds for a client that
    is drawn in every round.
    """
    plain = gaussian_epsilon(noise, delta, times)
    if not (times and means.uniform and means.members < clients):
        return plain
    dp = _accountant()
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    drawn = dp.SampledWithoutReplacementDpEvent(clients, means.members, dp.GaussianDpEvent(noise))
    accountant.compose(drawn, times)
    return min(plain, float(accountant.get_epsilon(delta)))


@functools.cache
def shares_epsilon(mechanism: Mechanism, delta: float, times: int) -> float:
    """Return epsilon of this many releases of sums that clients hide together; nothing is gained from draws."""
    if not times:
        return 0.0
    _accountant()
    from dp_accounting import rdp

    from fedsoft.secure import distributed

    return float(rdp.compute_epsilon(distributed.ORDERS, (times * mechanism.divergences).tolist(), delta)[0])


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Return the noise for which one Gaussian mechanism has this epsilon."""
    return float(_accountant().get_sigma_gaussian(epsilon, delta))
