"""Shards in torch's distributed checkpoints: each rank writes its ranges, and reads whatever ranges it has now.

Every tensor is one dimension, a unit's flat buffer, so a shard is an offset and a length. Saved chunks are cut anew on
reading by torch's own overlap search; elements are copied, never computed, so they stay the same to the last bit.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

__all__ = ["LoadShards", "SaveShards", "Shard"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One rank's part of a flat buffer."""

    data: torch.Tensor
    """The elements, in one dimension; may be none."""
    start: int
    """Position of the first in the buffer."""
    num_elements: int
    """Length of the buffer."""

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """Where it lies."""
        return ChunkStorageMetadata(offsets=torch.Size((self.start,)), sizes=self.data.size())


class SaveShards(SavePlanner):
    """Writes the shards of every rank."""

    def __init__(self) -> None:
        self._shards: Mapping[str, Shard] = {}

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: object = None,  # noqa: ARG002 - torch calls with it
        is_coordinator: bool = False,  # noqa: ARG002, FBT001, FBT002 - torch calls with it
    ) -> None:
        """Take this rank's shards."""
        self._shards = state_dict

    def create_local_plan(self) -> SavePlan:
        """List what this rank writes."""
        return SavePlan([_write_item(name, shard) for name, shard in self._shards.items() if len(shard.data)])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Put the ranks' chunks together."""
        tensors: dict[str, Any] = {}
        plans = []
        for plan in all_plans:
            items = []
            for item in plan.items:
                if item.tensor_data is None:
                    raise AssertionError("shards are tensors")
                name, data = item.index.fqn, item.tensor_data
                whole = tensors.setdefault(
                    name, TensorStorageMetadata(properties=data.properties, size=data.size, chunks=[])
                )
                items.append(replace(item, index=replace(item.index, index=len(whole.chunks))))
                whole.chunks.append(data.chunk)
            plans.append(replace(plan, items=items))
        return plans, Metadata(state_dict_metadata=tensors)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Nothing is left to do."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """Give the elements of a shard."""
        return self._shards[write_item.index.fqn].data


class LoadShards(LoadPlanner):
    """Fills the shards of this rank from whatever was saved."""

    def __init__(self) -> None:
        self._shards: Mapping[str, Shard] = {}
        self._saved: Mapping[str, Any] = {}

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: ARG002, FBT001, FBT002 - torch calls with it
    ) -> None:
        """Take this rank's shards and the list of what was saved."""
        self._shards = state_dict
        self._saved = {} if metadata is None else metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        """List what this rank reads."""
        items = []
        for name, shard in self._shards.items():
            saved = self._saved.get(name)
            if shard.num_elements == 0 and saved is None:
                continue  # a unit that is frozen as a whole has no moments, and nobody wrote them
            if saved is None or saved.size != torch.Size((shard.num_elements,)):
                raise ValueError(f"{name} has {shard.num_elements} elements, the checkpoint has {saved}")
            if len(shard.data):
                items += create_read_items_for_chunk_list(name, saved, [shard.chunk])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Ranks read on their own."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Nothing is left to do."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Shards are tensors."""
        raise AssertionError(f"{read_item.dest_index.fqn} is {value!r}, not a tensor")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Give the part of a shard that an item fills."""
        start, length = read_item.dest_offsets[0], read_item.lengths[0]
        return self._shards[read_item.dest_index.fqn].data[start : start + length]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """The part was filled in place."""


def _write_item(name: str, shard: Shard) -> WriteItem:
    data = TensorWriteData(
        chunk=shard.chunk,
        properties=TensorProperties.create_from_tensor(shard.data),
        size=torch.Size((shard.num_elements,)),
    )
    return WriteItem(index=MetadataIndex(name, torch.Size((shard.start,))), type=WriteItemType.SHARD, tensor_data=data)
