"""The dense families: Llama 2 and 3, Mistral, Qwen2, Qwen3, Gemma 2, GPT-2. One table of names for each."""

from meshtrain.io.hf.family import Family
from meshtrain.io.hf.fields import Always, Both, Field, Group, HeadDim, KeyHeads, Must, Reader, Values
from meshtrain.io.hf.rope import EveryWindow, Rope, SomeWindow
from meshtrain.io.hf.table import Line, Share
from meshtrain.model import ModelConfig

LAYER = "model.layers.{layers}."
SILU = Must("hidden_act", ("silu",), "another activation.")


def sizes(norm_eps: float, max_length: int, tied: bool) -> tuple[Group, ...]:
    """The keys that Llama and what came after it share; the arguments are what missing keys mean."""
    return (
        Field("num_hidden_layers", "num_layers"),
        Field("hidden_size", "embed"),
        Field("num_attention_heads", "num_heads"),
        Field("intermediate_size", "mlp"),
        Field("vocab_size", "vocab"),
        Field("max_position_embeddings", "max_length", max_length),
        Field("rms_norm_eps", "norm_eps", norm_eps),
        Field("initializer_range", "init_std", 0.02),
        Field("tie_word_embeddings", "tied", tied),
    )


EMBEDDING = (
    Line("model.embed_tokens.weight", "embedding/table", "vocab embed"),
    Line("model.norm.weight", "final_norm/scale", "embed"),
    Line("lm_head.weight", "output/table", "vocab embed"),
)
ATTENTION = (
    Line(LAYER + "input_layernorm.weight", "layers/attention_norm/scale", "embed"),
    Line(LAYER + "self_attn.q_proj.weight", "layers/attention/query", "(heads head_dim) embed"),
    Line(LAYER + "self_attn.k_proj.weight", "layers/attention/key", "(kv_heads head_dim) embed"),
    Line(LAYER + "self_attn.v_proj.weight", "layers/attention/value", "(kv_heads head_dim) embed"),
    Line(LAYER + "self_attn.o_proj.weight", "layers/attention/output", "embed (heads head_dim)"),
    Line(LAYER + "self_attn.q_proj.bias", "layers/attention/query_bias", "(heads head_dim)"),
    Line(LAYER + "self_attn.k_proj.bias", "layers/attention/key_bias", "(kv_heads head_dim)"),
    Line(LAYER + "self_attn.v_proj.bias", "layers/attention/value_bias", "(kv_heads head_dim)"),
    Line(LAYER + "self_attn.o_proj.bias", "layers/attention/output_bias", "embed"),
    Line(LAYER + "self_attn.q_norm.weight", "layers/attention/query_norm/scale", "head_dim"),
    Line(LAYER + "self_attn.k_norm.weight", "layers/attention/key_norm/scale", "head_dim"),
)
MLP = (
    Line(LAYER + "mlp.gate_proj.weight", "layers/mlp/gate", "mlp embed"),
    Line(LAYER + "mlp.up_proj.weight", "layers/mlp/up", "mlp embed"),
    Line(LAYER + "mlp.down_proj.weight", "layers/mlp/down", "embed mlp"),
    Line(LAYER + "mlp.gate_proj.bias", "layers/mlp/gate_bias", "mlp"),
    Line(LAYER + "mlp.up_proj.bias", "layers/mlp/up_bias", "mlp"),
    Line(LAYER + "mlp.down_proj.bias", "layers/mlp/down_bias", "embed"),
)
MLP_NORM = Line(LAYER + "post_attention_layernorm.weight", "layers/mlp_norm/scale", "embed")

LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    (
        *sizes(1e-6, 2048, tied=False),
        SILU,
        KeyHeads(),
        HeadDim(),
        Rope(),
        Both("attention_bias", ("attention_bias", "attention_output_bias"), False),
        Field("mlp_bias", "mlp_bias", False),
    ),
    (*EMBEDDING, *ATTENTION, MLP_NORM, *MLP),
)
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    (*sizes(1e-6, 131072, tied=False), SILU, KeyHeads(8), HeadDim(), Rope(), EveryWindow(4096)),
    (*EMBEDDING, *ATTENTION, MLP_NORM, *MLP),
)
QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    (
        *sizes(1e-6, 32768, tied=False),
        SILU,
        KeyHeads(32),
        HeadDim(),
        Rope(),
        SomeWindow(switch=True),
        Always((("attention_bias", True),)),
    ),
    (*EMBEDDING, *ATTENTION, MLP_NORM, *MLP),
)
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    (
        *sizes(1e-6, 32768, tied=False),
        SILU,
        KeyHeads(32),
        HeadDim(128),
        Rope(),
        SomeWindow(switch=True),
        Both("attention_bias", ("attention_bias", "attention_output_bias"), False),
        Always((("qk_norm", True),)),
    ),
    (*EMBEDDING, *ATTENTION, MLP_NORM, *MLP),
)


class EmbedScale(Group):
    """The factor on Gemma's embeddings, sqrt(hidden_size), which no key says."""

    def read(self, given: Reader) -> Values:
        return {"embed_scale": given.take("hidden_size") ** 0.5}

    def write(self, model: ModelConfig) -> Values:
        return {}


def _whole(value: float) -> float:
    """A number that is whole but for rounding, as an integer."""
    return round(value) if abs(value - round(value)) < 1e-9 * value else value


GEMMA2 = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    (
        *sizes(1e-6, 8192, tied=True),
        Must("hidden_activation", ("gelu_pytorch_tanh",), "another activation."),
        KeyHeads(4),
        HeadDim(256),
        Rope(),
        SomeWindow(switch=False),
        Both("attention_bias", ("attention_bias", "attention_output_bias"), False),
        Field("query_pre_attn_scalar", "query_scale", 256, lambda n: n**-0.5, lambda scale: _whole(scale**-2)),
        Field("attn_logit_softcapping", "attention_softcap", 50.0, may_be_none=True),
        Field("final_logit_softcapping", "logit_softcap", 30.0, may_be_none=True),
        Must("use_bidirectional_attention", (False,), "tokens would see those behind them."),
        EmbedScale(),
        Always((("activation", "geglu"), ("norm_plus_one", True), ("post_norms", True))),
    ),
    (
        *EMBEDDING,
        *ATTENTION,
        Line(LAYER + "post_attention_layernorm.weight", "layers/attention_post_norm/scale", "embed"),
        Line(LAYER + "pre_feedforward_layernorm.weight", "layers/mlp_norm/scale", "embed"),
        *MLP,
        Line(LAYER + "post_feedforward_layernorm.weight", "layers/mlp_post_norm/scale", "embed"),
    ),
    irrelevant=("hidden_act",),  # of old files; hidden_activation is what counts
)


def third(number: int) -> Share:
    """One matrix holds queries, keys and values, one after the other."""
    return Share("part", before=lambda _: number, after=lambda _: 2 - number)


_BLOCK = "transformer.h.{layers}."


class Gpt2Sizes(Group):
    """GPT-2's heads, which are all alike, and its MLP, by default four times as wide as the stream."""

    keys = ("n_head", "n_inner")

    def read(self, given: Reader) -> Values:
        heads, embed, inner = given.take("n_head"), given.take("n_embd"), given.take("n_inner", None)
        if not isinstance(heads, int) or not isinstance(embed, int) or heads < 1 or embed % heads:
            raise given.error("n_head", f"does not divide n_embd={embed}.")
        return {
            "num_heads": heads, "num_kv_heads": heads, "head_dim": embed // heads,
            "mlp": 4 * embed if inner is None else inner,
        }  # fmt: skip

    def write(self, model: ModelConfig) -> Values:
        return {"n_head": model.num_heads, "n_inner": None if model.mlp == 4 * model.embed else model.mlp}


class Gpt2Dropout(Group):
    """GPT-2's three dropouts: here one for embeddings and sublayers; attention's own (attn_pdrop) is not done."""

    keys = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

    def read(self, given: Reader) -> Values:
        given.take("attn_pdrop", 0.1)
        rate, other = given.take("resid_pdrop", 0.1), given.take("embd_pdrop", 0.1)
        if rate != other:
            raise given.error("embd_pdrop", f"resid_pdrop={rate}: both must be the same here.")
        return {"dropout": rate}

    def write(self, model: ModelConfig) -> Values:
        return dict.fromkeys(self.keys, model.dropout)


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    (
        Field("n_layer", "num_layers"),
        Field("n_embd", "embed"),
        Field("vocab_size", "vocab", 50257),
        Field("n_positions", "max_length", 1024),
        Field("layer_norm_epsilon", "norm_eps", 1e-5),
        Field("initializer_range", "init_std", 0.02),
        Field("tie_word_embeddings", "tied", True),
        Gpt2Sizes(),
        Gpt2Dropout(),
        Must("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "another activation."),
        Must("scale_attn_weights", (True,), "scores would not be scaled."),
        Must("scale_attn_by_inverse_layer_idx", (False,), "scores would be scaled by the layer."),
        Always((
            ("norm", "layer"), ("activation", "gelu"), ("positions", "learned"), ("mlp_bias", True),
            ("attention_bias", True), ("attention_output_bias", True),
        )),
    ),
    (
        Line("transformer.wte.weight", "embedding/table", "vocab embed"),
        Line("transformer.wpe.weight", "positions/table", "position embed"),
        Line("transformer.ln_f.weight", "final_norm/scale", "embed"),
        Line("transformer.ln_f.bias", "final_norm/bias", "embed"),
        Line("lm_head.weight", "output/table", "vocab embed"),
        Line(_BLOCK + "ln_1.weight", "layers/attention_norm/scale", "embed"),
        Line(_BLOCK + "ln_1.bias", "layers/attention_norm/bias", "embed"),
        Line(_BLOCK + "attn.c_attn.weight", "layers/attention/query", "embed (part heads head_dim)", third(0)),
        Line(_BLOCK + "attn.c_attn.weight", "layers/attention/key", "embed (part kv_heads head_dim)", third(1)),
        Line(_BLOCK + "attn.c_attn.weight", "layers/attention/value", "embed (part kv_heads head_dim)", third(2)),
        Line(_BLOCK + "attn.c_attn.bias", "layers/attention/query_bias", "(part heads head_dim)", third(0)),
        Line(_BLOCK + "attn.c_attn.bias", "layers/attention/key_bias", "(part kv_heads head_dim)", third(1)),
        Line(_BLOCK + "attn.c_attn.bias", "layers/attention/value_bias", "(part kv_heads head_dim)", third(2)),
        Line(_BLOCK + "attn.c_proj.weight", "layers/attention/output", "(heads head_dim) embed"),
        Line(_BLOCK + "attn.c_proj.bias", "layers/attention/output_bias", "embed"),
        Line(_BLOCK + "ln_2.weight", "layers/mlp_norm/scale", "embed"),
        Line(_BLOCK + "ln_2.bias", "layers/mlp_norm/bias", "embed"),
        Line(_BLOCK + "mlp.c_fc.weight", "layers/mlp/up", "embed mlp"),
        Line(_BLOCK + "mlp.c_fc.bias", "layers/mlp/up_bias", "mlp"),
        Line(_BLOCK + "mlp.c_proj.weight", "layers/mlp/down", "mlp embed"),
        Line(_BLOCK + "mlp.c_proj.bias", "layers/mlp/down_bias", "embed"),
    ),
    prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
    irrelevant=(
        "n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
        "summary_proj_to_labels", "summary_first_dropout",
    ),
)  # fmt: skip
DENSE = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GPT2)
