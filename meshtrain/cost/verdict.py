"""A choice in words: what it is, how long it takes, whether it waits too long or only just fits.

A layout waits too long where more than WAITS of its time goes to the exchange of weights and gradients, or of experts'
tokens, or more than IDLE of it to other stages; and where devices compute WASTE times what the model asks for.
"""

from meshtrain.cost.choice import Choice, Sizes
from meshtrain.cost.search import Found
from meshtrain.cost.time import StepTime
from meshtrain.layout.words import plural

WAITS = 0.25
IDLE = 0.25
WASTE = 3.0  # times the model's FLOPs; recomputing all of it, in a pipeline that replays, takes less than 2


def waits(found: Found) -> str:
    """Why a layout that fits is not taken: what it waits for, and how long; "" for nothing."""
    return waiting(found.choice, found.time)


def waiting(choice: Choice, time: StepTime) -> str:
    """What a choice waits for too long; "" for nothing."""
    if time.hardware_flops > WASTE * time.model_flops:
        return (
            f"devices compute {time.hardware_flops / time.model_flops:.1f} times what the model asks for, > {WASTE:g}:"
            " without a capacity all rows of a buffer meet all experts of a device"
        )
    exchange = time.parts.get("weights", 0.0) + time.parts.get("data", 0.0)
    experts = time.parts.get("experts", 0.0)
    if experts > WAITS * time.seconds:
        return (
            f"experts' tokens are waited for {experts:.3g} s of {time.seconds:.3g} s a step,"
            f" {experts / time.seconds:.0%} > {WAITS:.0%}"
        )
    if exchange > WAITS * time.seconds:
        return (
            f"weights and gradients are waited for {exchange:.3g} s of {time.seconds:.3g} s a step,"
            f" {exchange / time.seconds:.0%} > {WAITS:.0%}"
        )
    idle = time.parts.get("bubble", 0.0)
    if idle > IDLE * time.seconds:
        share = f"{idle / time.seconds:.0%} > {IDLE:.0%}"
        return f"stages are idle {share} of the step ({plural(choice.microbatches, 'microbatch')})"
    return ""


def seconds(found: Found) -> str:
    """`12.3 s (MFU 45 %)`."""
    return f"{found.time.seconds:.3g} s (MFU {found.time.mfu:.0%})"


def just(found: Found, usable: float) -> str:
    """A warning where little is left."""
    share = found.memory.peak / usable
    return f"; just fits: {1 - share:.0%} headroom of what is usable" if share > 0.9 else ""


def describe(choice: Choice) -> str:
    """`data=128 x stage=16 x tensor=8, ZeRO-1, remat none, interleaved x 8, 16 microbatches`."""
    sizes = [f"{name}={size}" for name, size in zip(Sizes._fields, choice.sizes, strict=True) if size > 1]
    words = [" x ".join(sizes) or "one GPU"]
    if choice.zero > 0:
        words.append(f"ZeRO-{choice.zero}")
    if choice.experts and choice.expert_parts == 1:
        words.append(f"capacity {choice.experts.capacity:g}")
    elif choice.experts:
        parts, nodes = choice.expert_parts, choice.experts.nodes
        where = f" ({nodes} nodes x {parts // nodes})" if nodes > 1 else ""
        words.append(f"experts over {parts}{where}{' with tensor' if choice.experts.tensor else ''}")
        words.append(f"capacity {choice.experts.capacity:g}" if choice.experts.capacity else "dropless")
    if choice.remat != "none":
        words.append(f"remat {choice.remat}")
    if choice.schedule:
        words.append(choice.schedule + (f" x {choice.repeats}" if choice.repeats > 1 else ""))
        words += ["residuals kept"] if choice.keep == "residuals" else []
    if choice.microbatches > 1:
        words.append(plural(choice.microbatches, "microbatch"))
    return ", ".join(words)
