"""What is computed? A decoder whose weights declare their dims; it knows no mesh, no device count and no layout."""

from meshtrain.model.config import LatentConfig, ModelConfig, RopeScaling
from meshtrain.model.decoder import describe, hidden_states, initialize, loss_sums
from meshtrain.model.flops import count_active_parameters, count_parameters, model_flops_per_token
from meshtrain.model.moe_config import MoEConfig

__all__ = [
    "LatentConfig", "MoEConfig", "ModelConfig", "RopeScaling", "count_active_parameters", "count_parameters",
    "describe", "hidden_states", "initialize", "loss_sums", "model_flops_per_token",
]  # fmt: skip
