"""The built-in strategies: one file and one generator function each, listed in the registry.

May import: nothing (layer L1 of the design).
"""
