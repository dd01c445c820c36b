"""How torch's threads wait for each other; imported before anything that imports torch.

They spin by default, each on a processor of its own. Where somebody else works on the same processors, the thread that
all wait for is kept from running by those that wait: a learner step of 0.25 s took 1 to 4 s on two busy processors, and
0.25 s with threads that sleep. `OMP_WAIT_POLICY=ACTIVE` in the environment has them spin.
"""

import os
import sys

if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
