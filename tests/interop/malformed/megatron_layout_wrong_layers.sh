python pretrain_gpt.py --num-layers 4 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ett|tL'
