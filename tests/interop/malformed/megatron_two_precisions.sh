python pretrain_gpt.py --num-layers 4 --bf16 --fp16 --tensor-model-parallel-size 1
