"""Files of other tools on the command line: import, export, evaluate --from, config.json as MODEL, GPU@FILE as CLUSTER."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.interop.sources import import_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

SAMPLES = Path(__file__).parents[1] / "interop" / "samples"
TRAIN = str(SAMPLES / "megatron_train.sh")
CONFIG = str(SAMPLES / "hf_llama.json")


def test_evaluate_judges_a_launch_file(
    ask: Callable[..., dict[str, Any]], run: Callable[..., Result]
) -> None:
    """A script is judged before it is queued: its layout, on as many GPUs of the cluster as it takes."""
    plain = ask("evaluate", "--from", TRAIN, "--cluster", "h100-256")
    assert (plain["verdict"], plain["layout"]["tp"], plain["layout"]["pp"]) == ("fits", 2, 4)
    assert [stage["layers"] for stage in plain["layout"]["stages"]] == [5, 6, 6, 7]
    words = ["evaluate", "--from", TRAIN, "--cluster", "h100-256"]
    assert "32 of h100-256: 32 h100 in" in " ".join(run(*words).stdout.split())
    assert ask("evaluate", "h100-256", "--from", TRAIN) == plain  # the cluster as an argument


def test_options_win_over_the_launch_file(ask: Callable[..., dict[str, Any]]) -> None:
    """Another batch changes the number of micro-batches, more GPUs the data-parallel degree."""
    words = ("evaluate", "--from", TRAIN, "--cluster", "h100-256")
    assert ask(*words, "--batch", "128")["layout"]["micro_batches"] == 16
    more = ask(*words, "--gpus", "64")["layout"]
    assert (more["dp"], more["micro_batches"]) == (8, 4)
    assert ask(*words, "--framework", "nanotron")["verdict"] == "invalid"


def test_a_layout_fills_what_a_launch_file_leaves_open(
    ask: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The model comes from the file, so that ``--cluster`` is all that has to be given beside ``--layout``."""
    script = tmp_path / "train.sh"
    script.write_text(Path(TRAIN).read_text().replace("--micro-batch-size", "--no-such-size"))
    plain = ask("evaluate", "--from", str(script), "--cluster", "h100-256", "--layout", "micro_batch=2")
    assert plain["layout"]["micro_batch"] == 2


@pytest.mark.parametrize("degree", ["--tensor-model-parallel-size 16", "--pipeline-model-parallel-size 3"])
def test_degrees_that_the_gpus_cannot_hold_contradict(
    run: Callable[..., Result], tmp_path: Path, degree: str
) -> None:
    """Said where the file is imported, before anything is priced; degrees that fit are no contradiction."""
    script = tmp_path / "train.sh"
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 48 --hidden-size 4096 "
    script.write_text(text + f"--num-attention-heads 32 --vocab-size 32000 {degree}")
    says = run("import", str(script)).stderr
    assert "contradictory: 8 GPUs are not a multiple of tp=" in says
    script.write_text(script.read_text().replace("16", "8").replace(" 3", " 4"))
    assert "contradictory" not in run("import", str(script)).stderr


def test_an_original_release_says_what_to_give_instead(run: Callable[..., Result], tmp_path: Path) -> None:
    """A ``params.json`` lacks the class and the feed-forward width's rule; a config without its class says how."""
    file = tmp_path / "params.json"
    file.write_text('{"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "multiple_of": 1024}')
    found = run("import", str(file))
    assert found.exit_code == 2
    assert "params.json of an original release" in found.stderr
    assert "config.json of the same model" in found.stderr
    assert '"model_type": "llama"' in run("import", str(file), "--kind", "hf-config").stderr


def test_nodes_of_an_allocation_size_the_job(ask: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """A node list beside the launch file says how many GPUs there are, whatever the script asks for."""
    nodes = tmp_path / "slurm_env.txt"
    nodes.write_text("SLURM_JOB_NODELIST=n[0-7]\nSLURM_NNODES=8\nSLURM_GPUS_ON_NODE=8\n", encoding="utf-8")
    plain = ask("evaluate", "--from", TRAIN, "--from", str(nodes), "--cluster", "h100-256")
    assert plain["layout"]["dp"] * plain["layout"]["tp"] * plain["layout"]["pp"] == 64


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("evaluate",), "missing MODEL and CLUSTER"),
        (("evaluate", "llama3-8b", "--layout", "tp=1"), "missing CLUSTER"),
        (("evaluate", "llama3-8b", "h100x8"), "--layout: missing"),
        (("evaluate", "--from", TRAIN), "missing CLUSTER"),
        (("evaluate", "--from", CONFIG, "--cluster", "h100x8"), "no launch file"),
        (("evaluate", "--from", TRAIN, "--cluster", "h100x8", "--layout", "tp=1"), "--layout"),
        (("evaluate", "--from", TRAIN, "--from", TRAIN, "--cluster", "h100x8"), "second launch file"),
        (("evaluate", "a", "b", "--cluster", "c", "--layout", "tp=1"), "given twice"),
        (
            ("evaluate", "--from", CONFIG, "--cluster", "h100x8", "--layout", "tp=1"),
            "missing MODEL or CLUSTER",
        ),
        (("import", CONFIG, "--function", "f"), "--function: does not apply to hf-config"),
        (("import", CONFIG, "--set", "A=1"), "--set: does not apply to hf-config"),
        (("import", CONFIG, "--arg", "1=2"), "--arg: does not apply to hf-config"),
        (("import", CONFIG, "--recipe-file", "x"), "--recipe-file: does not apply to hf-config"),
        (("import", TRAIN, "--function", "f"), "--function: does not apply to megatron-args"),
        (("solve", CONFIG, "h100x8"), "give a global batch (--batch)"),
        (("solve", TRAIN, "nosuch@nofile"), "no GPU is called"),
        (("import", "nosuch.json"), "no such file"),
        (("import", CONFIG, "--part", "layout"), "has no layout"),
        (("import", CONFIG, "--cluster", "h100x8"), "only with nccl-tests logs"),
        (("export", CONFIG, "--to", "megatron-lm"), "is no plan"),
        (("export", "nosuch.json", "--to", "megatron-lm"), "no such file"),
    ],
)
def test_what_is_missing_is_one_line(words: tuple[str, ...], says: str, run: Callable[..., Result]) -> None:
    """Bad combinations are told in single lines with exit code 2."""
    done = run(*words)
    assert done.exit_code == 2
    assert says.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_model_and_cluster_of_other_tools(ask: Callable[..., dict[str, Any]]) -> None:
    """config.json is a MODEL, a launch file is one, and a node list of a GPU is a CLUSTER."""
    nodes = f"h100@{SAMPLES / 'slurm_env.txt'}"
    plain = ask("solve", CONFIG, nodes, "--seq", "2048", "--batch", "56", "-q")
    assert plain["status"] == "optimal"
    assert plain["inputs"]["cluster"]["gpu_count"] == 28
    assert plain["inputs"]["workload"]["model"]["hidden"] == 768
    other = ask("evaluate", TRAIN, "h100x32", "--layout", "tp=2,pp=4,mb=2,zero=1")
    assert other["layout"]["micro_batches"] == 8


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_every_sample_is_printed(sample: str, run: Callable[..., Result]) -> None:
    """What can be imported comes out as YAML and as the same JSON; what is refused is one line."""
    words = ("import", str(SAMPLES / sample))
    done, machine = run(*words), run(*words, "--json")
    assert done.exit_code == machine.exit_code
    if done.exit_code == 0:
        assert yaml.safe_load(done.stdout) == json.loads(machine.stdout)
    else:
        assert done.exit_code == 2 and done.stderr.strip() and not done.stdout


def test_imported_files_are_read_again(run: Callable[..., Result], tmp_path: Path) -> None:
    """The model and layout parts of a launch file are files for MODEL and --layout."""
    for part in ("model", "layout"):
        path = tmp_path / f"{part}.yaml"
        path.write_text(run("import", TRAIN, "--part", part).stdout, encoding="utf-8")
    done = run("evaluate", str(tmp_path / "model.yaml"), "h100x32", "--layout", str(tmp_path / "layout.yaml"))
    assert done.exit_code == 0
    assert "fits" in done.stdout


def test_collectives_become_a_calibration(run: Callable[..., Result]) -> None:
    """An nccl-tests log and a cluster give constants for its calibration."""
    plain = yaml.safe_load(run("import", str(SAMPLES / "nccl_all_reduce.txt"), "--cluster", "h100x32").stdout)
    assert 0 < plain["calibration"]["network_fraction.infiniband"]["value"] <= 1


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with ZeRO-1, which torchtitan doesn't have."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    words = ["solve", "llama3-8b", "h100x8", "--batch", "64", "--fix", "zero=1", "-o", str(path), "-q"]
    assert CliRunner().invoke(main, words).exit_code == 0
    return path


def test_export_writes_what_import_reads(plan_file: Path, run: Callable[..., Result], tmp_path: Path) -> None:
    """The launch script of a plan has the plan's layout, and a checkpoint interval."""
    done = run("export", str(plan_file), "--to", "megatron-lm", "-o", str(tmp_path / "job"))
    assert done.exit_code == 0 and done.stdout == ""
    job = import_path(tmp_path / "job" / "launch.sh").value
    layout = json.loads(plan_file.read_text(encoding="utf-8"))["layout"]
    assert [getattr(job.layout, name) for name in ("tp", "pp", "vp", "dp", "zero", "micro_batch")] == [
        layout[name] for name in ("tp", "pp", "vp", "dp", "zero", "micro_batch")
    ]
    assert job.options.checkpoint_interval is not None and job.options.checkpoint_interval > 0
    assert [path.name for path in (tmp_path / "job").iterdir()] == [
        "launch.sh"
    ]  # nothing half-written is left


def test_export_prints(plan_file: Path, run: Callable[..., Result]) -> None:
    """Without a folder the script goes to stdout, how to start and check it to stderr; JSON holds all."""
    done = run("export", str(plan_file), "--to", "megatron-lm", "--checkpoint-every", "0")
    assert done.stdout.startswith("#!/bin/bash") and "--save-interval" not in done.stdout
    assert "--fake-process-group" in done.stderr
    plain = json.loads(run("export", str(plan_file), "--to", "megatron-lm", "--json", "-q").stdout)
    assert set(plain) >= {"framework", "version", "files", "command", "memory_check", "layout", "notes"}


def test_export_of_the_nearest_layout(plan_file: Path, run: Callable[..., Result]) -> None:
    """What a trainer can't launch is refused with the nearest layout and its cost; --nearest writes that one."""
    refused = run("export", str(plan_file), "--to", "torchtitan")
    assert refused.exit_code == 2
    assert "zero: torchtitan" in refused.stderr and "the nearest layout takes" in refused.stderr
    done = run("export", str(plan_file), "--to", "torchtitan", "--nearest")
    assert done.exit_code == 0 and "fsdp_reshard_after_forward" in done.stdout


def test_explain_reads_an_error_log(run: Callable[..., Result], ask: Callable[..., dict[str, Any]]) -> None:
    """torch's out-of-memory message stands beside the predicted memory."""
    words = ("explain", "llama3-8b", "h100x64", "--layout", "tp=1,mb=2,zero=1", "--no-compare")
    log = ("--from", str(SAMPLES / "oom.txt"))
    done = run(*words, *log)
    assert done.exit_code == 3
    assert "Out-of-memory messages" in done.stdout and "predicted on the fullest rank" in done.stdout
    assert ask(*words, *log)["out_of_memory"][0]["gpu"] == 3


def test_explain_says_why_and_what_helps(
    ask: Callable[..., dict[str, Any]], run: Callable[..., Result]
) -> None:
    """The JSON has the verdict's keys, the shares of memory, the remedies, the gap and the wishes."""
    words = ("explain", "llama3-8b", "h100x8", "--batch", "64")
    plain = ask(*words, "--layout", "tp=1,zero=0", "--why-not", "tp=4")
    assert plain["verdict"] == "does_not_fit"
    parts = plain["fullest_rank"]["parts"]
    assert sum(part["bytes"] for part in parts) == pytest.approx(plain["fullest_rank"]["needed_bytes"])
    assert plain["remedies"] and all(remedy["changes"] for remedy in plain["remedies"])
    assert plain["why_not"][0]["fixed"] == {"tp": [4]} and plain["why_not"][0]["slower"] >= 0
    assert plain["gap"] is None and plain["optimum"]["status"] == "optimal"
    slow = ask(*words, "--layout", "tp=8,zero=1")
    assert slow["gap"]["slower"] > 0
    assert slow["gap"]["steps"][-1]["layout"] == slow["optimum"]["layout"]
    text = run(*words, "--layout", "tp=3").stdout
    assert "Why it cannot run" in text and "Remedies" in text
    small = ("explain", "qwen3-32b", "a100-40gx8", "--batch", "8", "--seq", "2048", "--layout", "tp=8")
    nothing = " ".join(run(*small).stdout.split())
    assert "no single change" in nothing
    assert "What helps - --allow offload-optimizer: a layout fits" in nothing


def test_quiet_is_quiet(run: Callable[..., Result]) -> None:
    """Notes on what was assumed go to stderr, and nowhere with --quiet."""
    words = ("import", CONFIG)
    assert "class defaults" in run(*words).stderr
    assert run(*words, "--quiet").stderr == ""


def test_every_command_takes_them(run: Callable[..., Result], tmp_path: Path) -> None:
    """Sweeps, topologies and verification read the same models and clusters."""
    nodes = f"h100@{SAMPLES / 'slurm_env.txt'}"
    assert "28 h100" in " ".join(run("topology", "show", nodes).stdout.split())
    store = ("--store", str(tmp_path / "sweep.db"), "--jobs", "1", "-q")
    done = run("sweep", CONFIG, "h100", "--gpus", "8,16", "--batch", "64", "--seq", "1024", *store)
    assert done.exit_code == 0 and "2 points: 2 solved" in done.stdout
    lonely = run("sweep", CONFIG, "h100", "--gpus", "8", *store)
    assert lonely.exit_code == 2 and "--batch" in lonely.stderr


SIZES = """case $SIZE in
 8B) TP=1;;
 70B) TP=8;;
esac
torchrun --nproc_per_node 8 --nnodes ${1:-2} pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 8192 --bf16 --vocab-size 128256 --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size $TP
"""


def test_what_a_script_leaves_to_the_outside_is_given_by_options(
    ask: Callable[..., dict[str, Any]], run: Callable[..., Result], tmp_path: Path
) -> None:
    """Variables and arguments; without them the line says which, and ``--strict`` takes nothing for granted."""
    script = tmp_path / "sizes.sh"
    script.write_text(SIZES)
    refused = run("import", str(script))
    assert refused.exit_code == 2
    assert "TP set in one of several branches ($SIZE is 8B | $SIZE is 70B)" in refused.stderr
    assert "--set SIZE=..." in refused.stderr
    given = ("--set", "SIZE=70B", "--arg", "1=4")
    plain = ask("evaluate", "--from", str(script), "--cluster", "h100x32", *given)
    assert (plain["layout"]["tp"], plain["layout"]["dp"]) == (8, 4)
    strict = run("import", str(script), *given, "--strict")
    assert strict.exit_code == 2 and "ffn_hidden_size 16384" in strict.stderr


def test_files_beside_a_script_are_read(
    ask: Callable[..., dict[str, Any]], run: Callable[..., Result], tmp_path: Path
) -> None:
    """``source env.sh`` reads files of the folder and a few levels up, as of one checkout, and none far outside of it."""
    (tmp_path / "env.sh").write_text("SIZE=8B\n")
    inside = tmp_path / "run.sh"
    inside.write_text(f"source ./env.sh\n{SIZES}")
    assert ask("import", str(inside))["layout"]["tp"] == 1
    below = tmp_path / "below"
    deep = below.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    (below / "run.sh").write_text(f"source ../env.sh\n{SIZES}")
    assert ask("import", str(below / "run.sh"))["layout"]["tp"] == 1
    (deep / "run.sh").write_text(f"source {'../' * 9}env.sh\n{SIZES}")
    assert run("import", str(deep / "run.sh")).exit_code == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--set", "1x=3"), "--set: '1x=3' is no setting (NAME=VALUE, e.g. TP=8)"),
        (("--set", "TP"), "--set: 'TP' is no setting (NAME=VALUE, e.g. TP=8)"),
        (("--arg", "a=3"), "--arg: 'a=3' is no argument (N=VALUE with N from 1 to 99, e.g. 1=8)"),
        (("--arg", "0=3"), "--arg: '0=3' is no argument (N=VALUE with N from 1 to 99, e.g. 1=8)"),
        (
            ("--collective", "all-reduce"),
            "train.sh: --collective: does not apply to megatron-args (nothing beside the file)",
        ),
    ],
)
def test_options_that_do_not_fit_the_file_are_one_line(
    run: Callable[..., Result], tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    """Bad input, not an internal error."""
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --tensor-model-parallel-size 2"
    )
    found = run("import", str(script), *words)
    assert (found.exit_code, found.stderr.strip()) == (2, line)


def test_one_of_several_slurm_topologies_is_chosen(run: Callable[..., Result], tmp_path: Path) -> None:
    """By name; an unknown name is answered by those that are there, another file by what the option is for."""
    block = "- topology: {name}\n  block: {{block_sizes: [{size}], blocks: [{{block: b, nodes: 'n[1-{size}]'}}]}}\n"
    file = tmp_path / "topology.yaml"
    file.write_text(block.format(name="a", size=2) + block.format(name="b", size=3), encoding="utf-8")
    sizes = {
        name: yaml.safe_load(run("import", str(file), *(["--topology", name] if name else [])).stdout)[
            "nodes"
        ]
        for name in ("", "a", "b")
    }
    assert sizes == {"": 2, "a": 2, "b": 3}
    unknown = run("import", str(file), "--topology", "c")
    assert unknown.exit_code == 2 and "no topology 'c' (a, b)" in unknown.stderr
    config = tmp_path / "config.json"
    config.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 3}}', encoding="utf-8")
    other = run("import", str(config), "--topology", "a")
    assert other.exit_code == 2 and "--topology" in other.stderr


def test_the_nearest_layout_is_priced_as_its_trainer_runs_it(
    plan_file: Path, run: Callable[..., Result], tmp_path: Path
) -> None:
    """The price beside the plan's is the one that ``evaluate --from`` the export tells."""
    folder = str(tmp_path / "titan")
    said = run("export", str(plan_file), "--to", "torchtitan", "--nearest", "-o", folder).stderr
    found = re.search(r"as megatron would run it; (.*) as torchtitan does", said)
    assert found is not None
    cluster = json.loads(plan_file.read_text(encoding="utf-8"))["inputs"]["cluster"]["name"]
    told = run("evaluate", "--from", f"{folder}/layoutopt_config.py", "--cluster", cluster)
    assert f"{found[1]} per step" in told.stdout


def test_bridge_exports_keep_the_gradients_of_the_plan(
    plan_file: Path, run: Callable[..., Result], tmp_path: Path
) -> None:
    """Megatron reduces in 32 bits, Bridge's own recipes in 16: the plan's is written, nulls state that nothing is on."""
    folder = tmp_path / "bridge"
    done = run("export", str(plan_file), "--to", "megatron-bridge", "-o", str(folder))
    assert done.exit_code == 0
    assert "ddp.grad_reduce_in_fp32=true" in (folder / "launch.sh").read_text(encoding="utf-8")
    job = import_path(folder / "launch.sh").value
    assert (job.training.grad_bytes, job.layout.vp is None, job.layout.recompute is None) == (4, False, False)
    assert not [text for text in job.missing if "are those of recipe" in text]
