torchrun --nnodes 4 --nproc-per-node 8 scripts/training/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config \
  --mode pretrain --dataset mock -tp 2 -pp 4 -vp 3 -cp 1 -ep 4 -etp 1 -mb 1 -gb 96 -sl 4096 \
  model.sequence_parallel=true 'model.recompute_modules=[moe_act,layernorm]' model.recompute_granularity=selective \
  mixed_precision=bf16_with_fp8_subchannel_scaling_mixed ddp.use_distributed_optimizer=true \
  comm_overlap.tp_comm_overlap=true checkpoint.save_interval=250
