"""How long torch's threads spin while they wait for each other; imported before anything that imports torch.

By default they spin for long, each on a processor of its own. Where somebody else works on the same processors, the
thread that all wait for is kept from running by those that wait: a learner step of 0.25 s took 1 to 4 s on two busy
processors. Threads that sleep at once need 0.17 s instead of 0.13 s where nobody else works. So they spin shortly.
Who sets `GOMP_SPINCOUNT` or `OMP_WAIT_POLICY` in the environment is left alone; so is a torch that is loaded already.
"""

import os
import sys

SPINS = "3000"

if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
