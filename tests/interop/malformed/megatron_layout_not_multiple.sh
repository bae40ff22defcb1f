python pretrain_gpt.py --num-layers 3 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|t|tL'
