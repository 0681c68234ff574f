"""How a configuration becomes a member: recipes, jobs, compiled programs, the trainer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_checks": ["build_checked"],
        "_draws": ["predict_draws"],
        "_engine": ["TrainingRun"],
        "_job": ["TrainingJob", "TrainingState"],
        "_predict": ["predict_members"],
        "_recipe": ["Recipe"],
        "_train": ["train", "train_epochs", "train_member", "train_stack"],
        "_trainer": ["MemberRefitter", "MemberTrainer"],
        "_weights": ["draw_variables", "keras_model"],
    },
)
