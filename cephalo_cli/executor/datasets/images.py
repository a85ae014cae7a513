"""Samples for models that classify images (vit).

A folder of class folders: every folder is a class, the classes numbered in the order of their names; PNG and JPEG files
are decoded when they are needed, made RGB (or grey for a model of one channel) and resized to the model's size. Or a
folder with ``images.npy``, [N, H, W] or [N, C, H, W] of the model's size, and ``labels.npy``, N integers.

Bytes become -1 to 1, as ViT's published weights expect; floating-point images are taken as they are. Images have no
order that means something, so they are put into one that depends on nothing but their number or name: the part that is
kept for validation has all classes.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.executor.data import Row, seed_of
from cephalo_cli.executor.datasets.formats import IMAGES_FILE, LABELS_FILE, DataFiles
from cephalo_cli.executor.datasets.windows import NUM_NOISE_SAMPLES

__all__ = ["ImageArrays", "ImageFolder", "NoiseImages"]

NUM_CLASSES_SHOWN = 5


class ImageFolder:
    """A folder of class folders.

    Args:
        files: The files, in one folder for each class.
        model: Says size, channels and number of classes.

    Raises:
        ArtifactError: An image is not in a class folder, now; or cannot be decoded, later.
        UsageError: There are more classes than the model has, or the package Pillow is not installed.
    """

    def __init__(self, files: DataFiles, model: Model) -> None:
        _import_pillow()
        for path in files.paths:
            if len(path.relative_to(files.root).parts) != 2:
                raise ArtifactError(
                    f"expected CLASS/IMAGE, found {path.relative_to(files.root)}", where=f"--data {files.name}"
                )
        classes = sorted({path.parent.name for path in files.paths})
        num_classes = model.num_classes or 0
        if len(classes) > num_classes:
            shown = ", ".join(classes[:NUM_CLASSES_SHOWN]) + (", ..." if len(classes) > NUM_CLASSES_SHOWN else "")
            raise UsageError(
                f"has {len(classes)} class folders ({shown}), model {model.name} has {num_classes} classes",
                where=f"--data {files.name}",
            )
        numbers = {name: number for number, name in enumerate(classes)}
        names = {path: path.relative_to(files.root).as_posix() for path in files.paths}
        self._paths = sorted(files.paths, key=lambda path: seed_of("image", names[path]))
        self._labels = [numbers[path.parent.name] for path in self._paths]
        self._size, self._mode = model.image_size or 0, _mode(model)
        self.num_samples = len(self._paths)
        facts = (f"{names[path]}:{path.stat().st_size}" for path in self._paths)
        self.digest = hashlib.sha256("/".join((f"images/{self._size}/{self._mode}", *facts)).encode()).hexdigest()

    def row(self, index: int, _: int) -> Row:
        """Decode an image, see `cephalo_cli.executor.data.Source.row`."""
        image = _import_pillow()
        path = self._paths[index]
        try:
            with image.open(path, formats=("PNG", "JPEG")) as file:
                pixels = np.asarray(
                    file.convert(self._mode).resize((self._size, self._size), image.Resampling.BILINEAR)
                )
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise ArtifactError(f"cannot be decoded as PNG or JPEG: {error}", where=str(path)) from error
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return _row(pixels, self._labels[index])


class ImageArrays:
    """A folder with ``images.npy`` and ``labels.npy``, mapped into memory.

    Args:
        files: The folder.
        model: Says size, channels and number of classes.

    Raises:
        ArtifactError: A file is missing, unreadable, or of another shape than expected.
        UsageError: A label is not one of the model's classes.
    """

    def __init__(self, files: DataFiles, model: Model) -> None:
        self._images = _read_array(files.root / IMAGES_FILE)
        self._labels = _read_array(files.root / LABELS_FILE)
        size, channels = model.image_size or 0, model.num_channels_or_default
        shape = self._images.shape
        if shape[1:] != (channels, size, size) and (channels > 1 or shape[1:] != (size, size)):
            raise ArtifactError(
                f"holds {self._images.dtype} of shape {shape}, model {model.name} takes "
                f"[N, {channels}, {size}, {size}]",
                where=str(files.root / IMAGES_FILE),
            )
        if self._images.dtype != np.uint8 and not np.issubdtype(self._images.dtype, np.floating):
            raise ArtifactError(
                f"holds {self._images.dtype}, expected bytes (uint8) or floating-point numbers",
                where=str(files.root / IMAGES_FILE),
            )
        if self._labels.shape != shape[:1] or not np.issubdtype(self._labels.dtype, np.integer):
            raise ArtifactError(
                f"holds {self._labels.dtype} of shape {self._labels.shape}, expected {shape[0]} integers, one an image",
                where=str(files.root / LABELS_FILE),
            )
        _check_labels(self._labels, model, files.root / LABELS_FILE)
        self.num_samples = len(self._images)
        self._order = torch.randperm(self.num_samples, generator=torch.Generator().manual_seed(seed_of("image arrays")))
        digest = hashlib.sha256(f"image arrays/{self._images.dtype}/{shape}/".encode())
        for array in (self._images, self._labels):
            for start in range(0, len(array), 1024):
                digest.update(np.ascontiguousarray(array[start : start + 1024]).data)
        self.digest = digest.hexdigest()

    def row(self, index: int, _: int) -> Row:
        """Give an image, see `cephalo_cli.executor.data.Source.row`."""
        place = int(self._order[index])
        pixels = self._images[place]
        return _row(pixels[None] if pixels.ndim == 2 else pixels, int(self._labels[place]))


class NoiseImages:
    """Normally distributed pixels with uniform labels, a generator of its own for each sample."""

    num_samples = NUM_NOISE_SAMPLES

    def __init__(self, model: Model, seed: int) -> None:
        size = model.image_size or 0
        self._shape, self._num_classes, self._seed = (
            (model.num_channels_or_default, size, size),
            model.num_classes,
            seed,
        )
        self.digest = hashlib.sha256(f"random/{self._shape}/{self._num_classes}/{seed}".encode()).hexdigest()

    def row(self, index: int, _: int) -> Row:
        """Give a sample, see `cephalo_cli.executor.data.Source.row`."""
        generator = torch.Generator().manual_seed(seed_of(self._seed, "random", index))
        label = int(torch.randint(self._num_classes or 1, (), generator=generator))
        return _row(torch.randn(self._shape, generator=generator).numpy(), label)


def _row(pixels_CHW: npt.NDArray[Any], label: int) -> Row:
    is_bytes = pixels_CHW.dtype == np.uint8
    image = pixels_CHW.astype(np.float32)
    return {
        "images_BCHW": image / np.float32(127.5) - 1 if is_bytes else image,
        "labels_B": np.asarray(label, dtype=np.int64),
    }


def _mode(model: Model) -> str:
    channels = model.num_channels_or_default
    if channels not in (1, 3):
        raise UsageError(
            f"has {channels} channels, image files have 3, or 1 if they are grey", where=f"model {model.name}"
        )
    return "RGB" if channels == 3 else "L"


def _import_pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise UsageError(
            "image files need the package Pillow, which is not installed",
            where="--data",
            hint="pip install 'cephalo_cli[images]', or give images.npy and labels.npy",
        ) from error
    return Image


def _read_array(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read as an array: {error}", where=str(path)) from error
    return array


def _check_labels(labels: npt.NDArray[Any], model: Model, path: Path) -> None:
    num_classes = model.num_classes or 0
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise UsageError(
            f"holds class {int(labels[wrong[0]])} at position {int(wrong[0])}, model {model.name} has "
            f"0 to {num_classes - 1}",
            where=str(path),
        )
