"""The likeliest mistakes: each gives one line that says what is wrong, what was expected, and what to do."""

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.commands import cephalo

CLUSTER = "examples/clusters/laptop-mixed.json"
MODEL = "examples/models/gpt-10m.json"
PROFILE = "profiles/laptop-mixed.json"
PLAN = "plans/laptop-mixed.json"
GPUS = ("--model", "gpt2", "--seq-len", "512", "--batch-size", "8")
TRAIN = ("--data", "random", "--steps", "2")

MISTAKES: dict[str, tuple[tuple[str, ...], int, str]] = {
    # files in the wrong place
    "a cluster given as profile": (
        ("plan", CLUSTER, "-b", "8"),
        3,
        (
            f"{CLUSTER}: found a cluster, expected a profile"
            f" (cephalo profile {CLUSTER} --model MODEL --seq-len N -o PROFILE.json makes one)"
        ),
    ),
    "a profile given as plan": (
        ("train", PROFILE, *TRAIN),
        3,
        f"{PROFILE}: found a profile, expected a plan (cephalo plan {PROFILE} --batch-size N -o PLAN.json makes one)",
    ),
    "a report given to train": (
        ("train", "{at}/report.json", *TRAIN),
        3,
        "{at}/report.json: found a report, expected a plan (give a plan file here)",
    ),
    "a plan given as profile": (
        ("plan", PLAN, "-b", "8"),
        3,
        f"{PLAN}: found a plan, expected a profile (give a profile file here)",
    ),
    "files in the wrong order": (
        ("profile", MODEL, "--model", CLUSTER, "--seq-len", "8"),
        3,
        f"{CLUSTER}: found a cluster, expected a model (give a model file here)",
    ),
    "a misspelt file": (
        ("plan", "profiles/laptop-mixd.json", "-b", "8"),
        3,
        f"profiles/laptop-mixd.json: no such file (did you mean '{PROFILE}'?)",
    ),
    "a folder given for a file": (
        ("plan", "profiles", "-b", "8"),
        3,
        "profiles: is a folder, expected a file (give a file in it, such as profiles/home-lab.json)",
    ),
    "an empty file": (("show", "{at}/empty.json"), 3, "{at}/empty.json: is empty, expected a JSON object"),
    "a compressed file": (
        ("show", "{at}/plan.json.gz"),
        3,
        "{at}/plan.json.gz: is compressed, expected JSON as it is (gunzip it first)",
    ),
    "a file cut off": (
        ("show", "{at}/cut.json"),
        3,
        "{at}/cut.json: is cut off: expecting value at line 1, column 10",
    ),
    "no JSON at all": (("show", "README.md"), 3, "README.md: is not JSON: expecting value at line 1, column 1"),
    "another program's JSON": (
        ("show", "{at}/other.json"),
        3,
        "{at}/other.json: kind: is missing, expected 'cluster', 'model', 'profile', 'plan' or 'report'",
    ),
    "a file of UTF-16": (
        ("show", "{at}/utf-16.json"),
        3,
        "{at}/utf-16.json: is UTF-16 text, expected UTF-8 (save it as UTF-8)",
    ),
    "a number that is none": (
        ("simulate", "{at}/nan.json"),
        3,
        "{at}/nan.json: expected.step_s: found NaN, expected a finite number",
    ),
    "a key given twice": (
        ("train", "{at}/twice.json", *TRAIN),
        3,
        "{at}/twice.json: kind: found the same key twice, expected each key once",
    ),
    "a number in quotes": (
        ("simulate", "{at}/quoted.json"),
        3,
        '{at}/quoted.json: global_batch_size: found "32", expected a whole number',
    ),
    "a number of 401 digits": (
        ("simulate", "{at}/digits.json"),
        3,
        "{at}/digits.json: global_batch_size: found an integer of 401 digits, expected at most 19 digits",
    ),
    "a link that leads nowhere": (
        ("show", "{at}/dangling.json"),
        3,
        "{at}/dangling.json: is a link to a file that is not there",
    ),
    "links in a loop": (
        ("show", "{at}/loop.json"),
        3,
        "{at}/loop.json: cannot be read: too many levels of symbolic links",
    ),
    "an empty variable for a file": (
        ("show", ""),
        3,
        "the name of a file is empty (a variable of the shell that is not set?)",
    ),
    "an empty variable for a result": (
        ("simulate", PLAN, "-o", ""),
        3,
        "the name of a file is empty (a variable of the shell that is not set?)",
    ),
    "a picture given for what it shows": (
        ("show", "examples/step.svg"),
        3,
        (
            "examples/step.svg: is a picture or a page, expected JSON"
            " (give the plan, profile or report it was made from)"
        ),
    ),
    "a table of other columns": (
        (
            *("profile", CLUSTER, "--model", MODEL, "--seq-len", "8"),
            *("--from-table", "{at}/table.csv", "--memory-table", "{at}/table.csv"),
        ),
        3,
        (
            "{at}/table.csv: a: unknown column"
            " (the columns are model,device,seq_len,dtype,microbatch,forward_ms,backward_ms,unit)"
        ),
    ),
    "a checkpoint's manifest": (
        ("show", "{at}/step-1/manifest.json"),
        3,
        (
            "{at}/step-1/manifest.json: is the manifest of a checkpoint"
            " (cephalo export {at}/step-1 DIR writes it for transformers, train --resume goes on)"
        ),
    ),
    "a table given to show": (
        ("show", "{at}/table.csv"),
        3,
        (
            "{at}/table.csv: is not JSON: expecting value at line 1, column 1"
            " (a table of latencies is for cephalo profile --from-table, with --memory-table)"
        ),
    ),
    "a model's name that only a report resembles": (
        ("profile", "--estimate", "--gpus", "l4", "--seq-len", "8", "--model", "{at}/reprt.json"),
        3,
        "{at}/reprt.json: no such file",
    ),
    "a plan's name that only a trace resembles": (
        ("simulate", "{at}/step.trac.json"),
        3,
        "{at}/step.trac.json: no such file",
    ),
    # where results go
    "checkpoints where nothing can be written": (
        ("train", PLAN, *TRAIN, "--checkpoint-dir", "/proc/nothing"),
        3,
        "--checkpoint-dir /proc/nothing: cannot be written: no such file or directory (give another path)",
    ),
    "TensorBoard where nothing can be written": (
        ("train", PLAN, *TRAIN, "--tensorboard", "/proc/nothing/board"),
        3,
        "--tensorboard /proc/nothing/board: cannot be written: no such file or directory (give another path)",
    ),
    "a page that is none": (
        ("show", PLAN, "--html", "{at}/page.txt"),
        2,
        "'{at}/page.txt' is not .html (give the page this ending)",
    ),
    "a condition on one file": (
        ("show", PLAN, "--fail-if", "slower:5%"),
        2,
        (
            "--fail-if slower:5%: needs two files, the old one and the new one, found 1"
            " (cephalo show OLD NEW --fail-if slower:5%)"
        ),
    ),
    "a result that exists": (
        ("simulate", PLAN, "-o", PLAN),
        3,
        f"{PLAN}: exists already (--force overwrites it)",
    ),
    "a folder as result": (
        ("simulate", PLAN, "-o", "plans"),
        3,
        "plans: is a folder, expected a file name (give a file name)",
    ),
    "a folder that nothing can be written to": (
        ("simulate", PLAN, "-o", "/proc/nothing/report.json"),
        3,
        "/proc/nothing/report.json: cannot be written: no such file or directory (give another path)",
    ),
    "a picture of an unknown kind": (
        ("show", PLAN, "--plot", "{at}/plan.jpg"),
        2,
        "'{at}/plan.jpg' is neither .png nor .svg (give the picture one of these endings)",
    ),
    # devices and models by name
    "a comma at the end": (
        ("plan", "--gpus", "3090:2,", *GPUS),
        2,
        "--gpus: a device is missing beside a comma in '3090:2,' (write it like l4:2,a6000,p40)",
    ),
    "a number with a count": (
        ("plan", "--gpus", "3090x2", *GPUS),
        2,
        "--gpus: '3090x2' is not a device with a count (write 3090:2)",
    ),
    "a list that the catalog has not": (
        ("catalog", "gpus"),
        2,
        "found 'gpus', expected 'devices' or 'models' (cephalo catalog --help lists the options)",
    ),
    "a command that nobody knows": (
        ("frobnicate",),
        2,
        "No such command 'frobnicate' (cephalo --help lists the commands)",
    ),
    "a typo in a GPU's name": (
        ("plan", "--gpus", "rtx-3900:2", *GPUS),
        3,
        "--gpus: the catalog has no device 'rtx-3900' (did you mean 'rtx-3090'?)",
    ),
    "a GPU that nobody knows": (
        ("plan", "--gpus", "warpdrive", *GPUS),
        3,
        "--gpus: the catalog has no device 'warpdrive' (cephalo catalog devices lists them)",
    ),
    "no GPU of a kind": (
        ("plan", "--gpus", "l4:0", *GPUS),
        2,
        "--gpus: 'l4:0' is not a device with a count (write it like l4:2,a6000,p40)",
    ),
    "fewer than no GPUs": (
        ("plan", "--gpus", "l4:-2", *GPUS),
        2,
        "--gpus: 'l4:-2' is not a device with a count (write it like l4:2,a6000,p40)",
    ),
    "GPUs without commas": (
        ("plan", "--gpus", "l4 p40", *GPUS),
        2,
        "--gpus: 'l4 p40' is not a device with a count (write l4,p40)",
    ),
    "a cluster file for names of GPUs": (
        ("plan", "--gpus", CLUSTER, *GPUS),
        2,
        (
            f"--gpus: {CLUSTER} is a file, expected names of devices (cephalo profile {CLUSTER} --estimate"
            " --model MODEL --seq-len N -o PROFILE.json makes a profile)"
        ),
    ),
    "no model": (
        ("plan", "--gpus", "l4", "--model", "", "--seq-len", "8", "-b", "8"),
        2,
        "--model: no model is named (cephalo catalog models lists those known)",
    ),
    "a count in front": (
        ("plan", "--gpus", "2x3090", *GPUS),
        2,
        "--gpus: '2x3090' is not a device with a count (write 3090:2)",
    ),
    "a count with times": (
        ("plan", "--gpus", "l4 x4", *GPUS),
        2,
        "--gpus: 'l4 x4' is not a device with a count (write l4:4)",
    ),
    "a typo in a model's name": (
        ("plan", "--gpus", "l4", "--model", "lamma-7b", "--seq-len", "512", "-b", "8"),
        3,
        "--model: the catalog has no model 'lamma-7b' (did you mean 'llama-7b'?)",
    ),
    "a dtype by its nickname": (
        ("plan", "--gpus", "l4", *GPUS, "--dtype", "bf16"),
        2,
        "--dtype is 'bf16', expected 'float32', 'bfloat16' or 'float16' (did you mean 'bfloat16'?)",
    ),
    "a dtype that a GPU cannot run": (
        ("plan", "--gpus", "p40,l4", *GPUS, "--dtype", "bfloat16"),
        2,
        (
            "--dtype: 'p40' cannot run bfloat16; it runs float16, float32"
            " (all devices of the cluster run float32 and float16)"
        ),
    ),
    "measuring GPUs that are only named": (
        ("profile", "--gpus", "l4:2", "--model", MODEL, "--seq-len", "8"),
        2,
        (
            "--gpus names devices of the catalog, which this machine need not have"
            " (add --estimate, or measure with a CLUSTER file)"
        ),
    ),
    # numbers
    "a batch of nothing": (("plan", PROFILE, "-b", "0"), 2, "--batch-size is 0, expected at least 1"),
    "a negative batch": (("plan", PROFILE, "-b", "-3"), 2, "--batch-size is -3, expected at least 1"),
    "no batch": (("plan", PROFILE), 2, "--batch-size is missing (a number, auto or max)"),
    "GB misspelt": (
        ("plan", PROFILE, "-b", "8", "--reserve", "24G"),
        2,
        "--reserve: '24G' is not a size (write it like 24GiB, 24GB or 1500000000)",
    ),
    "a reserve without its unit": (
        ("plan", PROFILE, "-b", "8", "--reserve", "2"),
        2,
        "--reserve: '2' is 2 bytes (did you mean 2GiB or 2MiB?)",
    ),
    "a percentage for a fraction": (
        ("plan", PROFILE, "-b", "8", "--memory-fraction", "90"),
        2,
        "--memory-fraction is 90, expected a number above 0 and at most 1 (0.9 is 90 %)",
    ),
    "a sequence above the model's longest": (
        ("plan", "--gpus", "l4", "--model", "gpt2", "--seq-len", "4096", "-b", "8"),
        2,
        "--seq-len is 4096, but gpt2 takes at most 1024 tokens (shorten it, or raise the model's max_seq_len)",
    ),
    "no sequence length": (
        ("plan", "--gpus", "l4", "--model", "gpt2", "-b", "8"),
        2,
        "--seq-len is missing: how many tokens has one sample? (such as --seq-len 1024)",
    ),
    "a batch in other digits": (
        ("plan", PROFILE, "-b", "٣"),
        2,
        "--batch-size is '٣', expected a whole number, auto or max",
    ),
    "no number for a fraction": (
        ("plan", PROFILE, "-b", "8", "--memory-fraction", "nan"),
        2,
        "--memory-fraction is nan, expected a number above 0 and at most 1",
    ),
    "no steps": (
        ("train", PLAN, "--data", "random", "--steps", "0"),
        2,
        "--steps is 0, expected at least 1 (cephalo train --help lists the options)",
    ),
    "words for a number": (
        ("train", PLAN, *TRAIN, "--lr", "fast"),
        2,
        "--lr is fast, expected a number (cephalo train --help lists the options)",
    ),
    # names of options, strategies, values
    "a misspelt strategy": (
        ("plan", PROFILE, "-b", "8", "--strategy", "fdsp"),
        2,
        (
            "--strategy is 'fdsp', expected 'cephalo', 'fsdp', 'compute-balanced', 'memory-balanced', 'whale', 'poplar'"
            " or 'all' (did you mean 'fsdp'?)"
        ),
    ),
    "a misspelt option": (
        ("train", PLAN, "--dta", "random"),
        2,
        "--dta is no option of cephalo train (did you mean --data?)",
    ),
    "a misspelt command": (("simulat", PLAN), 2, "No such command 'simulat' (did you mean 'simulate'?)"),
    "one argument too many": (
        ("train", PLAN, "plans/home-lab.json", *TRAIN),
        2,
        "unexpected argument plans/home-lab.json (cephalo train --help lists the options)",
    ),
    "a misspelt device in --set": (
        ("simulate", PLAN, "--set", "device_types.cpu-8.memory_bytes=1GiB"),
        2,
        (
            "--set device_types.cpu-8.memory_bytes: the plan has no such value"
            " (did you mean 'device_types.cpu-80.memory_bytes'?)"
        ),
    ),
    "a link that one node has not": (
        ("simulate", PLAN, "--set", "network.bandwidth=2x"),
        2,
        (
            "--set network.bandwidth: the plan has no such value"
            " (did you mean 'nodes.laptop.link.bandwidth_bytes_per_s'?)"
        ),
    ),
    "a bandwidth of no unit in a sweep": (
        ("simulate", PLAN, "--sweep", "nodes.laptop.link.bandwidth_bytes_per_s=1x,48"),
        2,
        ("--sweep nodes.laptop.link.bandwidth_bytes_per_s: '48' is 48 bytes a second (did you mean 48GB/s or 48MB/s?)"),
    ),
    "a factor that is none": (
        ("simulate", PLAN, "--straggler", "1:slow"),
        2,
        "--straggler: '1:slow' is not RANK:FACTOR (write it like 3:1.3)",
    ),
    "jitter in percent": (
        ("simulate", PLAN, "--jitter", "5"),
        2,
        "--jitter is 5, expected 0 to 2 (0.05 is a noisy machine)",
    ),
    "words for jitter": (
        ("simulate", PLAN, "--jitter", "some"),
        2,
        "--jitter is some, expected a number (cephalo simulate --help lists the options)",
    ),
    "a rank that is not there": (
        ("simulate", PLAN, "--straggler", "4:2"),
        2,
        "--straggler: there is no rank 4 (the plan has ranks 0 to 3)",
    ),
    "an option of a command given to none": (
        ("--json",),
        2,
        "--json is no option of cephalo (cephalo --help lists the options)",
    ),
    # data and checkpoints
    "a file for a folder of TensorBoard": (
        ("train", PLAN, *TRAIN, "--tensorboard", PLAN),
        2,
        f"--tensorboard: {PLAN} is a file, expected a folder (name a folder; it is made if it is not there)",
    ),
    "metrics where nothing can be written": (
        ("train", PLAN, *TRAIN, "--metrics", "/proc/nothing"),
        3,
        "/proc/nothing: cannot be written: No such file or directory",
    ),
    "data that is not there": (
        ("train", PLAN, "--data", "corpus.txt", "--steps", "2"),
        3,
        "--data corpus.txt: no such file or folder (python-stdlib is text on every machine)",
    ),
    "too little data": (
        ("train", PLAN, "--data", "{at}/tiny.txt", "--steps", "2"),
        2,
        (
            "--data: the data has 1 samples, one step takes 32"
            " (give more text, or plan a smaller batch or shorter sequences)"
        ),
    ),
    "no checkpoint to resume": (
        ("train", PLAN, *TRAIN, "--resume", "{at}/nowhere"),
        3,
        "{at}/nowhere: no checkpoint here (no checkpoint is complete)",
    ),
    "the latest of no folder": (
        ("train", PLAN, *TRAIN, "--resume", "latest"),
        2,
        "--resume latest needs --checkpoint-dir to look in",
    ),
}


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of files that are not what they should be."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty.json").write_bytes(b"")
    (folder / "plan.json.gz").write_bytes(gzip.compress(Path(PLAN).read_bytes()))
    (folder / "cut.json").write_text('{"kind": ')
    (folder / "other.json").write_text(json.dumps({"name": "thing", "version": 1}))
    (folder / "tiny.txt").write_text("hi\n")
    plan = Path(PLAN).read_text()
    (folder / "utf-16.json").write_bytes(plan.encode("utf-16"))
    (folder / "nan.json").write_text(plan.replace('"step_s": ', '"step_s": NaN, "s": ', 1))
    (folder / "twice.json").write_text('{"kind": "plan", "kind": "plan"}')
    (folder / "quoted.json").write_text(plan.replace('"global_batch_size": 32', '"global_batch_size": "32"'))
    (folder / "digits.json").write_text(plan.replace('"global_batch_size": 32', f'"global_batch_size": 1{"0" * 400}'))
    (folder / "step-1").mkdir()
    (folder / "step-1" / "manifest.json").write_text(json.dumps({"step": 1, "position": 32, "state_dtype": "float32"}))
    (folder / "step.trace.json").write_text('{"traceEvents": []}')
    (folder / "table.csv").write_text("a,b\n1,2\n")
    (folder / "dangling.json").symlink_to(folder / "nowhere.json")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    assert cephalo("simulate", PLAN, "-o", f"{folder}/report.json", "-q").code == 0
    return str(folder)


@pytest.mark.parametrize("name", MISTAKES)
def test_one_line_says_what_to_do(name: str, at: str) -> None:
    arguments, code, message = MISTAKES[name]
    ran = cephalo(*(argument.replace("{at}", at) for argument in arguments))
    error = ran.err.splitlines(keepends=True)
    assert error[-1:] == [f"cephalo: error: {message.replace('{at}', at)}\n"]
    assert [line for line in error[:-1] if "error" in line] == []
    assert (ran.code, ran.out) == (code, "")


def test_a_gigabyte_is_no_gibibyte() -> None:
    """Both are taken, as both exist; what was understood is shown in GiB."""

    def reserve(size: str) -> str:
        ran = cephalo("plan", "profiles/home-lab.json", "-b", "8", "--reserve", size)
        assert ran.code == 0
        return ran.out

    assert "1.86 GiB" in reserve("2GB")
    assert "2.00 GiB" in reserve("2GiB")


@pytest.mark.parametrize("name", ["with a mark.json", "план 計画.json"])
def test_what_is_no_mistake(name: str, tmp_path: Path) -> None:
    """A byte order mark, which some editors write, and names of any alphabet."""
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + Path(PLAN).read_bytes())
    ran = cephalo("show", str(tmp_path / name))
    assert (ran.code, ran.out) == (0, cephalo("show", PLAN).out)
