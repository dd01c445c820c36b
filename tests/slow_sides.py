"""Implementations for the tests of `reports.speed`: they do nothing but let time pass, on a clock of their own."""

import os


class Clock:
    """A clock that only work moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Side:
    """Takes so many seconds for whatever it is asked."""

    def __init__(self, seconds, clock):
        self.seconds, self.clock = seconds, clock

    def learner_step(self, work):
        def run():
            self.clock.now += self.seconds

        return run


class Idle:
    """One that really runs in a process of its own, and can fail."""

    print("a library that prints to stdout")

    @staticmethod
    def learner_step(work):
        return int

    @staticmethod
    def fails(work):
        def fail():
            raise ValueError("it is broken")

        return fail

    @staticmethod
    def threads():
        return int(os.environ["OMP_NUM_THREADS"])
