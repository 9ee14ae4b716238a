"""How far two correct programs may differ: tolerances derived from float32's rounding and the depth of the model.

u = 2^-24 is half of float32's epsilon. A sum of n terms in another order differs by about sqrt(n) u of the size of its
terms (a random walk of roundings; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2), and
along a path of d such sums the differences add up at worst:

    gradient   2 d u sqrt(max(n, tokens))     d forward and d backward; a weight's gradient is a sum over all tokens
    loss         d u sqrt(n / tokens) + u sqrt(tokens)     the forward path alone, and a mean over tokens that err apart
    moments    the gradient's, twice that for squares
    parameters the update is m / (sqrt(v) + e): its slope in the gradient is at most 2/e, so relative to how far a
               weight moved the error is 2 (1 + G/e) times the gradient's, with G the largest entry of the gradient
               (SGD's update is the gradient, over a norm that errs as much where it is clipped: 2); and a stored
               weight is itself rounded, to u of its size, once a step

An error is the largest difference in a tensor over the largest entry of that tensor (for parameters: over the largest
movement), but never over less than FLOOR of the largest in the model: where all contributions cancel (the gradient of
a key's bias is exactly 0) only rounding is left.
"""

import math
from dataclasses import dataclass

from meshtrain.model import ModelConfig

U = 2.0**-24
FLOOR = 0.01

# Sums and roundings in sequence: a layer has two norms, projections, scores, softmax, values, two matrices of the MLP,
# an activation and two residual sums; then embedding, final norm, head, log-sum-exp and the mean over tokens.
STEPS_PER_LAYER, STEPS_OUTSIDE = 16, 6

# A quintic iteration of slope 3.4445 at 0, five times: how much Muon's orthogonalisation magnifies a difference.
MUON_SLOPE = 3.4445**5


@dataclass(frozen=True)
class Tolerances:
    """The largest errors that rounding explains, for each thing compared, after `num_steps` steps."""

    loss: float
    gradient: float
    parameter: float
    moment: float


def tolerances(
    model: ModelConfig,
    num_tokens: int,
    num_counted: float,
    num_steps: int,
    largest_gradient: float,
    epsilon: float,
    optimizer: str = "adamw",
) -> Tolerances:
    """From the sizes of the model, the tokens of a global batch (all, and the counted ones), and G and e from above."""
    depth = STEPS_PER_LAYER * model.num_layers + STEPS_OUTSIDE
    widest = max(model.embed, model.mlp, model.vocab, model.num_heads * model.head_dim, model.max_length)
    gradient = 2 * depth * U * math.sqrt(max(widest, num_tokens))
    slope = 2.0 if optimizer == "sgd" else 2 * (1 + largest_gradient / epsilon)
    slope = max(slope, MUON_SLOPE) if optimizer == "muon" else slope
    return Tolerances(
        loss=U * (depth * math.sqrt(widest / num_counted) + math.sqrt(num_counted)),
        gradient=gradient,
        parameter=slope * num_steps * gradient,
        moment=2 * num_steps * gradient,
    )
