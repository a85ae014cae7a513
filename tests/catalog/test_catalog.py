"""The catalog: every entry is sound, counts are the published ones, names are found however they are spelt."""

import csv
from pathlib import Path

import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts import Cluster, store
from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.catalog.data import bare, device_records, model_records, normal
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.units import model_units, num_parameters

ROOT = Path(__file__).parents[2]
SHAPES = ROOT.parent / "shared" / "data" / "model_shapes.csv"


def _cluster(**device_types: DeviceType) -> Cluster:
    return Cluster(
        name="test",
        device_types=device_types,
        nodes=(Node(name="a", devices=tuple(device_types)),),
        network="ideal",
    )


def test_there_are_at_least_forty_device_types_each_with_a_source() -> None:
    records = device_records()
    assert len(records) >= 40
    for key, record in records.items():
        assert key == normal(key)
        assert record.source
        assert all(name.split(".")[0] in type(record).model_fields for name in record.other_sources), key
        assert record.pcie is not None or record.host_bytes_per_s is not None or record.backend == "cpu"


@pytest.mark.parametrize("records", [device_records(), model_records()], ids=["devices", "models"])
def test_no_name_means_two_things(records: dict[str, object]) -> None:
    names = [name for key, record in records.items() for name in (key, *record.aliases)]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
    assert all(name == normal(name) for name in names)


def test_names_of_drivers_mean_one_device() -> None:
    meant: dict[str, str] = {}
    for key, record in device_records().items():
        for name in (key, *record.aliases):
            assert meant.setdefault(bare(name), key) == key, name


def test_sixteen_bit_rates_exceed_nothing_a_chip_can_do() -> None:
    for key, record in device_records().items():
        if record.architecture in ("pascal", "pascal-dc", "volta", "turing"):
            assert "bfloat16" not in record.peak_flops, key
        if "bfloat16" in record.peak_flops and record.backend == "cuda":
            assert record.peak_flops["bfloat16"] == record.peak_flops["float16"], key


@pytest.mark.parametrize("name", list(model_records()))
def test_a_model_has_the_published_number_of_parameters(name: str) -> None:
    model = catalog.model(name)
    assert num_parameters(model) == model_records()[name].num_parameters
    assert sum(unit.num_parameters for unit in model_units(model)) == model_records()[name].num_parameters


@pytest.mark.skipif(not SHAPES.exists(), reason="the shared reference data is not here")
def test_the_published_shapes_are_the_catalogs() -> None:
    with SHAPES.open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        model = catalog.model(row["model"])
        wanted = int(row["params_total"])
        if model.family == "vit":
            assert num_parameters(catalog.model(f"{row['model']}-224")) == wanted
            wanted += (577 - 197) * model.hidden_size  # 384 pixels have more positions
        assert num_parameters(model) == wanted
        assert model_units(model)[1].num_parameters == int(row["params_per_block"])
        assert (model.num_layers, model.hidden_size) == (int(row["num_layers"]), int(row["hidden_size"]))
        assert (model.num_heads, model.ffn_size) == (int(row["num_heads"]), int(row["ffn_size"]))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("3090", "rtx-3090"),
        ("RTX_3090", "rtx-3090"),
        ("A100 80GB", "a100-80gb"),
        ("rtx4090", "rtx-4090"),
        ("RTX 3090Ti", "rtx-3090-ti"),
        # As drivers call them.
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_devices_are_found_however_they_are_spelt(name: str, key: str) -> None:
    assert catalog.device(name).catalog == key


def test_underscores_and_dashes_are_one() -> None:
    assert catalog.model("gpt_1.3b") == catalog.model("gpt-1.3b")
    assert catalog.model("GPT2-124M").name == "gpt2"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2-124m", 124_439_808),
        ("gpt2-355m", 354_823_168),
        ("gpt2-774m", 774_030_080),
        ("gpt2-1.5b", 1_557_611_200),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-3b", 3_426_473_600),
        ("llama-7b", 6_738_415_616),
        ("llama-13b", 13_015_864_320),
        ("llama-33b", 32_528_943_616),
        ("llama-65b", 65_285_660_672),
        ("llama-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("mistral-7b", 7_241_732_096),
        ("bert-base", 109_514_298),
        ("bert-large", 335_174_458),
        ("vit-base", 86_567_656),
        ("vit-large", 304_326_632),
    ],
)
def test_a_name_without_more_is_the_model_everyone_knows(name: str, count: int) -> None:
    """Counts of the safetensors files on the Hub (bert: with the masked-language head, without the pooler)."""
    assert num_parameters(catalog.model(name)) == count


@pytest.mark.parametrize(("name", "about"), [("gpt-1.3b", 1.4e9), ("gpt-2.7b", 2.8e9), ("gpt-6.7b", 6.9e9)])
def test_gpts_of_the_reference_have_its_large_vocabulary(name: str, about: float) -> None:
    assert num_parameters(catalog.model(name)) == pytest.approx(about, rel=0.02)


def test_names_of_the_reference_tables_are_taken_to_the_letter() -> None:
    written = [name for record in model_records().values() for name in record.table_names]
    assert len(written) == len(set(written))
    for name in written:
        reference, published = catalog.model(name), catalog.model(normal(name))
        assert reference.name == f"cephalo-{normal(name)}"
        assert (reference.vocab_size, published.name != reference.name) == (49152, True)
        assert model_units(reference)[1].num_parameters == model_units(published)[1].num_parameters


def test_memory_counts_in_powers_of_two() -> None:
    assert catalog.device("l4").memory_bytes == 24 * 2**30
    assert catalog.device("rtx-4060-ti-16gb").host_link is not None


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    cluster = _cluster(fast=DeviceType(catalog="rtx-309"))
    with pytest.raises(ArtifactError) as caught:
        catalog.resolve_cluster(cluster, where="c.json")
    assert str(caught.value) == (
        "c.json: device_types.fast.catalog: the catalog has no device 'rtx-309' (did you mean 'rtx-3090'?)"
    )


def test_what_the_file_says_wins_over_the_catalog() -> None:
    given = DeviceType(catalog="RTX_3090", memory_bytes=10**10, peak_flops={"float32": 2e13}, price_per_hour=0.2)
    resolved = catalog.resolve_cluster(_cluster(mine=given)).device_types["mine"]
    facts = catalog.device("rtx-3090")
    assert (resolved.memory_bytes, resolved.price_per_hour, resolved.catalog) == (10**10, 0.2, "rtx-3090")
    assert resolved.peak_flops == {**(facts.peak_flops or {}), "float32": 2e13}
    assert resolved.memory_bandwidth_bytes_per_s == facts.memory_bandwidth_bytes_per_s


def test_resolving_twice_changes_nothing_and_custom_devices_stay() -> None:
    custom = DeviceType(backend="cpu", memory_bytes=2**30, emulated_speed=0.5)
    once = catalog.resolve_cluster(_cluster(l4=DeviceType(catalog="l4"), small=custom))
    assert catalog.resolve_cluster(once) == once
    assert once.device_types["small"] == custom


def test_gpus_become_one_node_in_the_order_given() -> None:
    cluster = catalog.cluster_from_gpus("l4:2,A6000,p40")
    assert [place.device for place in cluster.ranks] == ["l4", "l4", "a6000", "p40"]
    assert cluster.nodes[0].link is not None
    assert cluster.nodes[0].link.bandwidth_bytes_per_s == 15.75e9  # the P40's third-generation slot
    assert store.loads(store.dumps(cluster).encode(), where="x") == cluster


def test_equal_devices_of_one_board_use_its_links() -> None:
    link = catalog.cluster_from_gpus("h100-sxm:8").nodes[0].link
    assert link is not None
    assert link.bandwidth_bytes_per_s == 450e9


def test_ten_thousand_devices_of_a_type() -> None:
    assert len(catalog.cluster_from_gpus("l4:10000").ranks) == 10_000


@pytest.mark.parametrize("text", ["l4:0", "l4:x", "l4:-1", "l4:2:3", "l4:1000000"])
def test_gpus_that_are_no_list_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a device with a count"):
        catalog.cluster_from_gpus(text)


@pytest.mark.parametrize("text", ["l4,,p40", "3090:2,", ",l4"])
def test_a_comma_with_nothing_beside_it_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        catalog.cluster_from_gpus(text)
    assert str(refusal.value) == (
        f"--gpus: a device is missing beside a comma in {text!r} (write it like l4:2,a6000,p40)"
    )


def test_no_gpus_at_all_are_refused() -> None:
    with pytest.raises(UsageError, match="--gpus: no device is named"):
        catalog.cluster_from_gpus("")


@pytest.mark.parametrize("text", ["3090x2", "3090 x 2", "3090:2x", "3090:x2", "2x3090", "2 X 3090", "2:3090"])
def test_other_ways_to_write_a_count_are_put_right(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        catalog.cluster_from_gpus(f"l4,{text}")
    assert str(refusal.value) == f"--gpus: {text!r} is not a device with a count (write 3090:2)"


def test_gpus_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ArtifactError, match="no device 'voodoo-2'"):
        catalog.cluster_from_gpus("l4,voodoo-2")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.json")), ids=lambda path: path.stem)
def test_example_files_read_and_round_trip(path: Path) -> None:
    artifact = store.read_any(path)
    assert store.dumps(artifact) == path.read_text()
    if isinstance(artifact, Cluster):
        resolved = catalog.resolve_cluster(artifact)
        assert all(kind.memory_bytes for kind in resolved.device_types.values())
