"""The project's named tensor dimensions, spelled once, with the letter that stands for each in array names.

A weight declares its dims, an activation names them where it is constrained, and a layout maps them to mesh axes.
`q_BTNH` is therefore an array of dims (batch, length, heads, head_dim). Under `parallel/` a lower-case letter is
this device's slice of the dim: `k_BsKH`. Two letters stand for the same dim where one array has it twice: S is the
length on the key side, and W the head_dim of values where it may differ from that of keys.

An activation may have dims of other names, too ("slot", "whole", "choice"): no layout has a row for them, so they stay
whole on every device.
"""

from dataclasses import dataclass

from meshtrain.errors import InputError, nearest


@dataclass(frozen=True)
class Dim:
    """One named dimension: `letter` in array names, `meaning` in tables and errors."""

    letter: str
    meaning: str
    weight: bool  # whether weights can have it (only these make sense in the rows of params, grads, optimizer)


DIMS: dict[str, Dim] = {
    "batch": Dim("B", "sequences of the global batch", weight=False),
    "length": Dim("T", "positions of a sequence inside attention and MLP", weight=False),
    "stream": Dim("T", "positions of a sequence in the residual stream", weight=False),
    "embed": Dim("D", "width of the residual stream", weight=True),
    "heads": Dim("N", "query heads", weight=True),
    "kv_heads": Dim("K", "key and value heads", weight=True),
    "head_dim": Dim("H", "width of one head", weight=True),
    "query_rank": Dim("Q", "latent that queries are made from", weight=True),
    "kv_rank": Dim("R", "latent that keys and values are made from", weight=True),
    "latent": Dim("R", "either latent, in the weights that make heads of it", weight=True),
    "rope_dim": Dim("J", "rotated part of a key, the same for all heads", weight=True),
    "mlp": Dim("F", "width of the MLP's hidden layer", weight=True),
    "vocab": Dim("V", "entries of the vocabulary", weight=True),
    "position": Dim("P", "rows of a learned position table", weight=True),
    "expert": Dim("E", "experts of a layer", weight=True),
    "expert_embed": Dim("D", "width of the residual stream, of the experts' weights", weight=True),
    "expert_mlp": Dim("F", "width of one expert's hidden layer", weight=True),
    "router": Dim("E", "experts of a layer, as the router scores them", weight=True),
    "layers": Dim("L", "stacked layers", weight=True),
    "dense_layers": Dim("L", "stacked layers without experts, in a model whose other layers have them", weight=True),
}

STACKS = ("layers", "dense_layers")  # of stacked layers: the first dim of a weight that has one
WIDTHS = ("embed", "expert_embed")  # as wide as the residual stream

# Where a class of arrays has no row for such a dim, the row of this one holds: what cuts MLPs cuts experts, and what
# cuts the weights that read the residual stream cuts those that read a latent.
INHERITED = {"expert_embed": "embed", "expert_mlp": "mlp", "latent": "embed"}


def check_dim(name: str, where: str) -> str:
    """`name` itself if it is a dim; else an InputError that names `where` (a config key) and the nearest dim."""
    if name not in DIMS:
        raise InputError(f"{where}: there is no dim {name!r}.{nearest(name, DIMS)} The dims are: {' '.join(DIMS)}.")
    return name
