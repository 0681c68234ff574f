"""Records of predictive distributions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_calibrated": ["ConformalMixture", "RecalibratedMixture"],
        "_categorical_mixture": ["CategoricalMixture"],
        "_gaussian_mixture": ["GaussianMixture"],
        "_mixture": ["Mixture"],
        "_nested_gaussian": ["NestedGaussianMixture"],
        "_normal": ["EpistemicNormal"],
        "_posterior": ["Posterior"],
        "_quantile_mixture": ["QuantileMixture"],
        "_student_t": ["StudentTMixture"],
        "_transformed": ["TransformedMixture"],
        "_two_piece": ["TwoPieceNormal"],
        "_uncertainty": ["ClassUncertainty", "Uncertainty"],
    },
)
