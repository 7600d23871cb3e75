"""Draft heads and draft trees made from a target's own answers.

May import: nothing, so that naming the package costs nothing.
"""
