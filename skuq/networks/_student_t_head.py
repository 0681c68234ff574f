"""Head with a Student's t distribution for each output.

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._constants import LOG_SQRT_2PI
from skuq._registry import saved_as
from skuq.networks._likelihood_head import LikelihoodHead, softplus


@saved_as("networks.StudentTHead")
@dataclass(frozen=True)
class StudentTHead(LikelihoodHead):
    """Location, scale and degrees of freedom of Student's t, for each of several outputs.

    The network has 3 m raw outputs for m outputs: the locations, then m numbers r with
    scale ``softplus(r) + min_scale``, then m numbers r with ``min_df + softplus(r)`` degrees
    of freedom. Outliers have less influence than with a normal distribution.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    min_scale : float, default=1e-3
        Smallest scale, in units of the standardised y; see `GaussianHead`.
    min_df : float, default=2.1
        Smallest number of degrees of freedom. It must be above 2, so that the variance is finite;
        with the default it is at most 21 times the squared scale.

    Raises
    ------
    ValueError
        If min_df is not above 2.

    References
    ----------
    Lange, Little and Taylor (1989), "Robust Statistical Modeling Using the t Distribution".

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import StudentTHead
    >>> loc, scale, df = StudentTHead().distribution(np.zeros((1, 3)))
    >>> loc, scale.round(3), df.round(3)
    (array([[0.]]), array([[0.694]]), array([[2.793]]))
    """

    n_outputs: int = 1
    min_scale: float = 1e-3
    min_df: float = 2.1

    def __post_init__(self):
        if not self.min_df > 2:
            raise ValueError(
                f"min_df must be above 2, so that the variance is finite. Got {self.min_df}."
            )

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return 3 * self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any, Any]:
        """Compute locations, scales and degrees of freedom, each (.., n_outputs), from raw."""
        m = self.n_outputs
        loc, r, d = raw[..., :m], raw[..., m : 2 * m], raw[..., 2 * m :]
        return loc, softplus(r, xp) + self.min_scale, softplus(d, xp) + self.min_df

    def moments(self, raw, xp=np):
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        loc, scale, df = self.distribution(raw, xp)
        return loc, scale * xp.sqrt(df / (df - 2))

    def log_densities(self, y, raw, xp=np):
        """Compute log densities (.., n_outputs) from y (.., n_outputs) and raw (.., n_raw)."""
        loc, scale, df = self.distribution(raw, xp)
        tail = 0.5 * (df + 1) * xp.log1p(xp.square((y - loc) / scale) / df)
        return _log_t_constant(df, xp) - xp.log(scale) - tail


def _log_t_constant(df, xp):
    """Compute the log density of Student's t at 0, up to the scale.

    It is log(gamma(x + 1/2) / gamma(x)) - log(x) / 2 - log(sqrt(2 pi)), with x = df / 2. The
    difference of two log gamma functions would lose all digits in single precision, and not every
    backend has these functions. Therefore the ratio is expanded in Stirling's series, in which
    the large terms cancel, at x + 4, where the series is accurate to 1e-9 for df > 2.
    """
    x = 0.5 * df
    shifted = x + 4
    inverse = 1 / xp.square(shifted)
    # Tricomi and Erdelyi (1951): log(gamma(x + 1/2) / gamma(x)) - log(x) / 2 by powers of 1 / x.
    series = 1 / 192 - inverse * (1 / 640 - inverse * (17 / 14336 - inverse * 31 / 18432))
    ratio = (-1 / 8 + inverse * series) / shifted + 0.5 * xp.log1p(4 / x)
    # Go back from x + 4 to x: gamma(x + 1/2) / gamma(x) is that of x + 1, times x / (x + 1/2).
    for k in range(4):
        ratio = ratio - xp.log1p(0.5 / (x + k))
    return ratio - LOG_SQRT_2PI
