python pretrain_gpt.py --num-layers four --micro-batch-size 1
