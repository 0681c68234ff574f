"""Normal distributions with known aleatoric and epistemic variance, as NOMU predicts them.

Notation: n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skuq._registry import saved_as
from skuq.predictive._gaussian_mixture import GaussianMixture
from skuq.predictive._types import FILLED_IN, Factor, RandomSource, RowIndex
from skuq.predictive._uncertainty import Uncertainty


def check_location_and_stds(**arrays: ArrayLike) -> list[np.ndarray]:
    """Check a location and standard deviations, all of one shape (n,) or (n, m).

    The location comes first; the others must be non-negative and finite.
    """
    checked = {name: np.asarray(array, dtype=float) for name, array in arrays.items()}
    shapes = [array.shape for array in checked.values()]
    if len(shapes[0]) not in (1, 2) or len(set(shapes)) > 1:
        raise ValueError(
            f"{', '.join(arrays)} must all have shape (n_samples,) or (n_samples, n_outputs). "
            f"Got {', '.join(map(str, shapes))}."
        )
    for name, part in list(checked.items())[1:]:
        wrong = ~((part >= 0) & np.isfinite(part))  # True also for NaN
        if wrong.any():
            raise ValueError(f"{name} must be finite and at least 0. Got {part[wrong][0]}.")
    return list(checked.values())


@saved_as("predictive.EpistemicNormal")
@dataclass(frozen=True, eq=False, init=False)
class EpistemicNormal(GaussianMixture):
    """Normal distribution for every row, with known aleatoric and epistemic variance.

    It is a `GaussianMixture` of one member with the scale
    ``sqrt(aleatoric**2 + epistemic**2)``. Its variance has the two given parts, whereas the
    variance of other mixtures of one member is aleatoric only. Outputs are independent.

    Parameters
    ----------
    mean : ndarray of shape (n,) or (n, m)
        Means, in units of y.
    aleatoric, epistemic : ndarray of shape (n,) or (n, m)
        Standard deviations of the noise and of the model, in units of y. Either can be 0, but
        not both.

    Raises
    ------
    ValueError
        If shapes disagree, a part is negative or not finite, or both are 0.

    See Also
    --------
    GaussianMixture : Distribution whose parts of the variance come from an ensemble's members.
    TwoPieceNormal : Distribution of different width below and above the point prediction.

    References
    ----------
    Heiss et al., "NOMU", Eq. 59 (both parts) and section 2 (the model's part).

    Examples
    --------
    >>> import numpy as np
    >>> normal = EpistemicNormal(mean=np.zeros(1), aleatoric=np.ones(1), epistemic=np.ones(1))
    >>> normal.variance, normal.epistemic_variance
    (array([2.]), array([1.]))
    """

    aleatoric: np.ndarray = FILLED_IN
    epistemic: np.ndarray = FILLED_IN

    def __init__(self, mean: ArrayLike, aleatoric: ArrayLike, epistemic: ArrayLike) -> None:
        loc, noise, model = check_location_and_stds(
            mean=mean, aleatoric=aleatoric, epistemic=epistemic
        )
        with np.errstate(over="ignore"):
            total = np.hypot(noise, model)
        if not ((total > 0) & np.isfinite(total)).all():
            raise ValueError(
                "aleatoric and epistemic must not both be 0, and their root sum of squares must "
                f"be finite. It lies between {total.min()} and {total.max()}."
            )
        super().__init__(loc[None], total[None])
        vars(self).update(aleatoric=noise, epistemic=model)

    @property
    def mean(self) -> np.ndarray:
        """Means, of shape (n,) or (n, m), in units of y."""
        return self.loc[0]

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, as given, in squared units of y."""
        return self.aleatoric**2

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance of the model, as given, in squared units of y."""
        return self.epistemic**2

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, in units of y."""
        return self.scale[0]  # the root of the variance would lose scales whose square underflows

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Return the mean and the standard deviations by source.

        Parameters
        ----------
        ddof : {0, 1}, default=0
            Ignored, since a single model has no divisor to correct.
        """
        return Uncertainty(self.mean, self.aleatoric, self.epistemic, self.std)

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        return self.loc + self.scale * special.ndtri(levels)

    def scaled(self, factor: Factor) -> EpistemicNormal:
        """Multiply both standard deviations.

        Parameters
        ----------
        factor : float or ndarray of shape (m,)
            Positive factor, for all outputs or for each.
        """
        return EpistemicNormal(self.mean, factor * self.aleatoric, factor * self.epistemic)

    def rows(self, rows: RowIndex) -> EpistemicNormal:
        """Select rows by a slice or positions."""
        return EpistemicNormal(self.mean[rows], self.aleatoric[rows], self.epistemic[rows])

    def output(self, k: int) -> EpistemicNormal:
        """Select the marginal distribution of one of several outputs."""
        return EpistemicNormal(self.mean[..., k], self.aleatoric[..., k], self.epistemic[..., k])

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Draw jointly for all rows, to shape (n[, m], n_samples).

        Each draw uses, for each output, one standard normal number for the model and one for the
        noise, both shared by all rows. A draw is therefore a function of the input, as continuous
        as the mean and the two standard deviations.
        """
        rng = np.random.default_rng(rng)
        model, noise = rng.standard_normal((2, n_samples, 1, *self.loc.shape[2:]))
        draws = self.mean + self.epistemic * model + self.aleatoric * noise  # (n_samples, n[, m])
        return np.moveaxis(draws, 0, -1)
