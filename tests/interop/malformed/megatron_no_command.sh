echo --num-layers-of-lasagne
ls --micro-batch-size-ish
