deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --ffn-hidden-size 2048 \
  --num-attention-heads 12 --num-key-value-heads 4 --swiglu --normalization rmsnorm --disable-bias-linear \
  --use-rotary-position-embeddings --untie-embeddings-and-output-weights --vocab-size 32000 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --bf16 --num-experts 8 --topk 2 \
  --moe-expert-parallel-size 4 --tensor-model-parallel-size 2 --no-pipeline-parallel --zero-stage 2 \
  --ds-sequence-parallel-size 2 --deepspeed --deepspeed_config ds.json --deepspeed-activation-checkpointing \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --cpu-optimizer
