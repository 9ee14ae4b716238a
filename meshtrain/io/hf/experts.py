"""The families with experts: Mixtral, Qwen3-MoE, DeepSeek-V3. One table of names for each."""

from dataclasses import dataclass, replace
from typing import Any

from meshtrain.errors import InputError
from meshtrain.io.hf.families import ATTENTION, EMBEDDING, LAYER, MLP, MLP_NORM, SILU, sizes
from meshtrain.io.hf.family import Family
from meshtrain.io.hf.fields import REQUIRED, Always, Both, Group, HeadDim, KeyHeads, Must, Reader, Values
from meshtrain.io.hf.rope import EveryWindow, Rope
from meshtrain.io.hf.table import Line, Share
from meshtrain.model import LatentConfig, ModelConfig, MoEConfig


@dataclass(frozen=True)
class Experts(Group):
    """The keys that are the fields of MoEConfig: (key, field, what a missing key means). `always`: the family's own.

    A key with a "|" has two names; the first is the published one.
    """

    said: tuple[tuple[str, str, Any], ...]
    always: tuple[tuple[str, Any], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(name for key, _, _ in self.said for name in key.split("|"))

    def read(self, given: Reader) -> Values:
        fields: Values = dict(self.always)
        for key, field, default in self.said:
            names = key.split("|")
            there = [name for name in names if given.has(name)]
            given.taken.update(names)
            if len({given.values[name] for name in there}) > 1:
                raise given.error(there[0], f"{there[1]}={given.values[there[1]]!r} says something else.")
            fields[field] = given.take(there[0] if there else names[0], default)
            if not isinstance(fields[field], int | float):
                raise given.error(names[0], "expected a number; leave the key out for its default.")
        try:
            moe = MoEConfig(**fields)
        except InputError as error:
            raise InputError(f"{given.source}: {error}") from None
        num_layers = given.values.get("num_hidden_layers")
        if not moe.balance_loss or not isinstance(num_layers, int):
            return {"moe": moe}
        return {"moe": replace(moe, balance_loss=moe.balance_loss * _pressure(moe, num_layers))}

    def write(self, model: ModelConfig) -> Values:
        moe = model.moe
        if moe is None:
            return {}
        if moe.balance_loss:
            raw = moe.balance_loss / _pressure(moe, model.num_layers)
            moe = replace(moe, balance_loss=float(f"{raw:.12g}"))  # 0.001, not 0.0010000000000000002
        return {key.split("|")[0]: getattr(moe, field) for key, field, _ in self.said}


def _pressure(moe: MoEConfig, num_layers: int) -> float:
    """The weight of each layer's balance loss here that presses as router_aux_loss_coef = 1 does in transformers.

    Theirs (`load_balancing_loss_func`) is one loss for all layers, of the loads and scores averaged over them, which is
    top_k at an even load; here each layer has its own, which is 1 at an even load, and they add up. Where the layers'
    loads are alike, or there is but one, the two are equal.
    """
    return moe.top_k / max(1, moe.num_layers(num_layers))


@dataclass(frozen=True)
class Latent(Group):
    """The sizes of multi-head latent attention."""

    keys: tuple[str, ...] = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

    def read(self, given: Reader) -> Values:
        query, kv, nope, rope, value = (
            given.take(key, default) for key, default in zip(self.keys, (1536, 512, 128, 64, 128), strict=True)
        )
        try:
            return {"latent": LatentConfig(kv, nope, rope, value, query), "head_dim": nope + rope}
        except InputError as error:
            raise InputError(f"{given.source}: {error}") from None

    def write(self, model: ModelConfig) -> Values:
        latent = model.latent
        if latent is None:
            return {}
        sizes = (latent.query_rank, latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.value_dim)
        return dict(zip(self.keys, sizes, strict=True))


def _nope(model: ModelConfig) -> int:
    assert model.latent is not None
    return model.latent.nope_dim


def _rope(model: ModelConfig) -> int:
    assert model.latent is not None
    return model.latent.rope_dim


def _kv_rank(model: ModelConfig) -> int:
    assert model.latent is not None
    return model.latent.kv_rank


def _value(model: ModelConfig) -> int:
    assert model.latent is not None
    return model.latent.value_dim


_SPARSE = LAYER + "block_sparse_moe."
MIXTRAL = Family(
    "mixtral",
    "MixtralForCausalLM",
    (
        *sizes(1e-5, 131072, tied=False),
        SILU,
        KeyHeads(8),
        HeadDim(),
        Rope(1e6),
        EveryWindow(None),
        Experts((
            ("num_local_experts|num_experts", "num_experts", 8),
            ("num_experts_per_tok", "top_k", 2),
            ("intermediate_size", "mlp", REQUIRED),
            ("router_aux_loss_coef", "balance_loss", 0.001),
        )),
        Must("router_jitter_noise", (0.0,), "noise on the router's input in training."),
    ),
    (
        *EMBEDDING,
        *ATTENTION,
        MLP_NORM,
        Line(_SPARSE + "gate.weight", "layers/moe/router/weight", "router embed"),
        Line(_SPARSE + "experts.{expert}.w1.weight", "layers/moe/experts/gate", "expert_mlp expert_embed"),
        Line(_SPARSE + "experts.{expert}.w3.weight", "layers/moe/experts/up", "expert_mlp expert_embed"),
        Line(_SPARSE + "experts.{expert}.w2.weight", "layers/moe/experts/down", "expert_embed expert_mlp"),
    ),
)  # fmt: skip

EXPERTS = (
    Line(LAYER + "mlp.gate.weight", "layers/moe/router/weight", "router embed"),
    Line(LAYER + "mlp.experts.{expert}.gate_proj.weight", "layers/moe/experts/gate", "expert_mlp expert_embed"),
    Line(LAYER + "mlp.experts.{expert}.up_proj.weight", "layers/moe/experts/up", "expert_mlp expert_embed"),
    Line(LAYER + "mlp.experts.{expert}.down_proj.weight", "layers/moe/experts/down", "expert_embed expert_mlp"),
)


def of_dense_layers(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """The lines for the layers of a model with experts that have none."""
    return tuple(
        Line(
            line.name.replace("{layers}", "{dense_layers}"),
            line.path.replace("layers/", "dense_layers/", 1),
            line.dims,
            line.share,
        )
        for line in lines
    )


QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    (
        *sizes(1e-6, 32768, tied=False),
        SILU,
        KeyHeads(4),
        HeadDim(),
        Rope(),
        Must("use_sliding_window", (False,), "a window of attention."),
        Both("attention_bias", ("attention_bias", "attention_output_bias"), False),
        Always((("qk_norm", True),)),
        Experts((
            ("num_experts|num_local_experts", "num_experts", 128),
            ("num_experts_per_tok", "top_k", 8),
            ("moe_intermediate_size", "mlp", 768),
            ("norm_topk_prob", "normalized", False),
            ("decoder_sparse_step", "every", 1),
            ("router_aux_loss_coef", "balance_loss", 0.001),
        )),
        Must("mlp_only_layers", ([],), "layers without experts at places of their own."),
    ),
    (*EMBEDDING, *ATTENTION, MLP_NORM, *EXPERTS, *of_dense_layers((*ATTENTION, MLP_NORM, *MLP))),
    irrelevant=("sliding_window", "max_window_layers"),  # only with use_sliding_window
)  # fmt: skip

_SELF = LAYER + "self_attn."
LATENT = (
    Line(LAYER + "input_layernorm.weight", "layers/attention_norm/scale", "embed"),
    Line(_SELF + "q_proj.weight", "layers/attention/query", "(heads head_dim) embed"),
    Line(_SELF + "q_a_proj.weight", "layers/attention/query_down", "query_rank embed"),
    Line(_SELF + "q_a_layernorm.weight", "layers/attention/query_norm/scale", "query_rank"),
    Line(_SELF + "q_b_proj.weight", "layers/attention/query_up", "(heads head_dim) latent"),
    Line(
        _SELF + "kv_a_proj_with_mqa.weight", "layers/attention/kv_down", "kv_rank embed",
        Share("kv_rank", after=_rope),
    ),
    Line(
        _SELF + "kv_a_proj_with_mqa.weight", "layers/attention/key_rope", "rope_dim embed",
        Share("rope_dim", before=_kv_rank),
    ),
    Line(_SELF + "kv_a_layernorm.weight", "layers/attention/kv_norm/scale", "kv_rank"),
    Line(
        _SELF + "kv_b_proj.weight", "layers/attention/key_up", "(kv_heads head_dim) latent",
        Share("head_dim", after=_value),
    ),
    Line(
        _SELF + "kv_b_proj.weight", "layers/attention/value_up", "(kv_heads head_dim) latent",
        Share("head_dim", before=_nope),
    ),
    Line(_SELF + "o_proj.weight", "layers/attention/output", "embed (heads head_dim)"),
    MLP_NORM,
)  # fmt: skip
DEEPSEEK_V3 = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    (
        *sizes(1e-6, 4096, tied=False),
        SILU,
        KeyHeads(),
        Rope(),
        Latent(),
        Must("attention_bias", (False,), "biases of attention."),
        Must("rope_interleave", (True,), "rotated pairs in another order."),
        Must("scoring_func", ("sigmoid",), "another score of experts."),
        Must("topk_method", ("noaux_tc",), "another choice of experts."),
        Must("moe_layer_freq", (1,), "layers without experts in between."),
        Experts(
            (
                ("n_routed_experts|num_local_experts", "num_experts", 256),
                ("num_experts_per_tok", "top_k", 8),
                ("moe_intermediate_size", "mlp", 2048),
                ("n_shared_experts", "num_shared", 1),
                ("first_k_dense_replace", "first_dense", 3),
                ("norm_topk_prob", "normalized", True),
                ("routed_scaling_factor", "scaling", 2.5),
                ("n_group", "num_groups", 8),
                ("topk_group", "top_groups", 4),
            ),
            (("router", "sigmoid"), ("bias", True)),
        ),
    ),
    (
        *EMBEDDING,
        *LATENT,
        *EXPERTS,
        Line(LAYER + "mlp.gate.e_score_correction_bias", "layers/moe/router/bias", "router"),
        Line(LAYER + "mlp.shared_experts.gate_proj.weight", "layers/moe/shared/gate", "mlp embed"),
        Line(LAYER + "mlp.shared_experts.up_proj.weight", "layers/moe/shared/up", "mlp embed"),
        Line(LAYER + "mlp.shared_experts.down_proj.weight", "layers/moe/shared/down", "embed mlp"),
        *of_dense_layers((*LATENT, *MLP)),
    ),
    irrelevant=(
        "head_dim", "qk_head_dim",  # follow from the sizes of the latents
        "num_nextn_predict_layers", "num_mtp_layers",  # of a module of its own, which guesses further tokens
        "aux_loss_alpha", "seq_aux", "ep_size",
    ),
    spare_layers=True,
)  # fmt: skip
