"""The bounds of FedCPD's convergence statement (Jin et al., IJCAI 2025, appendix B) as read in docs/convergence.md.

One client, one round: E steps of rate eta on the loss L, then the server's average of the extractors and new class
prototypes. What is assumed:

    A1  the gradient of L is L1-Lipschitz in the weights, and the embedding f(x; w) is L2-Lipschitz
    A2  a mini-batch's gradient g is unbiased, with variance E|g - grad L|^2 <= sigma^2
    A3  E|g|^2 <= G^2  (the paper writes E|g| <= G; its proof needs the square)

Each function returns what the paper's argument gives. Where that argument does not hold, its docstring says so.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

Convention = Literal["paper", "derived"]


@dataclass(frozen=True)
class Constants:
    """What the bounds are made of. Raises ValueError for numbers that no problem can have."""

    L1: float  # A1, of the gradient of the whole loss
    L2: float  # A1, of the embedding; the paper has it in the first power, which fits |f - f'|^2 <= L2 |w - w'|^2
    sigma: float  # A2
    G: float  # A3
    S: float  # sum over the round's steps of |grad L|^2; by Jensen's inequality never above E G^2
    E: int  # steps of the round
    alpha: float  # weight of the squared distance |f - P|^2; of its mean over K elements: the weight divided by K
    beta: float  # weight of the contrast
    tau: float  # temperature of the contrast

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, not {value}")
        if self.tau == 0 or self.E < 1:
            raise ValueError(f"tau must be above 0 and E at least 1, not {self.tau} and {self.E}")

    @property
    def vacuous(self) -> bool:
        """Whether no learning rate makes Theorem 1's right side negative.

        True for all constants that one problem can have: S <= E G^2, so that each of its terms is at least 0.
        """
        return largest_rate(self, "derived") is None


class Aggregation(NamedTuple):
    """Lemma 2's terms: by how much the loss can rise between the end of a round and the start of the next one."""

    extractor: float  # the client's extractor is replaced by the average
    alignment: float  # the prototype of each sample's class moved
    contrast: float  # all prototypes moved


def lemma1(constants: Constants, rate: float) -> float:
    """Upper bound of the expected change of the loss in E steps of one rate.

    -(eta - L1 eta^2 / 2) S + L1 E eta^2 sigma^2 / 2: the descent lemma of stochastic gradient descent. It holds, and is
    negative below `descent_rate`.
    """
    c = constants
    return -(rate - c.L1 * rate**2 / 2) * c.S + c.L1 * c.E * rate**2 * c.sigma**2 / 2


def descent_rate(constants: Constants) -> float:
    """The rate below which Lemma 1 is negative: 2 S / (L1 (S + E sigma^2)); infinite for a loss without curvature."""
    c = constants
    slope = c.L1 * (c.S + c.E * c.sigma**2)
    return 2 * c.S / slope if slope else math.inf


def lemma2(constants: Constants, rate: float) -> Aggregation:
    """Upper bounds of the expected change of the loss by the aggregation.

    extractor: eta E G^2 + L1 eta^2 E^2 G^2 / 2. Holds for the clients' weighted mean, because no client moves by more
    than eta E G; one client alone can be twice as far from the average, which doubles the first part and takes the
    second one four times.
    alignment: 2 alpha L2 eta^2 E^2 G^2. Holds where the embedding is at most half as far from its old prototype as that
    prototype moves by. In general |f - P'|^2 - |f - P|^2 can reach |P' - P|^2 + 2 |f - P| |P' - P|.
    contrast: 2 beta / tau, which is `contrast_range` without its logarithm.
    """
    c = constants
    path = rate * c.E * c.G  # longest way that the weights can go in a round
    return Aggregation(
        extractor=path * c.G + c.L1 * path**2 / 2,
        alignment=2 * c.alpha * c.L2 * path**2,
        contrast=2 * c.beta / c.tau,
    )


def quadratic(constants: Constants) -> tuple[float, float, float]:
    """Theorem 2's A = L1 (E sigma^2 + E^2 G^2 + S) / 2 + 2 alpha L2 E^2 G^2, B = S - E G^2 and C = 2 beta / tau."""
    c = constants
    A = c.L1 * (c.E * c.sigma**2 + c.E**2 * c.G**2 + c.S) / 2 + 2 * c.alpha * c.L2 * c.E**2 * c.G**2
    return A, c.S - c.E * c.G**2, 2 * c.beta / c.tau


def theorem1(constants: Constants, rate: float) -> float:
    """Upper bound of the expected change of the loss from one round's start to the next: A eta^2 - B eta + C.

    The sum of both lemmas.
    """
    A, B, C = quadratic(constants)
    return A * rate**2 - B * rate + C


def admissible_rates(constants: Constants, convention: Convention = "paper") -> tuple[float, float] | None:
    """The rates that Theorem 2 admits, from the lower to the larger root of its quadratic.

    Args:
        convention: "paper" solves A eta^2 + B eta + C <= 0, as the theorem is printed; "derived" solves
            A eta^2 - B eta + C <= 0, which is what Theorem 1 gives.

    Returns:
        None where the discriminant is negative, where the larger root is not positive, and where A is 0, so that there
        is no quadratic. A lower root above 0 says that smaller rates are excluded as well.
    """
    if convention not in ("paper", "derived"):
        raise ValueError(f"convention must be 'paper' or 'derived', not {convention!r}")
    A, B, C = quadratic(constants)
    linear = B if convention == "paper" else -B
    discriminant = linear**2 - 4 * A * C
    if A == 0 or discriminant < 0:
        return None
    larger = (-linear + math.sqrt(discriminant)) / (2 * A)
    return (C / (A * larger), larger) if larger > 0 else None  # the product of the roots is C / A


def largest_rate(constants: Constants, convention: Convention = "paper") -> float | None:
    """Theorem 2's largest learning rate; see `admissible_rates`."""
    rates = admissible_rates(constants, convention)
    return rates[1] if rates else None


def smallest_gradient_bound(constants: Constants) -> float:
    """The G that Theorem 2 needs as printed: sqrt(4 beta / tau (L1 + 4 alpha L2)). Necessary, not sufficient.

    From B^2 >= 4 A C with |B| <= E G^2 and A >= E^2 G^2 (L1 / 2 + 2 alpha L2). So a *larger* bound on the gradients
    makes the condition easier to meet, which no statement about convergence should.
    """
    c = constants
    return math.sqrt(4 * c.beta / c.tau * (c.L1 + 4 * c.alpha * c.L2))


def contrast_range(tau: float, num_classes: int, width: float = 2.0) -> float:
    """How far apart two values of one sample's contrast can be.

    R(tau, C) = log((1 + (C - 1) e^(width / tau)) / (1 + (C - 1) e^(-width / tau))), from the sample's own cosine least
    and all others greatest to the opposite. At most width / tau + log(C - 1).

    Args:
        width: of the interval that the cosines lie in; 2, and 1 where embeddings have no negative element (ReLU).
    """
    others = math.log(num_classes - 1) if num_classes > 1 else -math.inf
    return _softplus(others + width / tau) - _softplus(others - width / tau)


def _softplus(value: float) -> float:
    """log(1 + e^value), without overflow."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
