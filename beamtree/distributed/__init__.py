"""Several ranks: everything that knows that a model and its training are divided over processes.

A program that torchrun starts calls `join` first. From then on `beamtree.fit` and `Recommender.fit` train one model
together; `save_model` writes it for one process.
"""
