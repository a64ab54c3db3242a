"""Several ranks: everything that knows that a model, its training or its search is divided over processes."""
