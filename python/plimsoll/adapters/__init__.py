"""Adapters that run the steps of other packages' trainers by a plan: one module for each, named after its package.

A package is imported only when its adapter is. An adapter runs the trainer's own code, whatever its version, and plans the
loss that the trainer calls `backward` on.
"""
