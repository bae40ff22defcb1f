#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
# made-up numbers; variables, an array, quotes and a continuation inside double quotes
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=2; PP=4
LAYERS=24
SEQ=${SEQ:-4096}
GPUS=$((4 * 8))
MODEL_ARGS="
    --num-layers $LAYERS \
    --hidden-size 2048 --ffn-hidden-size 5504 \
    --num-attention-heads 16 --group-query-attention --num-query-groups 4
    --swiglu --disable-bias-linear --normalization RMSNorm
    --untie-embeddings-and-output-weights --position-embedding-type rope
    --vocab-size 32000 --seq-length ${SEQ} --max-position-embeddings ${SEQ}
"
PARALLEL_ARGS=(
    --tensor-model-parallel-size=$TP
    --sequence-parallel
    --pipeline-model-parallel-size ${PP}
    # a comment inside an array
    --pipeline-model-parallel-layout 'Et*5|(t*6|)*2t*7L'
    --use-distributed-optimizer --overlap-grad-reduce
)
if [ -n "$DEBUG" ]; then
  EXTRA="--log-interval 1"
fi
torchrun --nproc-per-node 8 --nnodes "$SLURM_NNODES" pretrain_gpt.py $MODEL_ARGS "${PARALLEL_ARGS[@]}" \
  --micro-batch-size 2 --global-batch-size 64 --bf16 --lr 3e-4 \
  --recompute-granularity full --recompute-method block --recompute-num-layers 2 \
  --data-path "$DATA" $EXTRA "$@" 2>&1 | tee log.txt
