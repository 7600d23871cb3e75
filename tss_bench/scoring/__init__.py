"""Metrics of answers, pooled figures of requests, tests between two runs.

May import: nothing, so that naming the package costs nothing.
"""
