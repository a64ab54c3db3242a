"""What is needed to compare and to convince, not to train or serve: baselines, comparisons, the paper's tables."""
