"""How a configuration becomes a member: recipes, compiled programs, the trainer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_checks": ["build_checked"],
        "_draws": ["predict_draws"],
        "_engine": ["train_member", "train_stack"],
        "_predict": ["predict_members"],
        "_recipe": ["Recipe"],
        "_trainer": ["MemberRefitter", "MemberTrainer"],
        "_weights": ["draw_variables", "keras_model"],
    },
)
