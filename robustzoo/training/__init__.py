"""DeepSpeed training of the recipes (extra `train`): from a command line to a model folder."""
