"""From what is asked for to the samples of training and validation."""

from collections.abc import Callable

from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import UsageError
from cephalo_cli.executor.data import Source
from cephalo_cli.executor.datasets.formats import DataFiles, find_files
from cephalo_cli.executor.datasets.images import ImageArrays, ImageFolder, NoiseImages
from cephalo_cli.executor.datasets.options import DataOptions
from cephalo_cli.executor.datasets.text import TextOpener
from cephalo_cli.executor.datasets.windows import Part

__all__ = ["open_source", "split_source"]


def open_source(
    options: DataOptions,
    model: Model,
    *,
    seq_len: int,
    seed: int,
    timeout_s: float = 600.0,
    notice: Callable[[str], None] = lambda _: None,
) -> Source:
    """Open data.

    Args:
        options: Where it is and how it is read.
        model: Says what a sample is, and which ids or classes there are.
        seq_len: Tokens of a sample.
        seed: Draws noise and masks.
        timeout_s: How long to wait for another process that tokenises the same and gets nowhere.
        notice: Told what a person should know.

    Raises:
        ArtifactError: A file is missing, unreadable or not of its kind.
        UsageError: The data does not fit the model or the options, or an optional package is missing.
        TrainingError: Another process holds the cache and gets nowhere.
    """
    files = find_files(options.data)
    if model.family == "vit":
        return _open_images(files, model, seed)
    if files.format in ("image folder", "image arrays"):
        raise UsageError(f"holds images, {model.family} models take text", where=f"--data {files.name}")
    return TextOpener(options, model, files, seq_len=seq_len, seed=seed, timeout_s=timeout_s, notice=notice).open()


def split_source(source: Source, validation_fraction: float) -> tuple[Source, Source | None]:
    """Keep the last samples for validation.

    Args:
        source: All data.
        validation_fraction: Part of the samples that is kept, rounded, but at least one; 0 keeps none.

    Returns:
        Training data, and validation data or None.
    """
    if validation_fraction == 0:
        return source, None
    border = source.num_samples - max(1, round(source.num_samples * validation_fraction))
    if border < 1:
        raise UsageError(
            f"the data has {source.num_samples} samples, which leaves none to train on",
            where="--validation-fraction",
            hint="give more data, or a smaller fraction",
        )
    return Part(source, 0, border), Part(source, border, source.num_samples)


def _open_images(files: DataFiles, model: Model, seed: int) -> Source:
    if files.format == "noise":
        return NoiseImages(model, seed)
    if files.format == "image folder":
        return ImageFolder(files, model)
    if files.format == "image arrays":
        return ImageArrays(files, model)
    raise UsageError(
        f"holds {files.format}, vit models take images",
        where=f"--data {files.name}",
        hint="give a folder of class folders with .png or .jpg images, or one with images.npy and labels.npy",
    )
