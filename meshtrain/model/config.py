"""`ModelConfig`: what a decoder computes, whole, as one frozen value. It says nothing of devices, precision or memory.

It describes the dense families exactly: Llama 2 and 3, Mistral, Qwen2, Qwen3, Gemma 2 and GPT-2 are settings of these
fields and share one decoder. A value that makes no sense is an InputError that names the field as `model.<field>`.
"""

from dataclasses import dataclass, fields

from meshtrain.errors import InputError, nearest

NORMS = ("rms", "layer")
ACTIVATIONS = ("swiglu", "geglu", "gelu")
POSITIONS = ("rotary", "learned")
SCALINGS = ("linear", "llama3", "yarn")


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
        _choice("rope_scaling.kind", self.kind, SCALINGS)
        if not self.factor >= 1:
            raise InputError(f"model.rope_scaling.factor: {self.factor} would shorten the texts; it is at least 1.0.")
        if self.kind in ("llama3", "yarn") and self.original_length is None:
            raise InputError(
                f"model.rope_scaling.original_length: {self.kind} scaling needs the length that the model was first"
                " trained at, such as 8192."
            )
        if self.original_length is not None:
            _positive("rope_scaling.original_length", self.original_length)
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
    mlp_bias: bool = False  # bias on every matrix of the MLP
    attention_bias: bool = False  # bias on query, key and value (Qwen2, GPT-2)
    attention_output_bias: bool = False  # bias on attention's output matrix (GPT-2)
    qk_norm: bool = False  # RMSNorm over head_dim on queries and keys, before the rotation (Qwen3)
    query_scale: float | None = None  # factor on query-key products; None: 1 / sqrt(head_dim)
    attention_softcap: float | None = None  # scores become cap * tanh(scores / cap) (Gemma 2)
    window: int | None = None  # a query sees the last `window` positions only, itself among them; None: all
    window_layers: tuple[bool, ...] = (True,)  # which layers have the window: a pattern, repeated from layer 0 on
    positions: str = "rotary"  # "rotary" (halves of head_dim paired, as in Hugging Face files) or "learned" (a table)
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    embed_scale: float = 1.0  # factor on the embeddings (Gemma: sqrt(embed))
    tied: bool = False  # the embedding table is the output matrix too
    logit_softcap: float | None = None  # logits become cap * tanh(logits / cap) (Gemma 2)
    dropout: float = 0.0  # share of elements dropped from the embeddings and from what attention and MLP add
    init_std: float = 0.02  # of the initial weights; matrices that write into the stream: / sqrt(2 num_layers)

    def __post_init__(self) -> None:
        for name in ("num_layers", "embed", "num_heads", "num_kv_heads", "head_dim", "mlp", "vocab", "max_length"):
            _positive(name, getattr(self, name))
        _choice("norm", self.norm, NORMS)
        _choice("activation", self.activation, ACTIVATIONS)
        _choice("positions", self.positions, POSITIONS)
        self._check_heads()
        self._check_window()
        self._check_factors()

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate matrix."""
        return self.activation != "gelu"

    @property
    def attention_scale(self) -> float:
        """The factor on query-key products."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    def layer_window(self, layer: int) -> int | None:
        """The window of one layer."""
        return self.window if self.window_layers[layer % len(self.window_layers)] else None

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
        if self.positions != "rotary" and self.rope_scaling is not None:
            raise InputError(
                f"model.rope_scaling: set, but model.positions={self.positions!r} has no rotation to scale."
                " model.rope_scaling=None would work."
            )

    def _check_window(self) -> None:
        if self.window is not None:
            _positive("window", self.window)
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


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"model.{name}: expected a whole number of at least 1, not {value!r}.")


def _choice(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise InputError(f"model.{name}: {value!r} is not one of {', '.join(valid)}.{nearest(str(value), valid)}")
