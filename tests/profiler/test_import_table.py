"""Imported profiles say what their tables say, at every microbatch size."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli import catalog
from cephalo_cli.artifacts import Cluster, Model, Profile
from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.errors import ArtifactError, CephaloError
from cephalo_cli.profiler.import_table import import_profile

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared reference data is not here")

LATENCY = """model,device,seq_len,dtype,microbatch,forward_ms,backward_ms
tiny,fast,128,float32,1,1.0,2.0
tiny,fast,128,float32,2,1.5,3.0
tiny,fast,128,float32,4,3.0,6.0
tiny,slow,128,float32,1,4.0,8.0
tiny,slow,128,float32,1,6.0,8.0
tiny,slow,128,float32,1,5.0,8.0
tiny,slow,128,float32,2,4.5,16.0
"""
MEMORY = """cluster,model,dtype,microbatch,working_bytes,parameters
one,tiny,float32,1,1000,5000
one,tiny,float32,2,1500,5000
two,tiny,float32,1,900,5000
two,tiny,float32,2,1700,5000
"""
TINY = Model(
    name="tiny",
    family="llama",
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    ffn_size=16,
    vocab_size=100,
    max_seq_len=128,
)


def _cluster(*devices: str, name: str = "mixed") -> Cluster:
    return Cluster(
        name=name,
        device_types={device: DeviceType(memory_bytes=10**9) for device in devices},
        nodes=(Node(name="a", devices=devices),),
        network="ideal",
    )


def _import(
    folder: Path, latency: str = LATENCY, memory: str = MEMORY, *, cluster: Cluster | None = None, **options: str
) -> Profile:
    (folder / "latency.csv").write_text(latency)
    (folder / "memory.csv").write_text(memory)
    return import_profile(
        cluster or _cluster("fast", "slow"),
        TINY,
        seq_len=128,
        dtype="float32",
        latency_csv=folder / "latency.csv",
        memory_csv=folder / "memory.csv",
        **options,
    )


def test_points_stand_as_measured_in_seconds(tmp_path: Path) -> None:
    profile = _import(tmp_path)
    block = profile.devices["fast"].units["block"]
    at = dict(zip(block.microbatch, zip(block.forward_s, block.backward_s, strict=True), strict=True))
    assert (at[1], at[2], at[4]) == ((0.001, 0.002), (0.0015, 0.003), (0.003, 0.006))
    assert list(profile.devices["fast"].units) == ["block"]
    assert profile.devices["fast"].method == "imported"
    assert profile.num_parameters == 5000
    assert profile.network == "ideal"
    assert [Path(file.path).name for file in profile.inputs] == ["latency.csv", "memory.csv"]


def test_repeated_rows_count_as_their_median_and_oddities_are_flagged(tmp_path: Path) -> None:
    block = _import(tmp_path).devices["slow"].units["block"]
    assert block.forward_s[0] == 0.005
    assert "times: 4 rows for 2 sizes, the median of each is used" in block.flags
    assert "forward: 2 samples took less time than fewer" in block.flags


def test_without_a_cluster_of_that_name_the_largest_memory_counts(tmp_path: Path) -> None:
    block = _import(tmp_path).devices["fast"].units["block"]
    assert block.working_bytes[:2] == (1000, 1700)
    assert "memory: at every size the largest of clusters one, two" in block.flags


@pytest.mark.parametrize(("name", "option"), [("two", None), ("mixed", "two")])
def test_the_clusters_own_memory_or_the_one_asked_for(name: str, option: str | None, tmp_path: Path) -> None:
    options = {"memory_cluster": option} if option else {}
    block = _import(tmp_path, cluster=_cluster("fast", name=name), **options).devices["fast"].units["block"]
    assert block.working_bytes[:2] == (900, 1700)
    assert not any(flag.startswith("memory") for flag in block.flags)


curves = st.dictionaries(st.integers(1, 20), st.integers(1, 10**6), min_size=1, max_size=9)


@given(times=curves, memory=curves)
def test_curves_on_one_grid_have_the_values_they_had_alone(
    times: dict[int, int], memory: dict[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # curves that grow: a falling one may end at zero between two points, which measured ones do not
    rising_s = dict(zip(sorted(times), sorted(times.values()), strict=True))
    rising_bytes = dict(zip(sorted(memory), sorted(memory.values()), strict=True))
    latency = "model,device,seq_len,dtype,microbatch,forward_ms,backward_ms\n" + "".join(
        f"tiny,fast,128,float32,{size},{value},{value}\n" for size, value in rising_s.items()
    )
    table = "cluster,model,dtype,microbatch,working_bytes,parameters\n" + "".join(
        f"one,tiny,float32,{size},{value},5\n" for size, value in rising_bytes.items()
    )
    block = (
        _import(tmp_path_factory.mktemp("tables"), latency, table, cluster=_cluster("fast"))
        .devices["fast"]
        .units["block"]
    )
    for size in range(60):
        alone_s = interpolate(list(rising_s), [value / 1e3 for value in rising_s.values()], size)
        alone_bytes = interpolate(list(rising_bytes), list(map(float, rising_bytes.values())), size)
        assert interpolate(block.microbatch, block.forward_s, size) == pytest.approx(alone_s, rel=1e-9)
        together = interpolate(block.microbatch, list(map(float, block.working_bytes)), size)
        drift_bytes = max(0, size - max(*times, *memory)) / 4  # the end's slope lies between bytes rounded up
        assert -1e-6 - drift_bytes <= together - alone_bytes <= 1 + drift_bytes


def test_units_of_the_optional_column(tmp_path: Path) -> None:
    lines = LATENCY.splitlines()
    latency = "\n".join([lines[0] + ",unit", *(f"{line},{unit}" for line in lines[1:4] for unit in ("block", "head"))])
    units = _import(tmp_path, latency, cluster=_cluster("fast")).devices["fast"].units
    assert list(units) == ["block", "head"]
    assert units["head"].forward_s == units["block"].forward_s


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("forward_ms", "forward", "latency.csv: forward: unknown column (did you mean 'forward_ms'?)"),
        (",backward_ms", "", "latency.csv: backward_ms: column is missing (the columns are model,device,seq_len,"),
        ("2,1.5,3.0", "2,1.5", "latency.csv: line 3: found 6 values, expected 7"),
        ("2,1.5,3.0", "2,soon,3.0", "latency.csv: line 3: forward_ms: found 'soon', expected a number above 0 and at "),
        ("2,1.5,3.0", "2,nan,3.0", "latency.csv: line 3: forward_ms: found 'nan', expected a number above 0 and at "),
        ("2,1.5,3.0", "2,-1,3.0", "latency.csv: line 3: forward_ms: found '-1', expected a number above 0 and at "),
        (
            "2,1.5,3.0",
            "2,0,3.0",
            "latency.csv: line 3: forward_ms: found '0', expected a number above 0 and at most 864",
        ),
        ("2,1.5,3.0", "2,1.5,0.0", "latency.csv: line 3: backward_ms: found '0.0', expected a number above 0 and at "),
        ("2,1.5,3.0", "2,9e300,3.0", "latency.csv: line 3: forward_ms: found '9e300', expected a number above 0 and "),
        ("2,1.5,3.0", "2,inf,3.0", "latency.csv: line 3: forward_ms: found 'inf', expected a number above 0 and at "),
        (
            "4,3.0,6.0",
            "4,0.5,6.0",
            "latency.csv: fast, block: forward falls from 1 ms at microbatch 1 to 0.5 ms at 4, expected more samples",
        ),
        (
            "4,3.0,6.0",
            "4,3.0,1.3",
            "latency.csv: fast, block: backward falls from 2 ms at microbatch 1 to 1.3 ms at 4, expected more samples",
        ),
        ("2,1.5,3.0", "2.5,1.5,3.0", "latency.csv: line 3: microbatch: found '2.5', expected a whole number above 0"),
        ("float32,2,1.5", "fp32,2,1.5", "latency.csv: line 3: dtype: found 'fp32', expected 'float32', 'bfloat16', "),
        ("tiny,", "huge,", "latency.csv: the table has no rows for model 'tiny' (it has huge)"),
        ("128", "256", "latency.csv: the table has no rows for 'tiny' in float32 at sequence length 128 (it has 256)"),
        ("float32", "float16", "latency.csv: the table has no rows for 'tiny' in float32 (it has float16; "),
        ("slow", "l4", "latency.csv: the table has no rows for device 'slow' with this model, dtype and sequence "),
    ],
)
def test_a_faulty_latency_table_is_refused_with_its_place(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        _import(tmp_path, LATENCY.replace(old, new))
    assert message in str(caught.value)


def test_an_embedding_may_be_too_quick_for_the_clock(tmp_path: Path) -> None:
    lines = LATENCY.splitlines()[:4]
    latency = "\n".join([lines[0] + ",unit", *(f"{line},block" for line in lines[1:]), f"{lines[1]},embedding"])
    units = _import(tmp_path, latency.replace("1.0,2.0,embedding", "0.0,0.0,embedding"), cluster=_cluster("fast"))
    assert units.devices["fast"].units["embedding"].forward_s[0] == 0


def test_beyond_times_that_fall_a_little_they_grow_in_proportion(tmp_path: Path) -> None:
    block = _import(tmp_path, LATENCY.replace("4,3.0,6.0", "4,0.9,6.0"), cluster=_cluster("fast")).devices["fast"]
    curve = block.units["block"]
    assert "forward: 4 samples took less time than fewer" in curve.flags
    assert interpolate(curve.microbatch, curve.forward_s, 80) == pytest.approx(0.0009 * 80 / 4)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (MEMORY.replace("tiny", "vast"), "memory.csv: the table has no rows for model 'tiny' (it has vast)"),
        (MEMORY.splitlines()[0], "memory.csv: has no rows below its header"),
        ("", "memory.csv: cluster: column is missing (the columns are cluster,model,dtype,"),
        (MEMORY.replace("1500", "1.5e3"), "memory.csv: line 3: working_bytes: found '1.5e3', expected a whole number"),
    ],
)
def test_a_faulty_memory_table_is_refused_with_its_place(memory: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        _import(tmp_path, LATENCY, memory)
    assert message in str(caught.value)


def test_a_memory_cluster_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"on cluster 'three' \(it has one, two"):
        _import(tmp_path, memory_cluster="three")


@pytest.mark.parametrize(
    ("model", "seq_len", "message"),
    [
        ("gpt2", None, "--seq-len: is needed for a model of text"),
        ("gpt2", 2048, "--seq-len: 2048 is longer than the 1024 positions of 'gpt2'"),
        ("vit-base", 512, "--seq-len: the length of 'vit-base' follows from its images: 197"),
    ],
)
def test_a_length_that_does_not_fit_the_model(model: str, seq_len: int | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "any.csv").write_text(LATENCY)
    with pytest.raises(CephaloError) as caught:
        import_profile(
            _cluster("fast"),
            catalog.model(model),
            seq_len=seq_len,
            dtype="float32",
            latency_csv=tmp_path / "any.csv",
            memory_csv=tmp_path / "any.csv",
        )
    assert str(caught.value) == message


@needs_data
def test_the_published_tables_give_a_profile_of_a_mixed_cluster() -> None:
    cluster = catalog.cluster_from_gpus("l4:2,a6000,p40:2")
    profile = import_profile(
        cluster,
        catalog.model("bert_large"),
        seq_len=512,
        dtype="float32",
        latency_csv=DATA / "measured_block_latency.csv",
        memory_csv=DATA / "measured_working_memory.csv",
    )
    assert set(profile.devices) == {"l4", "a6000", "p40"}
    assert profile.num_parameters == 404601856
    block = profile.devices["l4"].units["block"]
    assert block.microbatch == tuple(range(1, 33))
    assert block.working_bytes[0] == 737753088
    assert block.flags == ()
    assert profile.network != "ideal"
    assert profile.devices["a6000"].units["block"].forward_s[0] == pytest.approx(1.18572e-3)


@needs_data
def test_rows_of_a_model_as_large_are_preferred() -> None:
    def parameters(model: str) -> int:
        profile = import_profile(
            catalog.cluster_from_gpus("a6000,l4"),
            catalog.model(model),
            seq_len=None if model.startswith("vit") else 512,
            dtype="float32",
            latency_csv=DATA / "measured_block_latency.csv",
            memory_csv=DATA / "measured_working_memory.csv",
        )
        return profile.num_parameters

    assert parameters("llama_tiny") == 1331783680  # another cluster's rows are of a smaller llama_tiny
    assert parameters("vit_e") == 3806319105
