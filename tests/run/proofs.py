"""Small models, their references on one device, and the verdict on a layout: shared by the tests of equality."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax

from meshtrain.layout import Layout, Placement, build_mesh, single_placement
from meshtrain.layout.experts import Experts
from meshtrain.model import LatentConfig, ModelConfig, MoEConfig, RopeScaling
from meshtrain.run.proof import Declared, Proof, Verdict, details, make_proof, prove
from meshtrain.run.proof.outcome import Case
from meshtrain.run.proof.prove import EPSILON, LEARNING_RATE
from meshtrain.run.proof.rows import ProofRows
from meshtrain.run.proof.shrink import Shrunk
from meshtrain.step import OptimizerConfig, StepConfig

LENGTH, BATCH = 16, 8

MODELS = {
    "llama": ModelConfig(2, 16, 8, 2, 4, 24, 29, LENGTH, init_std=0.25, tied=True),
    "gpt": ModelConfig(
        2, 16, 4, 4, 4, 32, 32, LENGTH, norm="layer", activation="gelu", positions="learned", attention_bias=True,
        attention_output_bias=True, mlp_bias=True, init_std=0.25,
    ),
    "qwen": ModelConfig(
        4, 8, 8, 4, 4, 16, 31, LENGTH, qk_norm=True, window=5, window_layers=(True, False), init_std=0.3
    ),
    "gemma": ModelConfig(
        2, 24, 4, 1, 8, 20, 40, LENGTH, norm_plus_one=True, post_norms=True, activation="geglu", attention_softcap=5.0,
        logit_softcap=3.0, embed_scale=2.0, tied=True, dropout=0.2, init_std=0.2,
    ),
    "deepseek": ModelConfig(
        2, 16, 8, 8, 6, 24, 29, LENGTH, latent=LatentConfig(8, nope_dim=4, rope_dim=2, value_dim=5, query_rank=12),
        rope_scaling=RopeScaling("yarn", 4.0, original_length=8, mscale=1.0, mscale_all_dim=1.0), dropout=0.1,
        init_std=0.25,
    ),
    "moe": ModelConfig(
        2, 16, 8, 2, 4, 24, 29, LENGTH, init_std=0.25, tied=True,
        moe=MoEConfig(8, 2, 12, balance_loss=0.1, z_loss=0.01, num_shared=1),
    ),
    "grouped": ModelConfig(
        3, 16, 8, 4, 4, 24, 29, LENGTH, init_std=0.25, dropout=0.1, moe=MoEConfig(
            8, 3, 8, "sigmoid", scaling=2.5, num_groups=4, top_groups=2, bias=True, bias_rate=0.01, balance_loss=0.1,
            balance_over="row", first_dense=1,
        ),
    ),
    "interleaved": ModelConfig(
        4, 16, 8, 4, 4, 24, 29, LENGTH, activation="gelu", init_std=0.25, moe=MoEConfig(8, 2, 12, every=2, z_loss=0.01),
    ),
}  # fmt: skip

# For the tests of experts alone: not every layout fits them.
OF_EXPERTS = {
    "patterned": ModelConfig(
        7, 16, 8, 4, 4, 24, 29, LENGTH, init_std=0.25, dropout=0.1,
        moe=MoEConfig(8, 2, 12, first_dense=1, every=2, balance_loss=0.1),
    ),
    "all experts": ModelConfig(
        2, 16, 8, 4, 4, 24, 29, LENGTH, init_std=0.25, moe=MoEConfig(4, 4, 12, balance_loss=0.1)
    ),
    "one expert": ModelConfig(
        1, 16, 8, 4, 4, 24, 29, LENGTH, init_std=0.25, moe=MoEConfig(1, 1, 12, balance_loss=0.1)
    ),
}  # fmt: skip


@cache
def proof_of(
    name: str, num_steps: int = 2, optimizer: str = "adamw", batch: int = BATCH, experts: tuple[Any, ...] = ()
) -> Proof:
    """The reference of a model of either dict, on one device. experts: items of that section of the layout."""
    model = (MODELS | OF_EXPERTS)[name]
    config = StepConfig(model, OptimizerConfig(optimizer, eps=EPSILON), z_loss=1e-3)
    case = Case(config, ProofRows(model.vocab, LENGTH), batch, num_steps, LEARNING_RATE)
    place = single_placement()
    if experts:
        place = replace(place, layout=replace(place.layout, experts=Experts.parse(dict(experts))))
    return make_proof(Shrunk(model, LENGTH, batch, ()), case, place, "one device")


def place_on(num_devices: int, declared: dict[str, Any]) -> Placement:
    """A layout on the first devices of the session."""
    layout = Layout.parse(declared)
    return Placement(layout, build_mesh(layout.mesh.resolve(num_devices), jax.devices()[:num_devices]))


def verdict_on(proof: Proof, declared: dict[str, Any], num_devices: int = 8, initialize: bool = False) -> Verdict:
    """The verdict on a layout. Its initial state is the reference's unless `initialize` asks for its own."""
    proof = replace(proof, start=None if initialize else proof.reference.start)
    return prove(proof, Declared("this", declared), place_on(num_devices, declared))


def check_equal(proof: Proof, declared: dict[str, Any], num_devices: int = 8, initialize: bool = False) -> Verdict:
    """Fails with the explanation unless the layout computes what the reference does."""
    verdict = verdict_on(proof, declared, num_devices, initialize)
    assert verdict.status == "equal", f"{declared}\n{details(verdict)}"
    return verdict
