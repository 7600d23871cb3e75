"""`python -m tss_bench` is `tss-bench`; launchers of several processes start it this way.

May import: tss_bench.cli.
"""

import sys

from tss_bench.cli import main

sys.exit(main())
