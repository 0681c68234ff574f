"""Searches: proposers, slots and the loop over trials; independent of networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_evolution": ["AgeingEvolution"],
        "_forest": ["ForestOptimizer", "ForestSurrogate"],
        "_keras_tuner": ["AgEBOOracle", "OracleProposer"],
        "_limits": ["Limits", "RunOptions"],
        "_loop": ["run_search", "run_trials"],
        "_nes": ["EnsembleEvolution", "Mutation", "ensemble_population"],
        "_proposers": ["Fixed", "FixedSequence", "Joint", "Proposer", "RandomProposer"],
        "_slots": ["open_slots"],
        "_stacked": ["run_together"],
        "_strategies": ["STRATEGIES", "make_proposer", "pin"],
    },
)
