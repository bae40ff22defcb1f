python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 99 --num-experts 4 --moe-layer-freq '__import__("os")'
