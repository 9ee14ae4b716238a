"""Compiles attention, forward and backward, for 16 H100s without a GPU, and prints its collectives as JSON.

Run as a program of its own (`python -m tests.parallel.attention.h100 SCHEME ORDER`): the compiler for GPUs is chosen by
the environment, before jax is imported. Needs the CUDA plugin (the extra cuda13).
"""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from meshtrain.run.compiler import compile_without_gpus

NUM_DEVICES, LAYERS = 16, 3  # layers in a scan, as in the model: forward and backward are loops of their own
B, T, N, K, H = 1, 8192, 32, 2, 64

KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast|ragged-all-to-all"
SIZES = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "pred": 1}


def compile_text(scheme: str, order: str) -> str:
    """The optimised program."""
    import jax
    import jax.numpy as jnp

    from meshtrain.audit import place_on_gpus
    from meshtrain.layout import Layout
    from meshtrain.parallel.attention import Mask, attend

    sizes = dict(ring=4, swap=4) if scheme == "usp" else dict(context=NUM_DEVICES)
    layout = Layout.parse(
        dict(
            mesh=sizes, attention=scheme, order=order, rules=dict(length=tuple(sizes)),
            activations=dict(stream=tuple(sizes)),
        )
    )  # fmt: skip
    place = place_on_gpus(layout, "h100", NUM_DEVICES)

    def step(q: Any, k: Any, v: Any, dout: Any, ids: Any) -> Any:
        def layer(_: Any, qkv: Any) -> Any:
            mask = Mask(H**-0.5)
            return None, attend(*qkv, positions_BT=ids, segments_BT=ids, mask=mask, place=place)

        out, pull = jax.vjp(lambda *qkv: jax.lax.scan(layer, None, qkv)[1], q, k, v)
        return out, pull(dout)

    def array(dtype: Any, dims: tuple[str, ...], shape: tuple[int, ...]) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place.sharding("activations", dims, shape))

    dims = ("layers", "batch", "length", "heads", "head_dim")
    qs = [array(jnp.bfloat16, dims, (LAYERS, B, T, n, H)) for n in (N, K, K, N)]
    ids = array(jnp.int32, ("batch", "length"), (B, T))
    text = jax.jit(step).lower(*qs, ids).compile().as_text()
    assert text is not None
    return text


def collectives(text: str) -> Iterator[tuple[str, str, int, int, bool]]:
    """(kind, dtype, bytes of the result on one device, how often it runs, whether it runs beside other work), for each
    array of each collective of the optimised program. Of a reduce-scatter the bytes of the operand."""
    bodies = {
        match[2]: text[match.end() : text.find("\n}", match.end())].splitlines()
        for match in re.finditer(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$", text, re.M)
    }
    entry = re.search(r"^ENTRY %?([\w.\-]+) ", text, re.M)
    assert entry is not None
    yield from _in(bodies, entry[1], 1)


def _in(bodies: dict[str, list[str]], name: str, times: int) -> Iterator[tuple[str, str, int, int, bool]]:
    lines = bodies.get(name, [])
    for number, line in enumerate(lines):
        op = re.search(rf"%?([\w.\-]+) = (.*?) ({KINDS})(-start)?\(", line)
        if op:
            arrays = [(dtype, _bytes(dtype, dims)) for dtype, dims in re.findall(r"(\w+)\[([\d,]+)\]", op[2])]
            arrays = arrays[len(arrays) // 2 :] if op[4] else arrays  # a start names its operands first
            beside = bool(op[4]) and _works(lines[number + 1 :], op[1])
            for dtype, size in arrays:
                yield op[3], dtype, size * (NUM_DEVICES if op[3] == "reduce-scatter" else 1), times, beside
            continue
        trips = re.search(r'known_trip_count"?:\{"n":"(\d+)"', line)
        for key, called in re.findall(r"(body|calls|to_apply|branch_computations)=\{?%?([\w.\-]+)", line):
            yield from _in(bodies, called, times * int(trips[1]) if key == "body" and trips else times)


def _works(lines: list[str], start: str) -> bool:
    """Whether a loop or a matrix product stands between a start and its end: the compiler's schedule."""
    for line in lines:
        if "-done(" in line and re.search(rf"%{re.escape(start)}\b(?!\.)", line):
            return False
        if re.search(r" (while|dot|custom-call)\(|gemm", line):
            return True
    return False


def _bytes(dtype: str, dims: str) -> int:
    size = SIZES.get(dtype, 0)
    for dim in dims.split(","):
        size *= int(dim) if dim else 1
    return size


if __name__ == "__main__":
    compile_without_gpus()
    program = compile_text(*sys.argv[1:3])
    if len(sys.argv) > 3:
        print(program)
    else:
        print(json.dumps(list(collectives(program))))
