torchrun pretrain_gpt.py --num-layers $N --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1
