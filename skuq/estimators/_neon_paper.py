"""The NEON paper's settings, by problem (sections 6.1 to 6.4)."""

from __future__ import annotations

_SETTINGS: dict[str, dict] = {
    "pollutants": {
        "encoder_units": (64, 64),
        "latent": 64,
        "decoder_units": (64, 64),
        "epinet_units": (32, 32),
        "prior_units": (5, 5),
        "prior_scale": 0.75,
        "steps": 12_000,
        "batch_size": 256,
        "learning_rate": 3e-4,
        "schedule": "exponential",
        "final_lr_factor": 0.75**12,
        "clip_norm": 0.5,
    },
    "brusselator": {
        "encoder_units": (64, 64),
        "latent": 96,
        "decoder_units": (64, 64, 64),
        "fourier_scale": 5.0,
        "epinet_units": (32, 32),
        "prior_units": (5, 5),
        "prior_scale": 1.0,
        "steps": 4_000,
        "batch_size": None,
        "learning_rate": 1e-3,
        "schedule": "exponential",
        "final_lr_factor": 0.8**4,
        "clip_norm": None,
    },
    "interferometer": {
        "encoder_units": (64, 64, 64, 64),
        "latent": 96,
        "decoder_units": (128,) * 6,
        "fourier_scale": 10.0,
        "epinet_units": (64, 64, 64),
        "prior_units": (8, 8),
        "prior_scale": 1.0,
        "output_map": "bounded",
        "steps": 15_000,
        "batch_size": 16_384,
        "learning_rate": 5e-2,
        "schedule": "cosine",
        "final_lr_factor": 0.06,
        "warmup": 0.02,
        "clip_norm": 5e-7,
    },
    "cell_towers": {
        "encoder_units": (64,),
        "latent": 192,
        "decoder_units": (64,) * 6,
        "fourier_scale": 15.0,
        "epinet_units": (64, 64, 64),
        "prior_units": (5, 5),
        "prior_scale": 0.5,
        "output_map": "decaying",
        "steps": 12_000,
        "batch_size": 2_500,
        "learning_rate": 8e-3,
        "schedule": "cosine",
        "final_lr_factor": 0.06,
        "warmup": 0.02,
        "clip_norm": 5e-5,
    },
}


def paper_settings(name: str) -> dict:
    """Look up the parameters of `NEONRegressor` for one of the paper's problems.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    if name not in _SETTINGS:
        raise ValueError(f"`name` must be one of {sorted(_SETTINGS)}. Got {name!r}.")
    return {"decoder": "split", "factorize": True, "n_index": 16, **_SETTINGS[name]}
