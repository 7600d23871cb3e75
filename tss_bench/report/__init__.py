"""Leaderboards, plots and the audit, from result files alone: nothing is decoded or scored here.

May import: nothing (layer L2 of the design).
"""
