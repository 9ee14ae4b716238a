"""What attention sends where the length is cut, by scheme: keys and values, their gradients, positions and segments.

Counts of a ring come from its schedule, which leaves out what the mask hides; sums of gradients travel in float32.
"""

import math

import numpy as np

from meshtrain.cost.collective import Collective
from meshtrain.cost.traffic.setting import Setting
from meshtrain.layout.exchange import exchange_axes
from meshtrain.layout.order import num_chunks
from meshtrain.parallel.attention.schedule import ring_schedule

FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)


def context_traffic(setting: Setting) -> list[Collective]:
    """Of all layers; nothing where the length is whole."""
    scheme = setting.place.layout.attention
    if not setting.axes["length"] or scheme == "local":
        return []
    remat, layers = setting.place.layout.remat, setting.turns.layers
    again = layers.again if setting.turns.replays or remat == "full" else 0  # other policies keep attention's result
    found: list[Collective] = []
    if scheme in ("ulysses", "usp"):
        found += _swap(setting, again)
    if scheme in ("ring", "usp"):
        found += _ring(setting, again)
    if scheme == "gather":
        found += _gather(setting)
    return found


def _keys(setting: Setting) -> int:
    """Bytes of a device's keys, before any exchange; values are as many."""
    model = setting.config.model
    dims = ("batch", "length", "kv_heads", "head_dim")
    return setting.activation((setting.rows, setting.length, model.num_kv_heads, model.head_dim), dims)


def _ids(setting: Setting) -> int:
    """Bytes of the positions and segments of a device's tokens."""
    return setting.activation((2, setting.rows, setting.length), ("unnamed", "batch", "length"), INT32)


def _passes(setting: Setting) -> int:
    """How often the forward pass sends what is the same in all layers: once for a stack of them. The compiler moves it
    out of the layers' loop, but not in a forward op that keeps nothing."""
    turns = setting.turns
    if setting.place.layout.pipeline is None:
        return setting.place.layout.accumulate
    return turns.layers.forward + turns.ticks if turns.replays else turns.sends


def _wide(setting: Setting) -> int:
    """How many times the bytes of a gradient's sum, float32, are those of what it is the gradient of."""
    return FLOAT32.itemsize // setting.config.precision.dtype.itemsize


def _gather(setting: Setting) -> list[Collective]:
    axes, layers, make = exchange_axes(setting.place).ring, setting.turns.layers, setting.make
    whole = 2 * _keys(setting) * setting.place.size(axes)
    ids = _ids(setting) * setting.place.size(axes)
    own_ids = 0 if setting.turns.replays else layers.backward  # (there the pass that is done again has them)
    return [
        *make("all_gather", axes, ids, _passes(setting), "forward", "length", "positions and segments, once"),
        *make("all_gather", axes, whole, layers.forward, "forward", "length", "keys and values"),
        # Where attention is done again, its gather and the backward pass's own are one to the compiler.
        *make("all_gather", axes, whole, layers.backward, "backward", "length", "keys and values, again"),
        *make("reduce_scatter", axes, _wide(setting) * whole, layers.backward, "backward", "length", "their gradients"),
        *make("all_gather", axes, ids, own_ids, "backward", "length", "positions and segments"),
    ]


def _ring(setting: Setting, again: int) -> list[Collective]:
    place, layers, model = setting.place, setting.turns.layers, setting.config.model
    axes, swap = exchange_axes(place)
    num_shards, chunks = num_chunks(place)
    held = 2 * _keys(setting) * _copies(setting) * (place.size(swap) if swap else 1) // max(place.size(swap), 1)
    found: list[Collective] = []
    period = len(model.window_layers)
    for step in range(period):
        schedule = ring_schedule(num_shards, chunks, setting.length, model.layer_window(step))
        num = len(schedule.steps)
        # Where the layer itself is done again, its ring and the backward pass's own are one to the compiler.
        repeated = again // period if setting.turns.replays else 0
        forward, backward = layers.forward // period, layers.backward // period
        make, ids = setting.make, _ids(setting) * (place.size(swap) if swap else 1)
        found += make("permute", axes, held, (num - 1) * forward, "forward", "length", "keys and values")
        found += make(
            "permute", axes, held, (num - 1) * (backward + repeated), "backward", "length", "keys and values, again"
        )
        found += make(
            "permute", axes, ids, (num - 1) * _passes(setting), "forward", "length", "positions and segments, once"
        )
        found += make("permute", axes, ids, (num - 1) * backward, "backward", "length", "positions and segments")
        sums = num if num > 1 else 0
        found += make("permute", axes, _wide(setting) * held, sums * backward, "backward", "length", "their gradients")
    return found


def _copies(setting: Setting) -> int:
    """Into how many copies key heads are multiplied where a swap has more devices than there are of them."""
    num = setting.place.size(exchange_axes(setting.place).swap)
    heads = setting.config.model.num_kv_heads // setting.place.num_shards("kv_heads")
    return num // math.gcd(num, heads)


def _swap(setting: Setting, again: int) -> list[Collective]:
    """Queries and the output as they are, keys and values with their copies; backward the gradient of each."""
    model, layers, make = setting.config.model, setting.turns.layers, setting.make
    axes = exchange_axes(setting.place).swap
    dims = ("batch", "length", "heads", "head_dim")
    queries = setting.activation((setting.rows, setting.length, model.num_heads, model.head_dim), dims)
    keys = _keys(setting) * _copies(setting)
    ids = _ids(setting) * setting.place.size(axes)
    found = make("all_gather", axes, ids, _passes(setting), "forward", "length", "positions and segments, once")
    repeated = 0 if setting.turns.replays else again
    found += make("all_gather", axes, ids, repeated, "backward", "length", "positions and segments, again")
    for phase, count in (("forward", layers.forward), ("backward", layers.backward + again)):
        found += make("all_to_all", axes, queries, count, phase, "heads", "queries")
        found += make("all_to_all", axes, keys, 2 * count, phase, "heads", "keys and values")
        found += make("all_to_all", axes, queries, count, phase, "length", "output")
    return found
