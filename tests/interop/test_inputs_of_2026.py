"""Launch files as people have them in 2026, each with what it says by hand, and logs whose numbers follow from others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.records import ImportedJob
from layoutopt.optimizer.interop.sources import Around, import_path, import_text

if TYPE_CHECKING:
    from pathlib import Path

MODEL = (
    "pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 "
    "--vocab-size 50304 --micro-batch-size 2 --global-batch-size 256 --bf16"
)
CASES: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "a command held in a string, in a string that srun's shell runs": (
        {
            "a.sh": "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nexport TP=4 PP=2\n"
            f'INNER="torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES {MODEL} --tensor-model-parallel-size $TP '
            '--pipeline-model-parallel-size $PP"\n'
            "srun bash -c \"cd /workspace && bash -c '$INNER'\"\n"
        },
        {"gpus": 32, "tp": 4, "pp": 2, "dp": 4, "micro_batches": 32},
    ),
    "exec and env before the launcher, in a shell of mpirun": (
        {
            "a.sh": 'cmd="exec env NCCL_DEBUG=INFO python -m torch.distributed.run --nnodes=2 --nproc-per-node=8 '
            f'{MODEL} --tensor-model-parallel-size 2 --sequence-parallel"\nmpirun -np 2 -N 1 sh -c "$cmd"\n'
        },
        {"gpus": 16, "tp": 2, "sp": True, "dp": 8},
    ),
    "an environment file beside the script, all of it exported": (
        {
            "a.sh": 'HERE=$(dirname "$0")\nset -a\n. "$HERE/conf/run.env"\nset +a\n'
            '[ -n "${EXTRA:-}" ] && ARGS+=" $EXTRA"\n'
            f"torchrun --nnodes $NODES --nproc_per_node $GPN {MODEL} --tensor-model-parallel-size $TP "
            "--context-parallel-size ${CP:-1} $ARGS\n",
            "conf/run.env": "# run\nNODES=2\nGPN=8\nTP=8\nCP=2\nARGS=--use-distributed-optimizer\n"
            "EXTRA='--sequence-parallel'\n",
        },
        {"gpus": 16, "tp": 8, "cp": 2, "dp": 1, "zero": 1, "sp": True},
    ),
    "axolotl with its parallel sizes and FSDP 2": (
        {
            "a.yml": "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 8192\nmicro_batch_size: 1\n"
            "gradient_accumulation_steps: 4\nbf16: true\ntensor_parallel_size: 2\ncontext_parallel_size: 2\n"
            "dp_shard_size: 4\ndp_replicate_size: 1\ngradient_checkpointing: true\nfsdp_version: 2\n"
            "fsdp_config:\n  reshard_after_forward: true\n  offload_params: false\n"
            "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\noptimizer: adamw_torch_fused\n"
        },
        {"gpus": 16, "tp": 2, "cp": 2, "dp": 4, "zero": 3, "global_batch": 16, "recompute": "full"},
    ),
    "LLaMA-Factory on Megatron-Core": (
        {
            "a.yaml": "model_name_or_path: Qwen/Qwen3-30B-A3B\nstage: sft\nfinetuning_type: full\nuse_mca: true\n"
            "cutoff_len: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nbf16: true\n"
            "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 1\nexpert_model_parallel_size: 8\n"
            "sequence_parallel: true\nuse_distributed_optimizer: true\nrecompute_granularity: full\n"
        },
        {"tp": 2, "ep": 8, "sp": True, "zero": 1, "sequence_length": 4096, "recompute": "full"},
    ),
    "Megatron-SWIFT with the launcher's variables on its line": (
        {
            "a.sh": "NPROC_PER_NODE=8 NNODES=2 \\\nCUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\\nmegatron sft \\\n"
            "  --model Qwen/Qwen3-30B-A3B --pipeline_model_parallel_size 2 --expert_model_parallel_size 4 \\\n"
            "  --tensor_model_parallel_size 2 --sequence_parallel true --micro_batch_size 1 \\\n"
            "  --global_batch_size 32 --recompute_granularity full --max_length 8192\n"
        },
        {"gpus": 16, "tp": 2, "pp": 2, "ep": 4, "dp": 4, "global_batch": 32, "sequence_length": 8192},
    ),
    "slime's arrays behind a Ray job": (
        {
            "a.sh": "PERF_ARGS=(\n  --tensor-model-parallel-size 2\n  --sequence-parallel\n  --context-parallel-size 2\n"
            "  --recompute-granularity full\n  --recompute-method uniform\n  --recompute-num-layers 1\n)\n"
            f"MODEL_ARGS=({MODEL.removeprefix('pretrain_gpt.py ')} --swiglu)\n"
            'ray job submit --address="http://127.0.0.1:8265" \\\n  -- python3 train.py --actor-num-nodes 1 \\\n'
            "  --actor-num-gpus-per-node 8 --colocate ${MODEL_ARGS[@]} ${PERF_ARGS[@]}\n"
        },
        {"gpus": 8, "tp": 2, "cp": 2, "dp": 2, "global_batch": 256, "recompute": "full"},
    ),
    "verl on FSDP 2 with Ulysses": (
        {
            "a.sh": "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
            "actor_rollout_ref.model.path=Qwen/Qwen3-32B actor_rollout_ref.actor.strategy=fsdp2 "
            "data.train_batch_size=256 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 trainer.n_gpus_per_node=8 trainer.nnodes=1 "
            "data.max_prompt_length=512 data.max_response_length=1536\n"
        },
        {"gpus": 8, "cp": 2, "dp": 4, "zero": 3, "global_batch": 64, "sequence_length": 2048},
    ),
    "Primus with a default in braces": (
        {
            "a.yaml": "work_group: ${PRIMUS_TEAM:amd}\nuser_name: root\nexp_name: llama\nworkspace: ./output\n"
            "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n"
            "    model: llama3.1_8B.yaml\n    overrides:\n      micro_batch_size: 2\n      global_batch_size: 128\n"
            "      seq_length: 8192\n      tensor_model_parallel_size: ${PRIMUS_TP:4}\n"
            "      pipeline_model_parallel_size: 2\n      use_distributed_optimizer: true\n      fp8: hybrid\n"
        },
        {"tp": 4, "pp": 2, "zero": 1, "micro_batch": 2, "global_batch": 128, "precision": "fp8"},
    ),
    "a torchtitan function that starts from another": (
        {
            "config_registry.py": "from torchtitan.config import ActivationCheckpointConfig, TrainingConfig\n"
            "from torchtitan.trainer import Trainer\nfrom . import model_registry\n\n\n"
            "def llama3_8b() -> Trainer.Config:\n    return Trainer.Config(\n"
            '        model_spec=model_registry("8B"),\n'
            "        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=1000),\n"
            '        activation_checkpoint=ActivationCheckpointConfig(mode="selective"),\n    )\n\n\n'
            "def wide() -> Trainer.Config:\n    config = llama3_8b()\n"
            "    config.parallelism.tensor_parallel_degree = 4\n    config.training.global_batch_size = 64\n"
            "    return config\n"
        },
        {"tp": 4, "zero": 3, "micro_batch": 1, "global_batch": 64, "sequence_length": 8192},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_launch_files_say_what_they_say_by_hand(name: str, tmp_path: Path) -> None:
    """Degrees, batches and lengths as a reader of the file works them out."""
    files, wanted = CASES[name]
    for file, text in files.items():
        place = tmp_path / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    job = import_path(tmp_path / next(iter(files)), around=Around(function="wide")).value
    assert isinstance(job, ImportedJob)
    found: dict[str, object] = {"gpus": job.gpus}
    for part in (job.layout, job.training):
        found |= {field: getattr(part, field) for field in part.__slots__}
    found["recompute"] = str(job.layout.recompute.granularity) if job.layout.recompute else None
    assert {key: found[key] for key in wanted} == wanted


def test_batches_and_lengths_that_follow_from_what_was_consumed() -> None:
    """NeMo 1's bar counts samples, BigScience's lines samples and tokens; a last line alone tells neither."""
    bar = (
        "Epoch 0: :   0%| | {n}/5000 [00:45<21:02:01, v_num=3, global_step={n}.000, consumed_samples={s}.0, "
    )
    bar += "train_step_timing in s=15.0]\r"
    nemo = "".join(bar.format(n=n, s=512 * n) for n in (3, 4, 6))
    assert import_text(nemo, kind="nemo-log").value.columns["global_batch"] == 512
    assert "global_batch" not in import_text(bar.format(n=3, s=1537), kind="nemo-log").value.columns
    line = (
        " iteration     {n}/  115311 | consumed samples:       {s} | consumed tokens:    {t} | elapsed time per "
        "iteration (s): 104.71 | learning rate: 1.1E-05 | global batch size:   512 | samples per second: 4.890 |\n"
    )
    # the sequence grew on the way: what counts is how many tokens a sample has now
    log = "".join(line.format(n=n, s=512 * n, t=10**6 + 2048 * 512 * (n - 1209)) for n in (1210, 1211, 1212))
    assert import_text(log, kind="megatron-log").value.columns["seq"] == 2048
    assert "seq" not in import_text(line.format(n=5, s=512, t=512 * 2048), kind="megatron-log").value.columns
