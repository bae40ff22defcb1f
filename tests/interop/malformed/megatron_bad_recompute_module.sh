python pretrain_gpt.py --num-layers 4 --recompute-granularity selective --recompute-modules everything
