"""Drafters: each proposes a token tree, the decoding loop verifies it.

May import: nothing, so that naming the package costs nothing.
"""
