"""The launch examples start real ranks: two nodes are network namespaces, or processes of this host."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cephalo_cli.artifacts import Cluster, Report
from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.artifacts.store import dumps, read
from tests.examples.commands import commands_environment, write_script
from tests.examples.hosts import NoNamespacesError, joined_hosts
from tests.executor.plans import MEMORY_BYTES, make_model, make_plan

LAUNCH = Path("examples/launch")
LIMIT_S = 240
CORE = {"core": DeviceType(backend="cpu", memory_bytes=MEMORY_BYTES)}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Commands of this environment."""
    return commands_environment(tmp_path / "bin")


def write_plan(folder: Path, *nodes: int) -> Path:
    """A plan for nodes with so many cores each, one sample a rank."""
    cluster = Cluster(
        name="nodes",
        device_types=CORE,
        nodes=tuple(Node(name=f"node-{number}", devices=("core",) * cores) for number, cores in enumerate(nodes)),
        network="ideal",
    )
    plan = make_plan(make_model(num_layers=1), [[1]] * sum(nodes), dtype="float32")
    ranks = tuple(
        rank.model_copy(update={"node": place.node}) for rank, place in zip(plan.ranks, cluster.ranks, strict=True)
    )
    path = folder / "plan.json"
    path.write_text(dumps(plan.model_copy(update={"cluster": cluster, "ranks": ranks})))
    return path


def check_report(path: Path, num_ranks: int) -> None:
    report = read(path, Report)
    assert len(report.ranks) == num_ranks
    assert [step.step for step in report.steps] == [1, 2]
    assert all(step.loss is not None and 0 < step.loss < 10 for step in report.steps)


def finish(processes: Sequence["subprocess.Popen[str]"]) -> list[str]:
    """Wait for all; give what each wrote to standard error."""
    try:
        talk = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(talk)
    return talk


def start(words: Sequence[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_torchrun_on_two_hosts_of_unequal_size(tmp_path: Path, environment: dict[str, str]) -> None:
    plan, report = write_plan(tmp_path, 2, 1), tmp_path / "report.json"
    options = ("--data", "random", "--steps", "2", "-o", str(report))
    try:
        with joined_hosts(2) as hosts:
            ranks = [
                start(
                    host.command(str(LAUNCH / "torchrun.sh"), str(number), hosts[0].address, str(plan), *options),
                    environment,
                )
                for number, host in enumerate(hosts)
            ]
            finish(ranks)
            assert all(host.sent_bytes() > 10_000 for host in hosts)
    except NoNamespacesError as error:
        pytest.skip(f"no network namespaces here: {error}")
    check_report(report, 3)


def test_torchrun_script_says_how_it_is_called(environment: dict[str, str]) -> None:
    done = subprocess.run([LAUNCH / "torchrun.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "torchrun.sh NODE MASTER_ADDR PLAN [options of cephalo train]" in done.stderr


@pytest.fixture
def slurm(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """A heterogeneous allocation of one and two nodes, with Slurm's commands standing in for a cluster's."""
    commands = tmp_path / "bin"
    write_script(
        commands / "scontrol",
        '[ "$1 $2" = "show hostnames" ] || exit 1\n'
        'case $3 in "fast0") echo fast0;; "slow[0-1]") printf "slow0\\nslow1\\n";; *) exit 1;; esac\n',
    )
    write_script(
        commands / "srun",
        "while [[ $1 == --* ]]; do case $1 in --het-group=*) group=${1#*=};; esac; shift; done\n"
        'case $group in 0) nodes="fast0";; 1) nodes="slow0 slow1";; esac\n'
        "pids=()\ntrap 'kill \"${pids[@]}\"; exit 143' TERM\n"
        'for node in $nodes; do SLURMD_NODENAME=$node "$@" & pids+=($!); done\n'
        'for _ in "${pids[@]}"; do wait -n || { code=$?; kill "${pids[@]}"; exit "$code"; }; done\n',
    )
    return environment | {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "fast0",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "slow[0-1]",
    }


def test_slurm_job_gives_every_node_its_place(tmp_path: Path, slurm: dict[str, str]) -> None:
    calls = tmp_path / "calls"
    write_script(tmp_path / "bin" / "torchrun", f'echo "$*" >> {calls}\n')
    plan = write_plan(tmp_path, 2, 1, 1)
    finish([start(["bash", str(LAUNCH / "slurm.sbatch"), str(plan), "--data", "random", "--steps", "2"], slurm)])
    found = sorted(
        re.findall(r"--nnodes (\d) --nproc-per-node (\d) --node-rank (\d) --master-addr (\S+)", calls.read_text()),
        key=lambda call: call[2],
    )
    assert found == [("3", "2", "0", "fast0"), ("3", "1", "1", "fast0"), ("3", "1", "2", "fast0")]


def test_slurm_job_ends_with_the_code_of_the_node_that_failed(tmp_path: Path, slurm: dict[str, str]) -> None:
    write_script(tmp_path / "bin" / "torchrun", '[[ $* == *"--node-rank 1"* ]] && exit 6\nexec sleep 60\n')
    job = start(["bash", str(LAUNCH / "slurm.sbatch"), str(write_plan(tmp_path, 2, 1, 1))], slurm)
    job.communicate(timeout=30)
    assert job.returncode == 6


def ports() -> Iterator[str]:
    """Ports for one run each; spread by process, as tests run side by side."""
    number = 21000 + os.getpid() % 4000 * 2
    while True:
        yield str(number)
        number += 1


PORTS = ports()


def test_skypilot_starts_its_nodes_ranks(tmp_path: Path, environment: dict[str, str]) -> None:
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    plan, port = write_plan(tmp_path, 1, 1), next(PORTS)
    assert {"num_nodes", "resources", "setup", "run"} <= task.keys()
    settings = task["envs"] | {"PLAN": str(plan), "DATA": "random", "STEPS": "2", "MASTER_PORT": port}
    settings["SKYPILOT_NODE_IPS"] = "127.0.0.1\n127.0.0.1"
    run = task["run"].replace("--checkpoint-dir checkpoints", f"-o {tmp_path}/report.json")
    finish(
        [
            start(["bash", "-c", run], environment | settings | {"SKYPILOT_NODE_RANK": str(number)})
            for number in range(2)
        ]
    )
    check_report(tmp_path / "report.json", 2)


def test_kubernetes_pods_are_ranks(tmp_path: Path, environment: dict[str, str]) -> None:
    job = yaml.safe_load((LAUNCH / "kubernetes.yaml").read_text())
    replicas = job["spec"]["pytorchReplicaSpecs"]
    pods = [replicas[kind] for kind in ("Master", "Worker") for _ in range(replicas[kind]["replicas"])]
    plan, port = write_plan(tmp_path, *(1 for _ in pods)), next(PORTS)
    settings = {"PLAN": str(plan), "DATA": "random", "RUN": str(tmp_path)}
    started = []
    for number, pod in enumerate(pods):
        (container,) = pod["template"]["spec"]["containers"]
        assert {variable["name"] for variable in container["env"]} == settings.keys()
        words = [*container["command"], *container["args"], "-o", f"{tmp_path}/report.json"]
        words = [expanded(word, settings) for word in words]
        words[words.index("--steps") + 1] = "2"
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(number), "WORLD_SIZE": str(len(pods))}
        started.append(start(words, environment | meeting))
    finish(started)
    check_report(tmp_path / "report.json", len(pods))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def expanded(word: str, settings: dict[str, str]) -> str:
    """Replace $(NAME), as Kubernetes does."""
    return re.sub(r"\$\((\w+)\)", lambda match: settings[match[1]], word)


def test_github_workflow_plans_and_compares(tmp_path: Path, environment: dict[str, str]) -> None:
    workflow = yaml.safe_load((LAUNCH / "github-actions.yml").read_text())
    settings = {
        name: value if name == "MODEL" else str(Path(value).resolve()) for name, value in workflow["env"].items()
    }
    steps: list[dict[str, Any]] = workflow["jobs"]["plan"]["steps"]
    commands = [step["run"] for step in steps if "run" in step and not step["run"].startswith("pip ")]
    assert [command.split()[1] for command in commands] == ["profile", "plan", "simulate", "show", "show"]
    for command in commands:
        done = subprocess.run(
            ["bash", "-euc", command],
            env=environment | settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    upload = next(step["with"] for step in steps if "upload" in step.get("uses", ""))
    assert all((tmp_path / name).exists() for name in upload["path"].split())
    assert json.loads((tmp_path / "plan.json").read_text())["kind"] == "plan"
