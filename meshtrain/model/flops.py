"""How many parameters a model has, and how many floating-point operations it needs for a token.

Convention of model FLOPs (the one of MFU): a multiply-add counts 2; the backward pass is twice the forward pass; causal
attention is counted at what its mask leaves, half of the square; what is done again (remat) and what is not a matrix
product (norms, softmax, the embedding lookup) is not counted; the output matrix is. Of experts those count that a token
is sent to.
"""

from meshtrain.layout import ArraySpec, named_specs
from meshtrain.layout.dims import STACKS
from meshtrain.model.config import ModelConfig
from meshtrain.model.decoder import describe


def count_parameters(config: ModelConfig) -> int:
    """Number of stored parameters; a tied output matrix counts once."""
    return sum(spec.size for _, spec in named_specs(describe(config)))


def count_active_parameters(config: ModelConfig) -> int:
    """Number of parameters on one token's way through the model: all but the experts that it is not sent to. The whole
    embedding table counts, as in published figures."""
    return sum(_active(spec, config) for _, spec in named_specs(describe(config)))


def matrix_parameters(config: ModelConfig) -> int:
    """Parameters that each token is multiplied with: the matrices of all layers and the output matrix."""
    matrices = 0
    for path, spec in named_specs(describe(config)):
        if is_matrix(path, spec):
            matrices += _active(spec, config)
    return matrices + config.vocab * config.embed


def is_matrix(path: str, spec: ArraySpec) -> bool:
    """Whether a weight is one that the tokens of a layer are multiplied with."""
    return spec.dims[0] in STACKS and len(spec.dims) > 2 and not path.endswith("_bias")


def _active(spec: ArraySpec, config: ModelConfig) -> int:
    """How many numbers of a weight one token meets: of experts the share that it is sent to."""
    if config.moe is None or "expert" not in spec.dims:
        return spec.size
    return spec.size // config.moe.num_experts * config.moe.top_k


def attention_flops_per_token(config: ModelConfig, length: int) -> float:
    """Forward FLOPs of scores and weighted values of all layers, mean over the positions of a full sequence.

    A query at position i sees min(i, window) keys; summed over the sequence as the area length^2 / 2, less the
    triangle that a window cuts off.
    """
    total = 0.0
    for layer in range(config.num_layers):
        window = min(config.layer_window(layer) or length, length)
        seen = (length * window - window * window / 2) / length
        total += 2 * config.num_heads * (config.head_dim + config.value_dim) * seen
    return total


def model_flops_per_token(config: ModelConfig, length: int) -> float:
    """FLOPs of a training step (forward and backward) per token, for sequences of one document of `length` tokens."""
    return 3 * (2 * matrix_parameters(config) + attention_flops_per_token(config, length))
