"""Trainers of other packages whose steps run by a plan: one module for each, named after its package.

Nothing of these packages is imported before its module is. Each runs the trainer's own code, whatever its version: what the
trainer calls `backward` on is the loss that is planned.
"""
