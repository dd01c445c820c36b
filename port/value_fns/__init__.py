"""Value estimates: Retrace, V-trace, value losses, and the value function of meta-training."""
