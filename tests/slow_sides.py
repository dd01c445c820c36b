"""Implementations for the tests of `reports.speed`: they do nothing but let time pass, on a clock of their own."""

from reports.speed.workload import Job


class Clock:
    """A clock that only work moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Side:
    """Takes so many seconds for whatever it is asked."""

    tasks = ("learner_step", "actor_unroll", "catch_run", "matmul")

    def __init__(self, seconds, clock, tasks=tasks):
        self.seconds, self.clock, self.tasks, self.calls = seconds, clock, tasks, []

    def job(self, task, work):
        def run():
            self.calls.append(task)
            self.clock.now += self.seconds

        return Job(run)


class Idle:
    """One that really runs in a process of its own, and can fail."""

    tasks = ("learner_step", "fails")

    def __init__(self, threads):
        self.threads = threads
        print("a library that prints to stdout")

    def job(self, task, work):
        def fail():
            raise ValueError("it is broken")

        return Job(fail if task == "fails" else int)

    def told_threads(self):
        return self.threads
