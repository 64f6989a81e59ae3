"""Frozen, keyword-only dataclasses that JAX can map over."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass and a pytree whose children are its fields, in order.

    JAX rebuilds such a value with placeholders in place of arrays (`eval_shape`, tree
    structures). That goes around the constructor, so that shape checks on construction
    see arrays only.
    """
    record: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(record))

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], None]:
        return [(jax.tree_util.GetAttrKey(n), getattr(value, n)) for n in names], None

    def unflatten(_: None, children: Any) -> Any:
        value = object.__new__(record)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(value, name, child)
        return value

    jax.tree_util.register_pytree_with_keys(record, flatten_with_keys, unflatten)
    return record
