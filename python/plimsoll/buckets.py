"""Sequences of varying length: the lengths that have a plan, and padding of batches of other lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .errors import BadInput
from .ops import tensors_in
from .torch_private import tree_map_with_path

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Buckets:
    """The lengths that have a plan: `Buckets([128, 256, 512], pad={"input_ids": 0, "attention_mask": 0, "labels": -100})`.

    The length of a batch is the size along `dim` of its first tensor that has this dimension; every tensor with this size
    there is part of the sequence. With `pad` a batch is padded at its end to the next length, each tensor with the value
    under its name: its key in a dictionary, its position among the arguments or in a tuple. Without `pad`, lengths must
    match exactly, and the collating function does the padding.
    """

    lengths: Sequence[int]
    pad: Mapping[str | int, float] | None = None
    dim: int = 1

    def __post_init__(self) -> None:
        if not self.lengths or any(
            isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in self.lengths
        ):
            raise BadInput(f"buckets are lengths such as [128, 256, 512], not {self.lengths!r}")
        if self.dim < 0:
            raise BadInput(f"`dim` must be 0 or more, counted from the front; it is {self.dim}")

    @staticmethod
    def parse(buckets: Buckets | Sequence[int] | None) -> Buckets | None:
        """Returns the buckets, made from a list of lengths if that is given."""
        return buckets if buckets is None or isinstance(buckets, Buckets) else Buckets(buckets)

    def fitted(self, batch: Arguments) -> Arguments:
        """Returns the batch at a length that has a plan. Raises `BadInput` if it is longer than all, or cannot be padded."""
        length = self._length(batch)
        if length in self.lengths:
            return batch
        wanted = min((n for n in self.lengths if n >= length), default=None)
        known = ", ".join(map(str, sorted(self.lengths)))
        if wanted is None:
            raise BadInput(
                f"a batch of length {length} is longer than all buckets ({known}): truncate it, or add a bucket"
            )
        pad = self.pad
        if pad is None:
            raise BadInput(
                f"a batch of length {length} has no bucket ({known}): pad it where batches are collated, or give "
                "`plimsoll.Buckets` with `pad`"
            )

        def padded(name: object, tensor: torch.Tensor) -> torch.Tensor:
            if name not in pad:
                raise BadInput(
                    f"no value to pad `{name}` with is known, a tensor of the shape {tuple(tensor.shape)}: name one in `pad`"
                )
            shape = list(tensor.shape)
            shape[self.dim] = wanted - length
            return torch.cat([tensor, tensor.new_full(shape, pad[name])], self.dim)  # type: ignore[index]

        return self._mapped(batch, length, padded)

    def longest(self, batch: Arguments) -> Arguments:
        """Returns the batch at the largest length that has a plan: its sequences are cut off or repeated."""
        length, wanted = self._length(batch), max(self.lengths)

        def stretched(_name: object, tensor: torch.Tensor) -> torch.Tensor:
            return torch.cat([tensor] * -(-wanted // length), self.dim).narrow(self.dim, 0, wanted)

        return self._mapped(batch, length, stretched)

    def _length(self, batch: Arguments) -> int:
        lengths = [
            t.shape[self.dim] for t in tensors_in(batch) if t.dim() > self.dim and t.shape[self.dim] > 0
        ]
        if not lengths:
            raise BadInput(
                f"no tensor of the batch has a dimension {self.dim} to take the length of: give `dim`"
            )
        return lengths[0]

    def _mapped(
        self, batch: Arguments, length: int, change: Callable[[object, torch.Tensor], torch.Tensor]
    ) -> Arguments:
        def one(path: tuple[Any, ...], leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.dim() <= self.dim or leaf.shape[self.dim] != length:
                return leaf
            last = path[-1]
            return change(getattr(last, "key", getattr(last, "idx", None)), leaf)

        return tree_map_with_path(one, batch)
