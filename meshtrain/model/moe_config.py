"""`MoEConfig`: what a mixture of experts computes: how tokens choose, how much a choice counts, which losses steer it.

It says nothing of where experts live or how tokens reach them. A value that makes no sense is an InputError that names
the field as `model.moe.<field>`, with the numbers and a value that would work.
"""

from dataclasses import dataclass

from meshtrain.errors import InputError, one_of, whole_number

ROUTERS = ("softmax", "sigmoid")
BALANCES = ("batch", "row")


@dataclass(frozen=True)
class MoEConfig:
    """Experts in place of the MLP of a layer: each token goes to the `top_k` experts that score highest (router.py)."""

    num_experts: int
    top_k: int  # experts that a token goes to
    mlp: int  # width of one expert's hidden layer
    router: str = "softmax"  # scores: a softmax over all experts, or each expert's own sigmoid (DeepSeek-V3)
    normalized: bool = True  # whether the weights of a token's experts are divided by their sum
    scaling: float = 1.0  # factor on these weights, after that division (DeepSeek-V3: 2.5)
    num_groups: int = 1  # experts are chosen within the best groups of neighbouring experts only ..
    top_groups: int = 1  # .. of which there are this many for each token
    bias: bool = False  # a bias on the scores by which experts are chosen, and on nothing else (auxiliary-loss-free)
    bias_rate: float = 0.001  # how far the bias of a loaded expert goes down, of an idle one up, in each step
    balance_loss: float = 0.0  # weight of the balance loss (losses.py) of each layer
    balance_over: str = "batch"  # over which tokens its statistic is taken: the global batch, or each row for itself
    z_loss: float = 0.0  # weight of the squared log-sum-exp of the router's logits, of each layer
    num_shared: int = 0  # experts that every token goes to: one MLP of width num_shared * mlp
    first_dense: int = 0  # so many first layers have an MLP of width `model.mlp` instead
    every: int = 1  # of the layers behind them every n-th has experts, the others an MLP

    def __post_init__(self) -> None:
        for name in ("num_experts", "top_k", "mlp", "num_groups", "top_groups", "every"):
            whole_number(f"model.moe.{name}", getattr(self, name))
        for name in ("num_shared", "first_dense"):
            whole_number(f"model.moe.{name}", getattr(self, name), 0)
        one_of("model.moe.router", self.router, ROUTERS)
        one_of("model.moe.balance_over", self.balance_over, BALANCES)
        for name in ("bias_rate", "balance_loss", "z_loss"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"model.moe.{name}: {getattr(self, name)} must be at least 0 and finite; 0 is off.")
        if not self.scaling > 0:
            raise InputError(f"model.moe.scaling: {self.scaling} is not above 0; 1.0 is the default.")
        if self.top_k > self.num_experts:
            raise InputError(
                f"model.moe.top_k: a token cannot go to {self.top_k} different experts, there are only"
                f" {self.num_experts} (model.moe.num_experts). model.moe.top_k={self.num_experts} would work."
            )
        self._check_groups()

    @property
    def group_size(self) -> int:
        """Experts of a group."""
        return self.num_experts // self.num_groups

    def num_layers(self, of_model: int) -> int:
        """Layers with experts of a model of so many layers."""
        return (of_model - self.first_dense) // self.every

    def _check_groups(self) -> None:
        experts, groups = self.num_experts, self.num_groups
        if experts % groups:
            near = max(n for n in range(1, groups) if experts % n == 0)
            raise InputError(
                f"model.moe.num_groups: {experts} experts (model.moe.num_experts) do not divide into {groups} groups."
                f" model.moe.num_groups={near} would work."
            )
        if self.top_groups > groups:
            raise InputError(
                f"model.moe.top_groups: {self.top_groups} of {groups} groups (model.moe.num_groups) cannot be chosen."
                f" model.moe.top_groups={groups} would work."
            )
        if self.top_k > self.top_groups * self.group_size:
            enough = -(-self.top_k // self.group_size)
            raise InputError(
                f"model.moe.top_k: {self.top_k} experts cannot be chosen out of {self.top_groups} groups"
                f" (model.moe.top_groups) of {self.group_size} experts each. model.moe.top_groups={enough} would work."
            )


def check_pattern(moe: MoEConfig, num_layers: int, window_period: int, mlp_bias: bool) -> None:
    """InputError where the layers with experts do not fit a model of so many layers and such windows and biases."""
    behind = num_layers - moe.first_dense
    if behind < moe.every or behind % moe.every:
        fitting = min(n for n in range(1, moe.every + 1) if behind >= n and behind % n == 0) if behind > 0 else 1
        raise InputError(
            f"model.moe.every: of {num_layers} layers (model.num_layers) {max(behind, 0)} are behind the"
            f" {moe.first_dense} dense ones (model.moe.first_dense), and that is no multiple of {moe.every}."
            f" model.moe.every={fitting} {'with model.moe.first_dense=0 ' if behind <= 0 else ''}would work."
        )
    if window_period > 1 and (moe.first_dense or moe.every > 1):
        raise InputError(
            f"model.window_layers: a pattern of {window_period} layers beside model.moe.first_dense={moe.first_dense}"
            f" and model.moe.every={moe.every} is not supported; a pattern of one layer would work, or experts in every"
            " layer."
        )
    if mlp_bias:
        raise InputError("model.mlp_bias: experts have no biases; model.mlp_bias=False would work.")
