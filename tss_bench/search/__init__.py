"""Search for skip sets: strategies, rules, the driver that runs one, and its ledger.

Nothing here knows models, tasks or the test split: an executor measures, see `run_search`.

    with Ledger(path, fingerprint, num_layers) as ledger:
        result = run_search(get("tss_beam"), space, Rules(), executor, ledger=ledger)

May import: nothing but its own modules (layer L1 of the design).
"""

from tss_bench.search.asking import ask, decide, preset
from tss_bench.search.driver import Executor, Progress, run_search, serial
from tss_bench.search.ledger import Fingerprint, Ledger, LedgerError
from tss_bench.search.registry import Option, Strategy, StrategyError, all_strategies, get
from tss_bench.search.rules import (
    COST_UNITS,
    Choice,
    Rules,
    choose,
    min_cost,
    pareto_front,
    triple_win,
)
from tss_bench.search.space import Budget, Limits, SearchSpace
from tss_bench.search.table import EvaluationTable, Job
from tss_bench.search.types import (
    BudgetExhausted,
    Counts,
    Evaluation,
    Query,
    Score,
    Search,
    SearchResult,
    Spent,
    StrategyFunction,
    TraceEntry,
)

__all__ = [
    "COST_UNITS",
    "Budget",
    "BudgetExhausted",
    "Choice",
    "Counts",
    "Evaluation",
    "EvaluationTable",
    "Executor",
    "Fingerprint",
    "Job",
    "Ledger",
    "LedgerError",
    "Limits",
    "Option",
    "Progress",
    "Query",
    "Rules",
    "Score",
    "Search",
    "SearchResult",
    "SearchSpace",
    "Spent",
    "Strategy",
    "StrategyError",
    "StrategyFunction",
    "TraceEntry",
    "all_strategies",
    "ask",
    "choose",
    "decide",
    "get",
    "min_cost",
    "pareto_front",
    "preset",
    "run_search",
    "serial",
    "triple_win",
]
