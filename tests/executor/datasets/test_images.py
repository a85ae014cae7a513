"""Images: folders of files, arrays, and what is refused."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.executor.data import Source
from cephalo_cli.executor.datasets.opening import split_source
from tests.executor.datasets.opened import open_data

VIT = {"image_size": 8, "patch_size": 4, "num_classes": 3, "vocab_size": None, "max_seq_len": None}


def open_images(folder: Path | str, **changes: Any) -> Source:
    return open_data(folder, family="vit", model=VIT | changes)


def write_image(path: Path, colour: Any, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new(mode, size, colour).save(path)


def write_arrays(folder: Path, images: Any, labels: Any) -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    return folder


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    write_image(tmp_path / "dog" / "a.png", (255, 0, 51))
    write_image(tmp_path / "cat" / "b.jpg", (255, 255, 255), (30, 17))
    write_image(tmp_path / "cat" / "c.PNG", 0, (3, 5), "L")
    write_image(tmp_path / "emu" / "d.png", (0, 0, 0, 128), mode="RGBA")
    source = open_images(tmp_path)
    rows = [source.row(index, 0) for index in range(source.num_samples)]
    assert all(row["images_BCHW"].shape == (3, 8, 8) and row["images_BCHW"].dtype == np.float32 for row in rows)
    pixels = {
        (int(row["labels_B"]), *(round(each, 2) for each in np.unique(row["images_BCHW"]).tolist())) for row in rows
    }
    assert pixels == {(0, 1.0), (0, -1.0), (1, -1.0, -0.6, 1.0), (2, -1.0)}
    grey = open_images(tmp_path, num_channels=1)
    assert {grey.row(index, 0)["images_BCHW"].shape for index in range(4)} == {(1, 8, 8)}
    assert grey.digest != source.digest == open_images(tmp_path).digest


def test_arrays(tmp_path: Path) -> None:
    images = np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8)
    labels = np.array([0, 1, 2, 0, 1], dtype=np.int8)
    source = open_images(write_arrays(tmp_path / "bytes", images, labels), num_channels=1)
    found = sorted((float(row["images_BCHW"][0, 0, 1]), int(row["labels_B"])) for row in rows_of(source))
    expected = sorted((image[0, 1] / 127.5 - 1, label) for image, label in zip(images, labels.tolist(), strict=True))
    assert np.array(found) == pytest.approx(np.array(expected), abs=1e-6)
    floats = np.arange(2 * 3 * 64).reshape(2, 3, 8, 8) / 7
    as_they_are = open_images(write_arrays(tmp_path / "floats", floats, np.array([2, 1])))
    for row in rows_of(as_they_are):
        assert (row["images_BCHW"] == floats[2 - int(row["labels_B"])].astype(np.float32)).all()


def rows_of(source: Source) -> list[dict[str, Any]]:
    return [source.row(index, 0) for index in range(source.num_samples)]


def test_what_is_kept_for_validation_has_all_classes(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], 40)
    write_arrays(tmp_path / "arrays", np.zeros((120, 8, 8), dtype=np.uint8), labels)
    for number, label in enumerate(labels.tolist()):
        write_image(tmp_path / "files" / "abc"[label] / f"{number}.png", (0, 0, 0))
    for name, channels in (("arrays", 1), ("files", 3)):
        training, validation = split_source(open_images(tmp_path / name, num_channels=channels), 0.25)
        assert validation is not None
        counts = [Counter(int(row["labels_B"]) for row in rows_of(part)) for part in (training, validation)]
        assert counts[0] + counts[1] == Counter({0: 40, 1: 40, 2: 40})
        assert min(counts[1][label] for label in range(3)) >= 4


def test_noise_has_every_class() -> None:
    source = open_images("random")
    rows = [source.row(index, 0) for index in range(50)]
    assert {int(row["labels_B"]) for row in rows} == {0, 1, 2}
    assert (rows[0]["images_BCHW"] == open_images("random").row(0, 3)["images_BCHW"]).all()
    assert (rows[0]["images_BCHW"] != rows[1]["images_BCHW"]).any()


def refuse(message: str, kind: type[Exception], folder: Path | str, **changes: Any) -> None:
    with pytest.raises(kind) as refusal:
        rows_of(open_images(folder, **changes))
    assert message in str(refusal.value)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "flat" / "a.png", 0)
    refuse("expected CLASS/IMAGE, found a.png", ArtifactError, tmp_path / "flat")
    write_image(tmp_path / "deep" / "train" / "cat" / "a.png", 0)
    refuse("expected CLASS/IMAGE, found train/cat/a.png", ArtifactError, tmp_path / "deep")
    for name in "abcd":
        write_image(tmp_path / "many" / name / "a.png", 0)
    refuse("has 4 class folders (a, b, c, d), model tiny-vit has 3 classes", UsageError, tmp_path / "many")
    refuse(
        "has 2 channels, image files have 3, or 1 if they are grey",
        UsageError,
        tmp_path / "many",
        num_channels=2,
        num_classes=4,
    )
    (tmp_path / "broken" / "a").mkdir(parents=True)
    (tmp_path / "broken" / "a" / "x.png").write_bytes(b"\x89PNG no more")
    refuse("broken/a/x.png: cannot be decoded as PNG or JPEG", ArtifactError, tmp_path / "broken")
    (tmp_path / "text.txt").write_text("text")
    refuse("holds text, vit models take images", UsageError, tmp_path / "text.txt")
    with pytest.raises(UsageError, match="holds images, gpt models take text"):
        open_data(tmp_path / "many")
    monkeypatch.setitem(sys.modules, "PIL", None)
    refuse(
        "image files need the package Pillow, which is not installed (pip install 'cephalo_cli[images]'",
        UsageError,
        tmp_path / "many",
        num_classes=4,
    )


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), dtype=np.uint8), np.zeros(4, dtype=np.int64)
    grey = {"num_channels": 1}
    refuse(
        "holds uint8 of shape (4, 8, 8), model tiny-vit takes [N, 3, 8, 8]",
        ArtifactError,
        write_arrays(tmp_path, images, labels),
    )
    refuse("takes [N, 1, 8, 8]", ArtifactError, write_arrays(tmp_path, images[:, :7], labels), **grey)
    refuse(
        "holds int64, expected bytes (uint8) or floating-point numbers",
        ArtifactError,
        write_arrays(tmp_path, images.astype(np.int64), labels),
        **grey,
    )
    refuse(
        "labels.npy: holds int64 of shape (3,), expected 4 integers",
        ArtifactError,
        write_arrays(tmp_path, images, labels[:3]),
        **grey,
    )
    refuse("labels.npy: holds float64 of shape (4,)", ArtifactError, write_arrays(tmp_path, images, labels / 1), **grey)
    refuse(
        "holds class 3 at position 2, model tiny-vit has 0 to 2",
        UsageError,
        write_arrays(tmp_path, images, np.array([0, 1, 3, 2])),
        **grey,
    )
    refuse(
        "images.npy: cannot be read as an array",
        ArtifactError,
        write_arrays(tmp_path, np.array([{}], dtype=object), labels),
        **grey,
    )
    (tmp_path / "labels.npy").unlink()
    refuse("cannot be read as an array", ArtifactError, write_folder_without_labels(tmp_path, images), **grey)


def write_folder_without_labels(folder: Path, images: Any) -> Path:
    np.save(folder / "images.npy", images)
    return folder
