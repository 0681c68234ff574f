"""What to train next; knows configurations and scores, not networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_evolution": ["AgeingEvolution"],
        "_forest": ["ForestOptimizer", "ForestSurrogate"],
        "_keras_tuner": ["AgEBOOracle", "OracleProposer"],
        "_limits": ["Limits"],
        "_loop": ["run_search"],
        "_nes": ["EnsembleEvolution", "Mutation", "ensemble_population"],
        "_proposers": ["Fixed", "Joint", "Listed", "Proposer", "RandomProposer"],
        "_slots": ["open_slots"],
        "_stacked": ["run_together"],
        "_strategies": ["STRATEGIES", "make_proposer", "pin"],
    },
)
