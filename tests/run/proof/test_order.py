"""The order in which weights are used, through loops, calls and checkpoints."""

import jax
import jax.numpy as jnp

from meshtrain.run.proof.order import order_of_use


def test_weights_are_ordered_by_their_first_use() -> None:
    def forward(w: dict, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, of_layer: dict) -> tuple[jax.Array, None]:
            hidden = jax.checkpoint(lambda x: jnp.tanh(x @ of_layer["b_second"]))(x * of_layer["c_first"])
            return hidden @ of_layer["a_third"], None

        x = x @ w["z_before"]
        x, _ = jax.lax.scan(layer, x, w["layers"])
        return (jax.jit(jnp.dot)(x, w["a_after"])).sum()

    square = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    stacked = jax.ShapeDtypeStruct((3, 4, 4), jnp.float32)
    row = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    weights = {
        "z_before": square,
        "a_after": square,
        "b_unused": square,
        "layers": {"a_third": stacked, "b_second": stacked, "c_first": row},
    }
    expected = ["z_before", "layers/c_first", "layers/b_second", "layers/a_third", "a_after", "b_unused"]
    assert order_of_use(forward, weights, square) == expected
