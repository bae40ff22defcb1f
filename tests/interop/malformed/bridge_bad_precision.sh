python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config -tp 1 mixed_precision=bf17_mixed
