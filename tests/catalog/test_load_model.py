"""One door for models: names, files, configurations and folders."""

from pathlib import Path

import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts import Model, store
from cephalo_cli.errors import ArtifactError
from cephalo_cli.units import num_parameters
from tests.catalog.configs import GPT2, written


def test_one_door_takes_names_artifacts_configurations_and_folders(tmp_path: Path) -> None:
    named, no_files = catalog.load_model("gpt2")
    assert no_files == ()
    artifact = tmp_path / "shape.json"
    store.write(named, artifact)
    assert catalog.load_model(str(artifact))[0] == named
    config = written(tmp_path, GPT2)
    renamed = tmp_path / "other.json"
    renamed.write_text(config.read_text())
    for text in (str(config), str(tmp_path), str(renamed)):
        model, files = catalog.load_model(text)
        assert num_parameters(model) == num_parameters(named)
        assert [Path(file.path).name for file in files] == [renamed.name if text == str(renamed) else "config.json"]


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"the catalog has no model 'gpt3' \(cephalo catalog models gpt lists"):
        catalog.load_model("gpt3")
    with pytest.raises(ArtifactError, match=r"no such file \(nothing is downloaded, but the catalog has 'lla"):
        catalog.load_model("meta-llama/Llama-3.2-1B")
    with pytest.raises(ArtifactError, match="no such file"):
        catalog.load_model(str(tmp_path / "gone.json"))
    with pytest.raises(ArtifactError, match="no such file"):
        catalog.load_model(str(tmp_path))
    cluster = tmp_path / "cluster.json"
    store.write(catalog.cluster_from_gpus("l4"), cluster)
    with pytest.raises(ArtifactError, match="found a cluster, expected a model"):
        catalog.load_model(str(cluster))
    assert isinstance(catalog.load_model("gpt2")[0], Model)
