"""What the residual stream sends: into the sublayers and out of them, at the embedding, at the loss, between stages.

Where the stream is cut as the length is, every sublayer ends in an all-reduce over the axes of its hidden dim
(Megatron's tensor parallelism). Where it is cut over these axes too, that is a reduce-scatter, and an all-gather of the
same bytes stands on the way in.
"""

import numpy as np

from meshtrain.cost.collective import Collective
from meshtrain.cost.traffic.setting import Setting
from meshtrain.cost.traffic.turns import Passes
from meshtrain.parallel.cross_entropy import num_chunks
from meshtrain.parallel.shard import without

FLOAT32 = np.dtype(np.float32)


def layer_stream(setting: Setting) -> list[Collective]:
    """Two sublayers a layer: attention with the axes of its heads, the MLP with those of its hidden layer."""
    turns, remat = setting.turns, setting.place.layout.remat
    # What a remat policy keeps need not be sent again: the layer's end never, the stream between only where it is lost.
    found: list[Collective] = []
    for name, hidden, passes in (("attention", "heads", turns.layers), *_mlps(setting)):
        outward_again = passes.again if turns.replays or (name == "attention" and remat in ("names", "full")) else 0
        found += _into(setting, passes.forward, "forward", f"stream into {name}")
        found += _into(setting, passes.again, "backward", f"stream into {name}, again")
        found += _out_of(setting, hidden, passes.forward, "forward", f"stream out of {name}")
        found += _out_of(setting, hidden, outward_again, "backward", f"stream out of {name}, again")
        found += _into(setting, passes.backward, "backward", f"gradient into {name}")
        found += _out_of(setting, hidden, passes.backward, "backward", f"gradient out of {name}")
    return found


def _mlps(setting: Setting) -> list[tuple[str, str, Passes]]:
    """(name, dim of the hidden layer, passes) of a layer's MLP; beside experts, of those that all tokens share."""
    moe, turns = setting.config.model.moe, setting.turns
    if moe is None:
        return [("mlp", "mlp", turns.stack)]
    return [("mlp", "mlp", turns.dense), *[("shared experts", "mlp", turns.stack)] * (moe.num_shared > 0)]


def _into(setting: Setting, count: int, phase: str, why: str) -> list[Collective]:
    axes = without(setting.axes["stream"], setting.axes["length"])
    return setting.make("all_gather", axes, setting.hidden, count, phase, "stream", why)


def _out_of(setting: Setting, hidden: str, count: int, phase: str, why: str) -> list[Collective]:
    axes = without(setting.axes[hidden], *setting.tokens)
    scattered = tuple(axis for axis in axes if axis in setting.axes["stream"])
    held = setting.hidden
    found = setting.make("reduce_scatter", scattered, held, count, phase, "stream", why)
    held //= setting.place.size(scattered)
    return found + setting.make("all_reduce", without(axes, scattered), held, count, phase, "", why)


def ends(setting: Setting) -> list[Collective]:
    """The embedding and the loss over a cut vocabulary, and the gradient of both tables' tokens."""
    turns, vocab = setting.turns, setting.vocab
    scatters = bool(vocab) and setting.axes["stream"] == setting.axes["length"] + vocab
    hidden = setting.hidden
    pipelined = setting.place.layout.pipeline is not None
    kind = "reduce_scatter" if scatters else "all_reduce"
    dim = "stream" if scatters else ""
    gathered = without(setting.axes["stream"], setting.axes["length"])
    loss = "backward" if pipelined else "forward"  # a pipeline's loss is part of its backward op
    found = setting.make(kind, vocab, hidden, turns.embed, "forward", dim, "rows of the embedding")
    why = "gradient of the embedding"
    found += setting.make("all_gather", gathered, hidden, turns.table, "backward", "stream", why)
    found += setting.make("all_gather", gathered, hidden, turns.head, loss, "stream", "stream into the loss")
    found += setting.make(kind, vocab, hidden, turns.head, loss, dim, "gradient of the loss")
    width = setting.config.model.embed
    here = setting.activation((setting.rows, setting.length), ("batch", "length"), np.dtype(np.int8))  # tokens
    chunks = num_chunks(here, width)
    chunk = -(-here // chunks) * FLOAT32.itemsize
    times = turns.head * chunks
    found += setting.make("all_reduce", vocab, chunk, times, loss, "", "largest logit")
    found += setting.make("all_reduce", vocab, chunk, 2 * times, loss, "", "sum of exponentials and the label's logit")
    return found


def boundaries(setting: Setting) -> list[Collective]:
    """What stages of a pipeline send each other."""
    axes, turns = setting.axes["layers"] if setting.place.layout.pipeline else (), setting.turns
    return setting.make(
        "permute", axes, setting.boundary, turns.sends, "forward", "layers", "output of a piece"
    ) + setting.make("permute", axes, setting.boundary, turns.answers, "backward", "layers", "gradient of its input")
