"""The engine: a target that can skip blocks, drafters, tree verification, one decoding loop.

May import: nothing, so that naming the package costs nothing.
"""
