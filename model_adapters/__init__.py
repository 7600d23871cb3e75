"""The lm-eval models of tss_bench; lm-eval finds them through the entry points of the package.

May import: nothing, so that naming the package costs nothing.
"""
