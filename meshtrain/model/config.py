"""`ModelConfig`: what a decoder computes, whole, as one frozen value. It says nothing of devices, precision or memory.

It describes Llama 2 and 3, Mistral, Qwen2, Qwen3, Gemma 2, GPT-2 and DeepSeek-V3 exactly: they are settings of these
fields and share one decoder. A value that makes no sense is an InputError that names the field as `model.<field>`.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from meshtrain.errors import InputError, one_of, whole_number
from meshtrain.model.moe_config import MoEConfig, check_pattern

NORMS = ("rms", "layer")
ACTIVATIONS = ("swiglu", "geglu", "gelu")
POSITIONS = ("rotary", "learned")
SCALINGS = ("linear", "llama3", "yarn")
MOST_LAYERS = 100_000  # far beyond any model: what counts layers one by one has an end


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for texts longer than `original_length` (formulas: rotary.py).

    kind: "linear" (every frequency divided by `factor`), "llama3" (only the slow ones), "yarn" (a ramp between both).
    """

    kind: str
    factor: float  # how many times longer the texts may be
    original_length: int | None = None  # length that the model was first trained at (llama3, yarn)
    low_freq_factor: float = 1.0  # llama3: wavelengths above original_length / this are divided by factor
    high_freq_factor: float = 4.0  # llama3: wavelengths below original_length / this stay as they are
    beta_fast: float = 32.0  # yarn: frequencies that turn more often than this in original_length stay as they are
    beta_slow: float = 1.0  # yarn: frequencies that turn less often than this are divided by factor
    truncate: bool = True  # yarn: round the two ends of the ramp outwards to whole frequencies
    attention_factor: float | None = None  # yarn: cos and sin are multiplied with it; None: from factor and the mscales
    mscale: float | None = None  # yarn: with mscale_all_dim, attention factor = m(mscale) / m(mscale_all_dim)
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        one_of("model.rope_scaling.kind", self.kind, SCALINGS)
        if not self.factor >= 1:
            raise InputError(f"model.rope_scaling.factor: {self.factor} would shorten the texts; it is at least 1.0.")
        if self.kind in ("llama3", "yarn") and self.original_length is None:
            raise InputError(
                f"model.rope_scaling.original_length: {self.kind} scaling needs the length that the model was first"
                " trained at, such as 8192."
            )
        if self.original_length is not None:
            whole_number("model.rope_scaling.original_length", self.original_length)
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise InputError(
                f"model.rope_scaling: low_freq_factor {self.low_freq_factor} must be above 0 and below high_freq_factor"
                f" {self.high_freq_factor}; Llama 3 has 1.0 and 4.0."
            )
        if self.kind == "yarn" and not 0 < self.beta_slow <= self.beta_fast:
            raise InputError(
                f"model.rope_scaling: beta_slow {self.beta_slow} must be above 0 and not above beta_fast"
                f" {self.beta_fast}; the YaRN paper has 1.0 and 32.0."
            )

    def term(self, mscale: float) -> float:
        """yarn: the factor that makes up for scores that spread in longer texts, 0.1 mscale ln(factor) + 1."""
        return 0.1 * mscale * math.log(self.factor) + 1.0


@dataclass(frozen=True)
class LatentConfig:
    """Sizes of multi-head latent attention (DeepSeek-V2, 2024, section 2.1; latent.py), with their published names."""

    kv_rank: int  # width of the latent that keys and values are made from (kv_lora_rank)
    nope_dim: int  # width of the part of a head's query and key that is not rotated (qk_nope_head_dim)
    rope_dim: int  # width of the rotated part; the key's is one for all heads (qk_rope_head_dim)
    value_dim: int  # width of a head's value (v_head_dim)
    query_rank: int | None = None  # width of the latent that queries are made from (q_lora_rank); None: a plain matrix

    def __post_init__(self) -> None:
        for name in ("kv_rank", "nope_dim", "rope_dim", "value_dim"):
            whole_number(f"model.latent.{name}", getattr(self, name))
        if self.query_rank is not None:
            whole_number("model.latent.query_rank", self.query_rank)
        if self.rope_dim % 2:
            raise InputError(
                f"model.latent.rope_dim: rotary positions turn pairs, and {self.rope_dim} is odd."
                f" model.latent.rope_dim={self.rope_dim + 1} would work."
            )


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only Transformer. The first eight fields are its sizes and have no default; the rest is Llama's way."""

    num_layers: int
    embed: int  # width of the residual stream
    num_heads: int  # query heads
    num_kv_heads: int  # key and value heads; each serves num_heads / num_kv_heads query heads
    head_dim: int  # width of one head; num_heads * head_dim need not be embed
    mlp: int  # width of the MLP's hidden layer
    vocab: int
    max_length: int  # longest sequence; with learned positions the rows of their table

    norm: str = "rms"  # "rms": RMSNorm with a scale; "layer": LayerNorm with scale and bias
    norm_eps: float = 1e-5
    norm_plus_one: bool = False  # the stored scale is the difference from 1 (Gemma)
    post_norms: bool = False  # a further norm on what attention and MLP give back, before it is added (Gemma 2)
    activation: str = "swiglu"  # "swiglu": silu(gate) * up; "geglu": gelu(gate) * up; "gelu": gelu(up), no gate
    moe: MoEConfig | None = None  # experts in place of the MLP; None: none
    mlp_bias: bool = False  # bias on every matrix of the MLP
    attention_bias: bool = False  # bias on query, key and value (Qwen2, GPT-2)
    attention_output_bias: bool = False  # bias on attention's output matrix (GPT-2)
    qk_norm: bool = False  # RMSNorm over head_dim on queries and keys, before the rotation (Qwen3)
    latent: LatentConfig | None = None  # keys and values are made from a small latent; None: each has its own matrix
    query_scale: float | None = None  # factor on query-key products; None: 1 / sqrt(head_dim)
    attention_softcap: float | None = None  # scores become cap * tanh(scores / cap) (Gemma 2)
    window: int | None = None  # a query sees the last `window` positions only, itself among them; None: all
    window_layers: tuple[bool, ...] = (True,)  # which layers have the window: a pattern, repeated from layer 0 on
    positions: str = "rotary"  # "rotary" (i turns with i + half of head_dim; latent: with i + 1) or "learned" (a table)
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    embed_scale: float = 1.0  # factor on the embeddings (Gemma: sqrt(embed))
    tied: bool = False  # the embedding table is the output matrix too
    logit_softcap: float | None = None  # logits become cap * tanh(logits / cap) (Gemma 2)
    dropout: float = 0.0  # share of elements dropped from the embeddings and from what attention and MLP add
    init_std: float = 0.02  # of the initial weights; matrices that write into the stream: / sqrt(2 num_layers)

    def __post_init__(self) -> None:
        for name in ("num_layers", "embed", "num_heads", "num_kv_heads", "head_dim", "mlp", "vocab", "max_length"):
            whole_number(f"model.{name}", getattr(self, name))
        check_layers(self.num_layers, "model.num_layers")
        if self.vocab > (most := np.iinfo(np.int32).max + 1):
            raise InputError(f"model.vocab: {self.vocab} ids do not fit the int32 of a batch; at most {most} do.")
        one_of("model.norm", self.norm, NORMS)
        one_of("model.activation", self.activation, ACTIVATIONS)
        one_of("model.positions", self.positions, POSITIONS)
        self._check_heads()
        self._check_window()
        self._check_factors()
        if self.moe is not None:
            check_pattern(self.moe, self.num_layers, len(self.window_layers), self.mlp_bias)

    @property
    def num_moe_layers(self) -> int:
        """Layers that have experts; the others have an MLP."""
        moe = self.moe
        return 0 if moe is None else moe.num_layers(self.num_layers)

    @property
    def num_stacked(self) -> int:
        """Layers in the stack that a pipeline cuts: all of them, or those with experts."""
        return self.num_layers if self.moe is None else self.num_moe_layers

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts: behind the first dense ones the last of every `every` layers."""
        moe = self.moe
        return moe is not None and layer >= moe.first_dense and (layer - moe.first_dense + 1) % moe.every == 0

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate matrix."""
        return self.activation != "gelu"

    @property
    def attention_scale(self) -> float:
        """The factor on query-key products. With latent attention yarn's mscale_all_dim enters here, squared."""
        if self.query_scale is not None:
            return self.query_scale
        scaling, scale = self.rope_scaling, self.head_dim**-0.5
        if self.latent is not None and scaling is not None and scaling.kind == "yarn" and scaling.mscale_all_dim:
            scale *= scaling.term(scaling.mscale_all_dim) ** 2
        return scale

    @property
    def rotary_dim(self) -> int:
        """How much of a head is rotated."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def value_dim(self) -> int:
        """Width of a head's value and of what attention gives for it."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    def layer_window(self, layer: int) -> int | None:
        """The window of one layer."""
        return self.window if self.window_layers[layer % len(self.window_layers)] else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The windows that layers have, each once, in order."""
        return tuple(dict.fromkeys(self.layer_window(layer) for layer in range(self.num_layers)))

    def _check_heads(self) -> None:
        if self.num_heads % self.num_kv_heads:
            fitting = [k for k in range(1, self.num_heads + 1) if self.num_heads % k == 0]
            near = min(fitting, key=lambda k: abs(k - self.num_kv_heads))
            raise InputError(
                f"model.num_kv_heads: {self.num_heads} query heads (model.num_heads) cannot be shared out evenly among"
                f" {self.num_kv_heads} key and value heads. model.num_kv_heads={near} would work."
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise InputError(
                f"model.head_dim: rotary positions turn pairs, and {self.head_dim} is odd."
                f" model.head_dim={self.head_dim + 1} would work."
            )
        if self.latent is not None:
            self._check_latent(self.latent)
        if self.positions != "rotary" and self.rope_scaling is not None:
            raise InputError(
                f"model.rope_scaling: set, but model.positions={self.positions!r} has no rotation to scale."
                " model.rope_scaling=None would work."
            )

    def _check_latent(self, latent: LatentConfig) -> None:
        width = latent.nope_dim + latent.rope_dim
        if self.head_dim != width:
            raise InputError(
                f"model.head_dim: {self.head_dim} is not model.latent.nope_dim + rope_dim = {latent.nope_dim} +"
                f" {latent.rope_dim}, the width of a query. model.head_dim={width} would work."
            )
        if self.num_kv_heads != self.num_heads:
            raise InputError(
                f"model.num_kv_heads: latent attention makes a key and a value for each of the {self.num_heads} query"
                f" heads, not {self.num_kv_heads}. model.num_kv_heads={self.num_heads} would work."
            )
        if self.positions != "rotary":
            raise InputError(
                f"model.positions: {self.positions!r} leaves the rotated part of latent attention without positions."
                " model.positions='rotary' would work."
            )
        for name in ("attention_bias", "attention_output_bias", "qk_norm"):
            if getattr(self, name):
                raise InputError(
                    f"model.{name}: latent attention has no such weights (it norms its latents)."
                    f" model.{name}=False would work."
                )

    def _check_window(self) -> None:
        if self.window is not None:
            whole_number("model.window", self.window)
        period = len(self.window_layers)
        if not period or self.num_layers % period:
            raise InputError(
                f"model.window_layers: a pattern of {period} layers does not repeat evenly over {self.num_layers}"
                f" layers (model.num_layers). Its length must divide {self.num_layers}; (True,) gives each"
                " layer the window."
            )

    def _check_factors(self) -> None:
        if not 0 <= self.dropout < 1:
            raise InputError(f"model.dropout: {self.dropout} is not a share from 0 to below 1; 0.1 would work.")
        for name in ("norm_eps", "rope_theta", "embed_scale", "init_std"):
            if not getattr(self, name) > 0:
                default = next(f.default for f in fields(self) if f.name == name)
                raise InputError(f"model.{name}: {getattr(self, name)} is not above 0; {default} is the default.")
        for name in ("query_scale", "attention_softcap", "logit_softcap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"model.{name}: {value} is not above 0; None leaves it out.")


def check_layers(num_layers: object, key: str) -> None:
    """InputError for more layers than MOST_LAYERS."""
    if isinstance(num_layers, int) and num_layers > MOST_LAYERS:
        raise InputError(f"{key}: {num_layers} layers are more than any model has; at most {MOST_LAYERS} can be read.")
