torchrun pretrain_gpt.py --num-layers 4 --data-path "my data
