"""Short adapters: layers written as functions of tensors, in PyTorch (`.torch`) or JAX (`.jax`).

    from parity.adapters.torch import Adapter

    implementation = Adapter("mine", "the Disco of my library")

    @implementation.layer("values/retrace")
    def _(x, settings):
        return my_library.retrace(x.rewards, x.rho, x.target_q_values, discount=settings["discount"])

Neither framework is imported by importing `parity`.
"""
