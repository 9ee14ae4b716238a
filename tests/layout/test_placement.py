"""Placement: the one place that turns dims and shapes into shardings. Cases L1 (no silent replica), L2, L3, L4."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from meshtrain.errors import InputError
from meshtrain.layout import ArraySpec, Layout, place, single_placement
from meshtrain.layout.padding import pad_tree, strip_tree
from tests.layout.arrays import MESH, TENSOR, array, inventory, placed


def test_specs_of_each_class() -> None:
    here = placed(mesh=MESH, rules=TENSOR, activations=dict(stream="tensor"), grads=dict(embed="data"))
    dims, shape = ("layers", "embed", "mlp"), (2, 64, 128)
    assert here.spec("params", dims, shape) == here.spec("use", dims, shape) == P(None, None, "tensor")
    assert here.spec("grads", dims, shape) == here.spec("optimizer", dims, shape) == P(None, "data", "tensor")
    assert here.spec("activations", ("batch", "stream", "embed"), (16, 32, 64)) == P("data", "tensor", None)
    assert here.axes("batch") == ("data",)
    assert here.num_shards("mlp") == 4
    assert here.num_shards("embed", "grads") == 2
    assert here.num_shards("embed") == 1


@pytest.mark.parametrize(
    ("kind", "dims", "shape", "expected"),
    [
        (
            "params",
            ("embed", "mlp"),
            (64, 66),
            r"rules\.mlp: tensor=4 .*size 66.* 64 or 68 would work, or mesh\.tensor=2",
        ),
        ("optimizer", ("embed", "mlp"), (63, 64), r"optimizer\.embed: data=2 .*size 63.* 62 or 64 would work"),
        ("params", ("kv_heads", "head_dim"), (3, 8), r"rules\.kv_heads: tensor=4 .*size 3.* 4 would work"),
        ("activations", ("batch", "stream", "embed"), (7, 8, 64), r"rules\.batch: data=2 .*size 7"),
    ],
)
def test_a_dim_that_does_not_divide_is_an_error(
    kind: str, dims: tuple[str, ...], shape: tuple[int, ...], expected: str
) -> None:
    """Case L1, and kv_heads 3 of case L3."""
    here = placed(mesh=MESH, rules=TENSOR, optimizer=dict(embed="data"))
    with pytest.raises(InputError, match=expected):
        here.spec(kind, dims, shape)


def test_the_bytes_on_devices_are_those_of_the_table() -> None:
    """Case L1: nothing is replicated silently; each real shard has the shape that the table prints."""
    from meshtrain.layout.inventory import local_shape

    layout = Layout.parse(dict(mesh=MESH, rules=TENSOR, optimizer=dict(embed="data")))
    here = place(layout)
    for kind, _, spec in inventory().paths():
        physical = here.physical(spec)
        sharding = here.sharding(kind, physical.dims, physical.shape)
        x = jax.device_put(np.zeros(physical.shape, physical.dtype), sharding)
        expected = local_shape(here, kind, spec)
        assert {shard.data.shape for shard in x.addressable_shards} == {expected}


@pytest.mark.parametrize(("num", "expected"), [(8, "tensor"), (4, "tensor"), (2, None), (1, None)])
def test_kv_heads_fewer_than_their_axis_are_replicated(num: int, expected: str | None) -> None:
    here = placed(mesh=MESH, rules=TENSOR)
    assert here.spec("params", ("embed", "kv_heads", "head_dim"), (64, num, 8)) == P(None, expected, None)


def test_kv_heads_over_two_axes_keep_the_slower_ones_that_divide() -> None:
    here = placed(mesh=dict(a=2, b=2, c=2), rules=dict(heads=("a", "b", "c"), kv_heads=("a", "b", "c")))
    assert here.spec("params", ("kv_heads",), (4,)) == P(("a", "b"))
    assert here.spec("params", ("kv_heads",), (2,)) == P("a")


def test_the_vocabulary_is_padded_alike_in_every_class() -> None:
    """Case L4."""
    here = placed(mesh=MESH, rules=TENSOR, optimizer=dict(vocab=("tensor", "data")))
    assert here.physical(array("vocab embed", 257, 64)).shape == (264, 64)
    assert here.physical(array("embed vocab", 64, 256)).shape == (64, 256)
    assert here.physical(array("embed mlp", 64, 66)).shape == (64, 66)


def test_padding_is_zeros_and_stripping_gives_the_array_back() -> None:
    here = placed(mesh=MESH, rules=TENSOR)
    specs = {"table": ArraySpec((5, 2), np.dtype("float32"), ("vocab", "embed")), "scale": array("embed", 2)}
    tree = {"table": jnp.arange(10.0).reshape(5, 2), "scale": jnp.ones(2)}
    padded = pad_tree(tree, specs, here)
    assert padded["table"].shape == (8, 2)
    assert not padded["table"][5:].any()
    stripped = strip_tree(padded, specs)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()) and a.shape == b.shape, stripped, tree))


@pytest.mark.parametrize(
    ("batch", "accumulate", "expected"),
    [
        (6, 1, r"global_batch: 6 sequences do not divide into 4 parts .*data=4.* global_batch=4 or 8 would work"),
        (16, 3, r"16 sequences .* times 3 microbatches .*12 in all. global_batch=12 or 24 would work, or accumulate=2"),
        (2, 1, r"global_batch=4 would work"),
        (0, 1, r"global_batch=4 would work"),
    ],
)
def test_a_batch_that_does_not_divide_is_an_error(batch: int, accumulate: int, expected: str) -> None:
    """Cases L1 and L2."""
    here = placed(mesh=dict(data=4, tensor=2), rules=dict(batch="data"), accumulate=accumulate)
    with pytest.raises(InputError, match=expected):
        here.check_batch(batch)
    assert here.check_batch(24) == 6 // accumulate


def test_a_way_out_of_very_many_microbatches_is_found_at_once() -> None:
    here = placed(mesh=dict(data=4, tensor=2), rules=dict(batch="data"), accumulate=10**20)
    with pytest.raises(InputError, match=r"times 100,000,000,000,000,000,000 microbatches .*, or accumulate=4"):
        here.check_batch(16)


def test_one_device_constrains_nothing() -> None:
    x = jnp.ones((2, 2))
    here = single_placement()
    assert here.constrain(x, "batch", "embed") is x
    assert here.at_use(x, "embed", "mlp") is x


def test_a_weight_is_gathered_for_use_and_its_gradient_scattered() -> None:
    layout = Layout.parse(dict(mesh=dict(data=-1), rules=dict(batch="data"), params=dict(embed="data")))
    here = place(layout)
    w = jax.device_put(np.ones((16, 4), np.float32), here.sharding("params", ("embed", "mlp"), (16, 4)))

    def loss(w: jax.Array) -> jax.Array:
        return (here.at_use(w, "embed", "mlp") ** 2).sum()

    gradient = jax.jit(jax.grad(loss))(w)
    assert gradient.sharding.spec == P("data", None)
    np.testing.assert_array_equal(gradient, 2.0)
