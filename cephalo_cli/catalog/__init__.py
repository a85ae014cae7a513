"""Known device types and models, each number with its source, by the names people use."""

from cephalo_cli.catalog.devices import cluster_from_gpus, device, resolve_cluster
from cephalo_cli.catalog.huggingface import model_from_hf_config
from cephalo_cli.catalog.models import load_model, model

__all__ = ["cluster_from_gpus", "device", "load_model", "model", "model_from_hf_config", "resolve_cluster"]
