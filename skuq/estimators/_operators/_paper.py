"""The NEON paper's settings, by problem (sections 6.1 to 6.4).

The number of steps grows with the number of functions, as in the authors' code. Their optimiser is
Optax' Adam, whose epsilon is 1e-8. The pollutants' twelve columns have a scale each. Clips of
gradients are in the table as the authors give them; clip and epsilon of two problems are then
translated to the scale of skuq's loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from skuq._utils._records import saved_as


@saved_as("estimators.NEONRegressor.GrowingSteps")
@dataclass(frozen=True)
class GrowingSteps:
    """Number of training steps that grows linearly with the number of functions.

    Parameters
    ----------
    first : int
        Number of steps for `n_first` functions, and for fewer.
    n_first : int
    growth : float
        Further steps for each further function, as a share of `first`.
    """

    first: int
    n_first: int
    growth: float

    def __call__(self, n_functions: int) -> int:
        return round(self.first * (1 + self.growth * max(0, n_functions - self.n_first)))


@saved_as("estimators.NEONRegressor.DecayEvery")
@dataclass(frozen=True)
class DecayEvery:
    """Last share of a learning rate that falls exponentially, by `factor` in `every` steps."""

    factor: float
    every: int

    def __call__(self, n_steps: int) -> float:
        return self.factor ** (n_steps / self.every)


#: Parameters of `NEONRegressor`, for `set_params`, and those that all problems share.
COMMON = {"prior": "epinet", "noise_std": 0.0, "training__epsilon": 1e-8}
SETTINGS: dict[str, dict] = {
    "pollutants": {
        "network__encoder_units": (64, 64),
        "network__latent": 64,
        "network__decoder_units": (64, 64),
        "prior__units": (32, 32),
        "prior__prior_units": (5, 5),
        "prior__scale": 0.75,
        "batch_size": 256,
        "learning_rate": 3e-4,
        "training__steps": GrowingSteps(12_000, 5, 1 / 35),
        "training__schedule": "exponential",
        "training__final_lr_factor": DecayEvery(0.75, 1000),
        "training__clip_norm": 0.5,
        "standardize": "columns",
    },
    "brusselator": {
        "network__encoder_units": (64, 64),
        "network__latent": 96,
        "network__decoder_units": (64, 64, 64),
        "network__fourier_scale": 5.0,
        "prior__units": (32, 32),
        "prior__prior_units": (5, 5),
        "prior__scale": 1.0,
        "batch_size": None,
        "learning_rate": 1e-3,
        "training__steps": GrowingSteps(4_000, 5, 2 / 30),
        "training__schedule": "exponential",
        "training__final_lr_factor": DecayEvery(0.8, 1000),
        "training__clip_norm": None,
    },
    "interferometer": {
        "network__encoder_units": (64, 64, 64, 64),
        "network__latent": 96,
        "network__decoder_units": (128,) * 6,
        "network__fourier_scale": 10.0,
        "prior__units": (64, 64, 64),
        "prior__prior_units": (8, 8),
        "prior__scale": 1.0,
        "output_map": "bounded",
        "batch_size": 16_384,
        "learning_rate": 5e-2,
        "training__steps": GrowingSteps(15_000, 15, 0.2 / 85),
        "training__schedule": "cosine",
        "training__final_lr_factor": 0.06,
        "training__warmup": 0.02,
        "training__clip_norm": 5e-7,
    },
    "cell_towers": {
        "network__encoder_units": (64,),
        "network__latent": 192,
        "network__decoder_units": (64,) * 6,
        "network__fourier_scale": 15.0,
        "prior__units": (64, 64, 64),
        "prior__prior_units": (5, 5),
        "prior__scale": 0.5,
        "output_map": "decaying",
        "batch_size": 2_500,
        "learning_rate": 8e-3,
        "training__steps": GrowingSteps(12_000, 20, 0.2 / 150),
        "training__schedule": "cosine",
        "training__final_lr_factor": 0.375,
        "training__warmup": 0.025,
        "training__clip_norm": 5e-5,
    },
}


# The authors' loss, in units of skuq's, on the problems' initial designs. Theirs sums half the
# squared error over a batch of pairs and over components, and multiplies it by the mean of
# 1 / |s|^2 of the functions s as they are; skuq's is a mean, of standardised values. Near the
# clips of these two problems the scale of the loss decides which gradients are clipped, and how
# much epsilon damps. The pollutants' ratio grows with the number of functions, from 0.05 to 0.5.
LOSS_RATIOS = {"interferometer": 0.013, "cell_towers": 1.5e-4}
