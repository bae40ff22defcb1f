# made-up mixture of experts with latent attention; 64 GPUs, expert tensor parallelism left at its default
torchrun --nnodes=8 --nproc_per_node=8 pretrain_gpt.py --num-layers 9 --hidden-size 1024 --ffn-hidden-size 4096 \
  --num-attention-heads 16 --multi-latent-attention --q-lora-rank 384 --kv-lora-rank 128 --qk-head-dim 64 \
  --qk-pos-emb-head-dim 32 --v-head-dim 64 --num-experts 32 --moe-layer-freq '([0]*1+[1]*8)' \
  --moe-ffn-hidden-size 512 --moe-router-topk 4 --moe-shared-expert-intermediate-size 512 \
  --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-enable-expert-bias \
  --swiglu --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights \
  --position-embedding-type rope --vocab-size 50000 --seq-length 2048 --mtp-num-layers 1 \
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \
  --expert-model-parallel-size 8 --pipeline-model-parallel-layout "Et*4|ttt|tt|mL" \
  --micro-batch-size 1 --global-batch-size 128 --bf16 --fp8-format hybrid --fp8-recipe tensorwise \
  --use-distributed-optimizer --num-distributed-optimizer-instances 2 --use-precision-aware-optimizer \
  --exp-avg-dtype bf16 --overlap-moe-expert-parallel-comm --moe-token-dispatcher-type flex --use-tp-pp-dp-mapping
