import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from rlboost_jax.models.parameter_sharding import AXES, NotEnoughDevices, make_mesh, param_shardings
from rlboost_jax.models.params import abstract_params, flatten_params
from rlboost_jax.settings.model_config import LoraConfig


def specs(config, shape):
    mesh = AbstractMesh(shape, AXES, axis_types=(AxisType.Auto,) * 3)
    return {k: s.spec for k, s in flatten_params(param_shardings(config, mesh)).items()}


def test_every_matrix_is_split_over_both_axes(small_model):
    found = specs(small_model(), (2, 2, 2))
    for name, leaf in flatten_params(abstract_params(small_model())).items():
        axes = [axis for axis in found[name] if axis is not None]
        is_norm = name.endswith("scale")
        assert sorted(axes) == ([] if is_norm else ["fsdp", "tensor"]), name
        assert len(found[name]) <= len(leaf.shape)


def test_layers_and_contracted_axes(small_model):
    found = specs(small_model(), (1, 2, 2))
    assert found["layers.attention.query.kernel"] == PartitionSpec(None, "fsdp", "tensor")
    assert found["layers.attention.output.kernel"] == PartitionSpec(None, "tensor", "fsdp")


def test_an_adapter_s_factors_are_split_as_its_matrix_is(small_model):
    """Along the axis that they share with it; a rank is too small to split."""
    found = specs(small_model(lora=LoraConfig(rank=4)), (1, 2, 2))
    for name in [name for name in found if name.endswith("lora_a")]:
        _, rows, columns = found[name.replace("lora_a", "kernel")]
        assert found[name] == PartitionSpec(None, rows, None), name
        assert found[name.replace("lora_a", "lora_b")] == PartitionSpec(None, None, columns), name


def test_whole_experts_and_heads_lie_on_a_device(small_model):
    changes = {"num_experts": 4, "experts_per_token": 2, "expert_dim": 12, "attention_bias": True}
    found = specs(small_model(**changes), (1, 2, 2))
    assert found["layers.mlp.experts.up"] == PartitionSpec(None, "tensor", "fsdp", None)
    assert found["layers.mlp.experts.down"] == PartitionSpec(None, "tensor", None, "fsdp")
    assert found["layers.mlp.router.kernel"] == PartitionSpec(None, "fsdp", None)
    assert found["layers.attention.key.bias"] == PartitionSpec(None, "tensor")
    odd = specs(small_model(**{**changes, "num_experts": 5}), (1, 2, 2))
    assert odd["layers.mlp.experts.up"] == PartitionSpec(None, None, "fsdp", None)


def test_an_axis_that_does_not_divide_stays_whole(small_model):
    found = specs(small_model(vocab_size=25), (1, 2, 3))
    assert found["embedding.table"] == PartitionSpec(None, "fsdp")
    assert found["layers.mlp.up.kernel"] == PartitionSpec(None, "fsdp", None)


def test_too_few_devices_is_said_in_one_line():
    needed = len(jax.devices()) + 1
    with pytest.raises(NotEnoughDevices, match=rf"{needed} devices needed by learner\.mesh"):
        make_mesh((needed, 1, 1))
