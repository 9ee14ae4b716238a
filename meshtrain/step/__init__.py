"""How does it learn? One step: loss, gradients over microbatches, the optimizer's update, under any layout."""

from meshtrain.step.evaluate import make_eval_step
from meshtrain.step.optimizer import OptimizerConfig
from meshtrain.step.precision import Precision
from meshtrain.step.schedule import learning_rate
from meshtrain.step.state import TrainState, initial_state, state_shardings, state_specs
from meshtrain.step.train import StepConfig, make_train_step

__all__ = [
    "OptimizerConfig", "Precision", "StepConfig", "TrainState",
    "initial_state", "learning_rate", "make_eval_step", "make_train_step", "state_shardings", "state_specs",
]  # fmt: skip
