"""Several ranks: everything that knows that a model, its training or its search is divided over processes.

A program that torchrun starts calls `join` first. From then on `beamtree.fit` and `Recommender.fit` train one model
together; `save_model` writes it for one process.
"""
